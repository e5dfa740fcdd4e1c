from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_helpers import requests

from tokencredit.report import append_metrics, append_record

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


@pytest.fixture(scope="session")
def make_record() -> Callable[..., dict[str, Any]]:
    """Build a record of `tokens`, the last two being the marker and the answer."""

    def make(tokens: list[str], **changes: Any) -> dict[str, Any]:
        n = len(tokens) - 2
        record = {
            "step": 1,
            "row": 0,
            "prompt": "S1 7 + 5 ; ? S1",
            "tokens": tokens,
            "importance": [0.25 * (t + 1) for t in range(n)] + [None, None],
            "weights": [0.5 + t / max(n - 1, 1) for t in range(n)] + [1.0, 1.0],
            "advantages": [2 * (0.5 + t / max(n - 1, 1)) for t in range(n)] + [2.0, 2.0],
            "probability": [0.9] * len(tokens),
            "advantage": 2.0,
            "reward": 1.0,
            "reasoning": [0, n],
            "answer": [n + 1, n + 2],
            "rule": "marker",
            "credit": "oar-g",
        }
        return record | changes

    return make


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """Write a run directory."""

    def make(
        directory: Path,
        records: list[dict[str, Any]],
        metrics: list[dict[str, Any]] | None = None,
        **info: Any,
    ) -> Path:
        directory.mkdir(parents=True)
        settings = {"learning_rate": 2e-4, "lora": {"r": 8}}
        about = {"command": "train", "credit": "oar-g", "task": None, "settings": settings, "seed": 0}
        (directory / "run.json").write_text(json.dumps(about | info))
        for record in records:
            append_record(directory / "records.jsonl", record)
        for line in metrics or []:
            append_metrics(directory / "metrics.jsonl", line)
        return directory

    return make


@pytest.fixture(scope="session")
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


@pytest.fixture
def visit(browser):
    """Opens pages; at the end nothing was fetched, logged as an error, or run from what a page shows."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    visited = set()

    def go(path: Path):
        visited.add(path.as_uri())
        browser.get(path.as_uri())
        return browser

    yield go
    assert browser.execute_script("return window.hacked") is None
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert {url for url in requests(browser) if not url.startswith("blob:file")} == visited
