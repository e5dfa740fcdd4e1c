"""What the tests of the page in a browser share."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

TOKENS = ["7", "+", "5", "=", "2", "ans", "2"]
ROLES = ["operand", "operator", "operand", "operator", "result", "marker", "answer"]
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


def requests(browser) -> list[str]:
    """The addresses that were asked for since the log was last read."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def one(browser, selector):
    """The first element, scrolled to where a click reaches it."""
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def texts(browser, selector) -> list[str]:
    return [element.text for element in browser.find_elements("css selector", selector)]


def token(browser, index):
    return one(browser, f".token[data-index='{index}']")


def choose(browser, selector, text):
    """Chooses by its text in a select."""
    from selenium.webdriver.support.ui import Select

    Select(one(browser, selector)).select_by_visible_text(text)


def options(browser, selector) -> list[str]:
    return [
        option.get_attribute("textContent")
        for option in browser.find_elements("css selector", f"{selector} option")
    ]


def reading(browser) -> str:
    return browser.find_element("id", "reading").text


def said(browser) -> str:
    """What screen readers were told last."""
    return browser.find_element("id", "said").get_attribute("textContent")


def place(browser) -> str:
    number = browser.find_element("id", "number").get_attribute("value")
    return f"{number} {browser.find_element('id', 'count').text}"


def keys(browser, *pressed):
    from selenium.webdriver import ActionChains, Keys

    for key in pressed:
        ActionChains(browser).send_keys(getattr(Keys, key)).perform()


def system_theme(browser, value):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]}
    )


def download(browser, folder: Path, press: Any, seconds: float = 20) -> Path:
    """The file that pressing a button saves."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"behavior": "allow", "downloadPath": str(folder)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", settings)
    before = set(folder.iterdir())
    press.click()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        new = [path for path in folder.iterdir() if path not in before and path.suffix in (".csv", ".json")]
        if new and new[0].stat().st_size:  # the name is taken by an empty file first
            return new[0]
        time.sleep(0.05)
    raise AssertionError(f"nothing was saved to {folder}")
