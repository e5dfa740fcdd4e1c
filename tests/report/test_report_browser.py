"""The report in a real browser: what one clicks, points at and types, and that nothing leaves the page."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import pytest

from tokencredit.report import render_attribution, render_run

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
]
TOKENS = ["7", "+", "5", "=", "2", "ans", "2"]
HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "<svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "\u202egnp.exe",
    "عالم",
    "👨\u200d👩\u200d👧",
    "\x00\n",
    "\u2028",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver on the PATH")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.get("about:blank")  # the browser's own first page fetches things
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory, make_record, make_run) -> Path:
    folder = tmp_path_factory.mktemp("report")
    records = [
        make_record(TOKENS, step=1, roles=["operand"] * 7, on_path=[True] * 7, right=[False] * 7),
        make_record(TOKENS, step=2, reward=0.0, advantage=-1.0),
        make_record([*HOSTILE, "ans", "2"], step=3, prompt="".join(HOSTILE)),
    ]
    metrics = [{"step": step, "reward": 0.01 * step, "credit/ess_ratio": 0.8} for step in range(1, 41)]
    summary = {"accuracy": {"before": 0.4, HOSTILE[2]: 0.8}}
    runs = [
        make_run(folder / name, records, metrics, credit=name, summary=summary)
        for name in ("oar-g", "uniform")
    ]
    return render_run(runs, folder / "report.html")


@pytest.fixture
def page(browser, report):
    """Open the report anew; at the end nothing was fetched, logged as an error, or run from a completion."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(report.as_uri())
    yield browser
    assert browser.execute_script("return window.hacked") is None
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert set(requests(browser)) == {report.as_uri()}


def requests(browser) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def one(browser, selector):
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def token(browser, index):
    return one(browser, f".token[data-index='{index}']")


def reading(browser) -> str:
    return browser.find_element("id", "reading").text


def keys(browser, *pressed):
    from selenium.webdriver import ActionChains, Keys

    for key in pressed:
        ActionChains(browser).send_keys(getattr(Keys, key)).perform()


def test_next_and_previous_turn_the_pages(page):
    assert one(page, "#place").text == "1 of 6"
    assert not one(page, "#previous").is_enabled()
    one(page, "#next").click()
    assert one(page, "#place").text == "2 of 6"
    assert "step 2" in one(page, ".facts").text
    one(page, "#previous").click()
    assert one(page, "#place").text == "1 of 6"


def test_the_filters_choose_by_verdict_and_run(page):
    one(page, "#verdict option[value=wrong]").click()
    assert one(page, "#place").text == "1 of 2"
    assert "0 (wrong)" in one(page, ".facts").text
    one(page, "#run option[value=uniform]").click()
    assert one(page, "#place").text == "1 of 1"
    assert "uniform" in one(page, ".facts").text


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
    marked = [
        element.get_attribute("data-place") for element in page.find_elements("css selector", ".token.top")
    ]
    assert marked == ["5", "4", "3", "2", "1"]
    style = "return getComputedStyle(arguments[0]).borderBottomStyle"
    assert page.execute_script(style, token(page, 4)) == "solid"
    assert page.execute_script(style, token(page, 5)) == "none"


def test_the_reasoning_and_the_answer_are_marked(page):
    assert one(page, ".reasoning .part").text == "reasoning"
    assert [element.text[0] for element in page.find_elements("css selector", ".answer .token")] == ["2"]


def test_pointing_at_a_token_reads_its_numbers(page):
    from selenium.webdriver import ActionChains

    ActionChains(page).move_to_element(token(page, 2)).perform()
    shown = reading(page)
    for text in (
        "token 3 of 7 5",
        "operand",
        "on the path",
        "step wrong",
        "importance 0.75",
        "weight 1",
        "advantage 2",
    ):
        assert text in shown
    assert "probability 0.9" in shown
    assert page.find_element("id", "reading").get_attribute("aria-live") == "polite"


def test_the_keyboard_reaches_every_token_with_one_tab_stop(page):
    assert [
        element.get_attribute("data-index")
        for element in page.find_elements("css selector", ".token[tabindex='0']")
    ] == ["0"]
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

    def system(value):
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]}
        )

    system("light")
    light = background()
    system("dark")
    dark = background()
    assert light != dark
    button = one(page, "#theme")
    button.click()
    assert (button.text, background()) == ("Theme: light", light)
    system("light")
    button.click()
    assert (button.text, background()) == ("Theme: dark", dark)
    button.click()
    assert (button.text, background()) == ("Theme: auto", light)


def test_a_hostile_completion_is_text(page):
    one(page, "#next").click()
    one(page, "#next").click()
    shown = [page.execute_script("return arguments[0].textContent", token(page, t)) for t in range(10)]
    assert shown[:5] == HOSTILE[:5]
    assert shown[5:] == ["⟨U+202E⟩gnp.exe", "عالم", "👨\u200d👩\u200d👧", "⟨U+0000⟩↵\n", "⟨U+2028⟩"]
    assert (
        page.execute_script("return getComputedStyle(arguments[0]).unicodeBidi", token(page, 6)) == "isolate"
    )
    assert (
        page.execute_script(
            "return document.querySelectorAll('script, img, svg:not(.chart, .legend svg)').length"
        )
        == 2
    )


def test_two_strategies_are_read_together(browser, tmp_path, make_record):
    records = [make_record(TOKENS), make_record(TOKENS, credit="oar-p", importance=[9.0] * 5 + [None] * 2)]
    browser.get(render_attribution(records, tmp_path / "a.html", "Two strategies").as_uri())
    assert [element.text for element in browser.find_elements("css selector", ".view h3")] == [
        "oar-g",
        "oar-p",
    ]
    token(browser, 1)
    browser.execute_script("document.querySelectorAll('.view')[1].querySelectorAll('.token')[1].focus()")
    lines = [element.text for element in browser.find_elements("css selector", "#reading .numbers")]
    assert lines[0].startswith("oar-g importance 0.5") and lines[1].startswith("oar-p importance 9")
    assert [element.text[0] for element in browser.find_elements("css selector", ".peer")] == ["+"]


def test_many_completions_open_quickly(browser, tmp_path, make_record, make_run):
    rng = random.Random(0)
    texts = [" the", " sum", " of", " 12", "\n", " and", " x"]
    records = [
        make_record(
            [rng.choice(texts) for _ in range(500)], row=row, importance=[rng.random() for _ in range(500)]
        )
        for row in range(200)
    ]
    page = render_run([make_run(tmp_path / "run", records)], tmp_path / "report.html")
    times = []
    for _ in range(3):  # the machine may be busy with other things
        start = time.perf_counter()
        browser.get(page.as_uri())
        assert browser.find_element("id", "place").text == "1 of 200"
        times.append(time.perf_counter() - start)
    assert min(times) < 2


def test_a_very_long_completion_is_shown_whole(browser, tmp_path, make_record):
    record = make_record([" t"] * 20_000)
    browser.get(render_attribution([record], tmp_path / "long.html", "Long").as_uri())
    assert browser.execute_script("return document.querySelectorAll('.token').length") == 20_000
    browser.execute_script("document.querySelector('.token').focus()")
    keys(browser, "END")
    assert "token 20000 of 20000" in reading(browser)
