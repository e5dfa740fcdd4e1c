"""In a browser: strategies side by side on one completion, hostile names, and pages of any size."""

from __future__ import annotations

import random

import pytest
from page_helpers import ROLES, TOKENS, choose, keys, one, options, place, reading, texts

from tokencredit.report import Shown, render_attribution, render_report

NAMES = ["oar-g", "oar-p", "random"]
STICKS_OUT = "const all = document.documentElement; return all.scrollWidth > all.clientWidth"
HOSTILE_NAMES = [
    "__proto__",
    "any",
    '<img src=x onerror="window.hacked=1">',
    "0",
    "constructor\u202e",
    "nothing",
]


@pytest.fixture
def page(visit, tmp_path, make_record):
    """Two completions under three strategies, and a third one under the last alone."""
    records = [
        make_record([*TOKENS[:-1], answer], credit=name, importance=[strength] * 5 + [None] * 2)
        for answer in "23"
        for strength, name in enumerate(NAMES, start=1)
    ]
    records.append(make_record([*TOKENS[:-1], "4"], credit="random"))
    return visit(render_attribution(records, tmp_path / "a.html", "Three strategies"))


def heads(browser) -> list[str]:
    return [text.split(" ")[0] for text in texts(browser, ".view h3")]


def lefts(browser) -> list[int]:
    return [element.rect["x"] for element in browser.find_elements("css selector", ".view")]


def test_two_strategies_are_read_together(page):
    assert heads(page) == ["oar-g", "oar-p"]
    page.execute_script("document.querySelectorAll('.view')[1].querySelectorAll('.token')[1].focus()")
    lines = texts(page, "#reading .numbers")
    assert lines[0].startswith("oar-g importance 1 ") and lines[1].startswith("oar-p importance 2 ")
    assert texts(page, ".peer") == ["+"]


def test_left_and_right_are_chosen_and_kept_from_page_to_page(page):
    assert options(page, "#left") == NAMES
    assert options(page, "#right") == ["oar-p", "random", "nothing"]
    choose(page, "#left", "random")
    assert heads(page) == ["random", "oar-p"]
    choose(page, "#right", "oar-g")
    assert heads(page) == ["random", "oar-g"]
    one(page, "#next").click()
    assert heads(page) == ["random", "oar-g"]
    one(page, "#next").click()  # this one has a single strategy
    assert heads(page) == ["random"]
    assert not page.find_element("id", "sides").is_displayed()
    one(page, "#previous").click()
    assert heads(page) == ["random", "oar-g"]
    choose(page, "#right", "nothing")
    assert heads(page) == ["random"]
    assert options(page, "#right") == ["oar-g", "oar-p", "nothing"]


def test_choosing_the_other_side_s_strategy_swaps_nothing_away(page):
    choose(page, "#left", "oar-p")  # it was on the right
    assert heads(page) == ["oar-p", "oar-g"]


def test_completions_with_several_strategies_can_be_chosen(page):
    assert options(page, "#strategy") == ["any", *NAMES, "several"]
    choose(page, "#strategy", "several")
    assert place(page) == "1 of 2"
    choose(page, "#strategy", "oar-p")
    assert place(page) == "1 of 2" and heads(page)[0] == "oar-p"
    choose(page, "#strategy", "random")
    assert place(page) == "1 of 3"


def test_narrow_windows_stack_the_strategies(page):
    first, second = lefts(page)
    assert second > first + 300
    for width in (600, 360):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            first, second = lefts(page)
            sticks_out = page.execute_script(STICKS_OUT)
        finally:
            page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert first == second
        assert not sticks_out


def test_hostile_names_are_names(visit, tmp_path, make_record):
    shown = [
        Shown(name, make_record(TOKENS, roles=[*HOSTILE_NAMES, "r"]), source)
        for source in ("__proto__", "any")
        for name in HOSTILE_NAMES
    ]
    page = visit(render_report(tmp_path / "a.html", title="__proto__", completions=shown))
    visible = [name.replace("\u202e", "⟨U+202E⟩") for name in HOSTILE_NAMES]
    assert options(page, "#left") == visible
    assert options(page, "#role") == ["any", *visible, "r"]
    assert options(page, "#source") == ["any", "__proto__", "any"]
    for name in visible:
        choose(page, "#left", name)
        assert texts(page, ".view h3")[0].startswith(name)
    choose(page, "#role", "__proto__")
    assert len(page.find_elements("css selector", ".of-role")) == 2
    assert place(page) == "1 of 2"
    choose(page, "#source", "__proto__")
    assert place(page) == "1 of 1"


def test_the_source_of_a_completion_is_shown_and_chosen(visit, tmp_path, make_record):
    shown = [
        Shown("oar-g", make_record(TOKENS, roles=ROLES), f"query, {policy}") for policy in ("warm", "run")
    ]
    page = visit(render_report(tmp_path / "a.html", title="t", completions=shown))
    assert place(page) == "1 of 2"
    choose(page, "#source", "query, run")
    assert place(page) == "1 of 1"
    assert "query, run" in one(page, ".facts").text


def test_a_very_long_completion_is_shown_whole(visit, tmp_path, make_record):
    records = [make_record([" t"] * 20_000, credit=name) for name in ("a", "b")]
    page = visit(render_attribution(records, tmp_path / "long.html", "Long"))
    assert page.execute_script("return document.querySelectorAll('.token').length") == 40_000
    page.execute_script("document.querySelector('.token').focus()")
    keys(page, "END")
    assert "token 20000 of 20000" in reading(page)


@pytest.mark.slow
@pytest.mark.parametrize("strategies", [1, 2, 4])
def test_many_completions_open_quickly(visit, tmp_path, make_record, strategies, capsys):
    """200 completions of 500 tokens; the time is from the navigation to the first heat map on the screen."""
    rng = random.Random(0)
    words = [" the", " sum", " of", " 12", "\n", " and", " x"]
    shown = []
    for row in range(200):
        tokens, roles = ([rng.choice(these) for _ in range(500)] for these in (words, ROLES))
        truth = {"roles": roles, "on_path": [True] * 500, "right": [None] * 500}
        for strategy in range(strategies):
            numbers = {
                name: [rng.random() for _ in tokens] for name in ("importance", "weights", "advantages")
            }
            shown.append(Shown(f"strategy {strategy}", make_record(tokens, row=row, **numbers, **truth)))
    path = render_report(tmp_path / "report.html", title="Many", completions=shown)
    on_screen = """
        const done = arguments[0];
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() / 1000)));
    """
    times = []
    for _ in range(5):
        page = visit(path)
        times.append(page.execute_async_script(on_screen))
    assert place(page) == "1 of 200"
    with capsys.disabled():
        print(
            f"\n200 completions of 500 tokens, {strategies} strategies, {path.stat().st_size / 1e6:.1f} MB: first "
            f"heat map after {min(times):.2f} to {max(times):.2f} s"
        )
    assert min(times) < 2
