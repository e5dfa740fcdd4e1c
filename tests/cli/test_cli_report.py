"""`tokencredit report` over folders that nothing was trained or measured for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compare"))
from fake_runs import write_lines, write_run

from tokencredit.compare.collect import read_finished
from tokencredit.compare.page import records_of, write_page
from tokencredit.compare.runs import all_keys
from tokencredit.compare.summary import compare
from tokencredit.compare.verdict import statements
from tokencredit.report import append_record
from tokencredit.report.files import plain_json

ARMS = ["uniform", "oar-g"]


def record(**changes: Any) -> dict[str, Any]:
    """A completion of the task `query`."""
    tokens = ["S1", "7", "+", "5", "=", "2", ";", "ans", "2"]
    importance = [0.1, 1.0, 0.2, 1.0, 0.3, 2.0, 0.1, None, None]
    numbers = {"importance": importance, "weights": [1.0] * 9, "advantages": [1.0] * 9, "probability": None}
    about = {
        "step": 1,
        "row": 0,
        "prompt": "S1 7 + 5 ; ? S1",
        "tokens": tokens,
        "advantage": 1.0,
        "reward": 1.0,
    }
    return {
        **about,
        **numbers,
        "reasoning": [0, 7],
        "answer": [8, 9],
        "rule": "marker",
        "credit": "oar-g",
    } | changes


def run_folder(folder: Path, credit: str = "oar-g") -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"credit": credit, "task": "query", "summary": {"seconds": 1.5}})
    )
    write_lines(folder / "metrics.jsonl", [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75}])
    append_record(folder / "records.jsonl", record(credit=credit))
    return folder


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A finished comparison, with the page that it was left with."""
    folder = tmp_path / "comparison"
    keys = all_keys(ARMS, 2, 2)
    for key in keys:
        reward = 0.5 + 0.1 * key.seed + (0.2 if key.arm == "oar-g" else 0.0) + 0.01 * key.warm * key.seed
        write_run(folder, key, None, [0.25, reward], entropy=1.0)
        append_record(folder / key.name / "records.jsonl", record(credit=key.arm))
    settings = {"task": "query", "learning_rate": 2e-5, "lora": None}
    plan = {
        "settings": settings,
        "warm_starts": ["packaged", "made"],
        "calls": [{"arms": ARMS, "seeds": 1, "warm_starts": 1}, {"arms": ARMS, "seeds": 2, "warm_starts": 2}],
    }
    compared = compare(read_finished(folder, keys, {}), ARMS, None)
    compared |= statements(compared, 2, plan["calls"], [])
    content = {"command": "compare", "plan": plan, **compared}
    (folder / "compare.json").write_text(json.dumps(plain_json(content)))
    write_page(folder / "compare.html", compared, settings, records_of(folder, keys))
    return folder


def test_a_training_run(cli, tmp_path):
    folder = run_folder(tmp_path / "run")
    done = cli("report", folder)
    assert done.code == 0 and done.out.strip() == str(folder / "report.html")
    page = (folder / "report.html").read_text()
    assert "oar-g on query" in page and '"tokens":["S1","7"' in page and '"roles":' in page
    named = cli("report", folder, "--out", "elsewhere.html")
    assert named.code == 0
    assert Path("elsewhere.html").read_text() == page


def test_runs_overlaid(cli, tmp_path):
    folders = [run_folder(tmp_path / "runs" / credit, credit) for credit in ARMS]
    assert cli("report", *folders, "--out", "both.html").code == 0
    page = Path("both.html").read_text()
    assert "uniform and oar-g on query" in page
    assert cli("report", tmp_path / "runs").code == 0  # the folder that they lie in, as the demo leaves it
    assert "oar-g and uniform on query" in (tmp_path / "runs" / "report.html").read_text()


def test_a_comparison_is_made_as_it_was(cli, comparison):
    before = (comparison / "compare.html").read_bytes()
    (comparison / "compare.html").unlink()
    assert cli("report", comparison).code == 0
    assert (comparison / "compare.html").read_bytes() == before
    assert b'"strategy":"uniform"' in before and b'"strategy":"oar-g"' in before


def test_what_is_left_out_of_a_comparison_stays_out(cli, comparison):
    """A run that has not gone to its end lends no completions."""
    for key in all_keys(["oar-g"], 2, 2):
        (comparison / key.name / "run.json").unlink()
    assert cli("report", comparison).code == 0
    assert '"strategy":"oar-g"' not in (comparison / "compare.html").read_text()


def test_a_measurement_is_made_as_it_was(cli):
    flags = (
        "--task",
        "query",
        "--credit",
        "oar-g",
        "--completions",
        4,
        "--draws",
        1,
        "--records",
        2,
        "--no_reference",
    )
    assert cli("fidelity", *flags, "--out", "measured", "--json", "numbers.json").code == 0
    page = Path("measured/fidelity.html")
    before = page.read_bytes()
    page.unlink()
    assert cli("report", "measured").code == 0
    assert page.read_bytes() == before
    done = cli("report", "numbers.json")  # without the folder's completions
    assert done.out.strip() == "numbers.html"
    assert "No completions were recorded." in Path("numbers.html").read_text()


def test_numbers_alone_take_no_completions_of_another_command(cli, tmp_path):
    flags = ("--task", "query", "--credit", "oar-g", "--completions", 2, "--draws", 1, "--no_reference")
    folder = run_folder(tmp_path / "run")
    assert cli("fidelity", *flags, "--json", folder / "numbers.json").code == 0
    assert cli("report", folder / "numbers.json").code == 0
    assert "No completions were recorded." in (folder / "numbers.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("empty",),
            "empty holds nothing to report: no run.json (of train), compare.json (of compare) or fidelity.json",
        ),
        (("missing",), "missing holds nothing to report"),
        (("run", "empty", "--out", "a.html"), "empty is no training run (it has no run.json)"),
        (("run", "run"), "name it with --out"),
        (("run", "--out", "empty"), "cannot write empty"),
        (("other.json",), "other.json is not what tokencredit fidelity writes; run that command again"),
        (("broken.json",), "broken.json is not valid JSON"),
        ((), "the following arguments are required: DIR"),
    ],
)
def test_what_is_wrong_is_named(cli, tmp_path, arguments, error):
    run_folder(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    done = cli("report", *arguments)
    assert done.code == 2 and error in done.error
    assert not list(tmp_path.glob("*.html"))


def test_an_unreadable_comparison_is_named(cli, comparison):
    (comparison / "compare.json").write_text('{"arms": []}')
    assert "is not what tokencredit compare writes" in cli("report", comparison).error
