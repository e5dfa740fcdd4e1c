"""The report in a real browser: what one clicks, points at and types, and that nothing leaves the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_helpers import (
    HOSTILE,
    ROLES,
    TOKENS,
    choose,
    keys,
    one,
    options,
    place,
    reading,
    said,
    system_theme,
    texts,
    token,
)

from tokencredit.report import render_run


@pytest.fixture(scope="module")
def report(tmp_path_factory, make_record, make_run) -> Path:
    """Two runs of three completions each; of the first ones, the runs have the same."""
    folder = tmp_path_factory.mktemp("report")
    truth = {"roles": ROLES, "on_path": [True] * 7, "right": [False] * 7}
    metrics = [{"step": step, "reward": 0.01 * step, "credit/ess_ratio": 0.8} for step in range(1, 41)]
    summary = {"accuracy": {"before": 0.4, HOSTILE[2]: 0.8}}
    runs = []
    for name in ("oar-g", "uniform"):
        records = [
            make_record(TOKENS, step=1, credit=name, **truth),
            make_record([*TOKENS[:-1], name], step=2, credit=name, reward=0.0, advantage=-1.0),
            make_record([*HOSTILE, "ans", name], step=3, credit=name, prompt="".join(HOSTILE)),
        ]
        runs.append(make_run(folder / name, records, metrics, credit=name, summary=summary))
    return render_run(runs, folder / "report.html")


@pytest.fixture
def page(visit, report):
    return visit(report)


def test_one_completion_is_on_the_page_at_a_time(page):
    assert place(page) == "1 of 5"
    assert len(page.find_elements("css selector", ".token")) == 14  # under two strategies
    one(page, "#next").click()
    assert len(page.find_elements("css selector", ".token")) == 7


def test_next_and_previous_turn_the_pages(page):
    assert one(page, "#previous").get_attribute("aria-disabled") == "true"
    one(page, "#next").click()
    assert place(page) == "2 of 5"
    assert said(page) == "completion 2 of 5"
    assert "step 2" in one(page, ".facts").text
    one(page, "#previous").click()
    assert place(page) == "1 of 5"
    one(page, "#previous").click()
    assert place(page) == "1 of 5"


def test_a_page_can_be_named(page):
    from selenium.webdriver import Keys

    number = one(page, "#number")
    for typed, shown in (("4", "4 of 5"), ("99", "5 of 5"), (Keys.DELETE, "5 of 5"), ("-3", "1 of 5")):
        number.send_keys(Keys.CONTROL, "a", Keys.NULL, typed, Keys.ENTER)
        assert place(page) == shown


def test_the_filters_choose_by_verdict_strategy_and_role(page):
    choose(page, "#verdict", "wrong")
    assert place(page) == "1 of 2"
    assert "0 (wrong)" in one(page, ".facts").text
    assert said(page) == "2 completions; the first is shown"
    choose(page, "#strategy", "uniform")
    assert place(page) == "1 of 1"
    assert "uniform" in one(page, ".view h3").text
    choose(page, "#role", "operand")
    assert place(page) == " of 0"
    assert "No completion of this kind" in one(page, "#completion").text
    choose(page, "#verdict", "any")
    assert place(page) == "1 of 1"


def test_the_tokens_of_a_role_stand_out(page):
    assert options(page, "#role") == ["any", *dict.fromkeys(ROLES)]
    choose(page, "#role", "operand")
    assert texts(page, ".view:first-child .of-role") == ["7", "5"]
    assert "role operand 2 tokens, outlined" in one(page, ".facts").text.replace("\n", " ")
    style = page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", token(page, 0))
    assert style == "dotted"


def test_switching_the_measure_changes_the_shades(page):
    def shades():
        return [
            page.execute_script("return getComputedStyle(arguments[0]).backgroundColor", token(page, t))
            for t in range(7)
        ]

    by_importance = shades()
    one(page, "#measures input[value=weight] + span").click()
    by_weight = shades()
    assert by_importance != by_weight
    assert len(set(by_importance[:5])) == 5  # five different importances, five shades
    assert by_weight[5] == by_weight[6]  # both have weight 1
    assert "down" in token(page, 0).get_attribute("class")  # weight 0.5
    assert "up" in token(page, 4).get_attribute("class")  # weight 1.5
    assert one(page, ".scale").text.startswith("0\n2")


def test_the_most_important_tokens_are_marked_without_colour(page):
    marked = page.find_elements("css selector", ".view:first-child .token.top")
    assert [element.get_attribute("data-place") for element in marked] == ["5", "4", "3", "2", "1"]
    style = "return getComputedStyle(arguments[0]).borderBottomStyle"
    assert page.execute_script(style, token(page, 4)) == "solid"
    assert page.execute_script(style, token(page, 5)) == "none"


def test_the_reasoning_and_the_answer_are_marked(page):
    assert one(page, ".reasoning .part").text == "reasoning"
    assert [text[0] for text in texts(page, ".view:first-child .answer .token")] == ["2"]


def test_pointing_at_a_token_reads_its_numbers(page):
    from selenium.webdriver import ActionChains

    ActionChains(page).move_to_element(token(page, 2)).perform()
    shown = reading(page)
    for text in ("token 3 of 7 5", "operand", "on the path", "step wrong", "importance 0.75", "weight 1"):
        assert text in shown
    assert "advantage 2" in shown and "probability 0.9" in shown
    assert page.find_element("id", "reading").get_attribute("aria-live") == "polite"


def test_the_keyboard_reaches_every_token_with_one_tab_stop(page):
    stops = page.find_elements("css selector", ".view:first-child .token[tabindex='0']")
    assert [element.get_attribute("data-index") for element in stops] == ["0"]
    page.execute_script("document.querySelector('.prompt').focus()")
    keys(page, "TAB")
    assert "token 1 of 7 7" in reading(page)
    keys(page, "ARROW_RIGHT", "ARROW_RIGHT", "ARROW_LEFT")
    assert "token 2 of 7 +" in reading(page) and "importance 0.5" in reading(page)
    keys(page, "END")
    assert "token 7 of 7 2" in reading(page) and "importance –" in reading(page)
    keys(page, "ARROW_RIGHT", "HOME")
    assert "token 1 of 7" in reading(page)
    focused = page.switch_to.active_element
    assert (focused.get_attribute("tabindex"), focused.get_attribute("data-index")) == ("0", "0")


def test_the_theme_follows_the_system_and_can_be_switched(page):
    def background():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    system_theme(page, "light")
    light = background()
    system_theme(page, "dark")
    dark = background()
    assert light != dark
    button = one(page, "#theme")
    button.click()
    assert (button.text, background()) == ("Theme: light", light)
    system_theme(page, "light")
    button.click()
    assert (button.text, background()) == ("Theme: dark", dark)
    button.click()
    assert (button.text, background()) == ("Theme: auto", light)


def test_a_hostile_completion_is_text(page):
    choose(page, "#strategy", "uniform")
    one(page, "#next").click()
    one(page, "#next").click()
    shown = [page.execute_script("return arguments[0].textContent", token(page, t)) for t in range(10)]
    assert shown[:5] == HOSTILE[:5]
    assert shown[5:] == ["⟨U+202E⟩gnp.exe", "عالم", "👨\u200d👩\u200d👧", "⟨U+0000⟩↵\n", "⟨U+2028⟩"]
    style = "return getComputedStyle(arguments[0]).unicodeBidi"
    assert page.execute_script(style, token(page, 6)) == "isolate"
    markup = "return document.querySelectorAll('script, img, svg:not(.chart, .legend svg)').length"
    assert page.execute_script(markup) == 2


def test_all_that_can_be_used_has_a_name(page):
    """As screen readers are told it."""
    page.execute_cdp_cmd("Accessibility.enable", {})
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    page.execute_cdp_cmd("Accessibility.disable", {})
    named: dict[str, list[str]] = {}
    for node in nodes:
        if not node["ignored"]:
            named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert named["combobox"] == ["Completions", "Role", "Strategy", "Show", "beside"]
    assert named["spinbutton"] == ["Completion"]
    assert named["radio"] == ["importance", "weight", "advantage", "probability"]
    assert {"previous completion", "next completion", "Theme: as the system"} <= set(named["button"])
    assert {"Download Accuracy as CSV", "Download the chosen completions as JSON"} <= set(named["button"])
    assert named["listbox"] == [
        f"Tokens of the completion, credit by {name}" for name in ("oar-g", "uniform")
    ]
    assert "Accuracy" in named["table"]
    for role in ("button", "combobox", "listbox", "option", "image", "table", "columnheader", "link"):
        assert all(named[role]), role
