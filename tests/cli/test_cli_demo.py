"""`tokencredit demo`, shortened."""

from __future__ import annotations

import json
from pathlib import Path


def test_figures_and_report(cli):
    outcome = cli("demo", "--steps", 1, "--problems", 32)
    assert outcome.code == 0
    figures = json.loads(outcome.out.splitlines()[-1])
    assert (figures["task"], figures["steps"], figures["seeds"]) == ("query", 1, 1)
    assert list(figures["runs"]) == ["oar-g", "uniform"]
    for summary in figures["runs"].values():
        assert set(summary["accuracy"]) == {"before", "after"}
        assert summary["seconds_per_step"]["total"] > 0
    before = {summary["accuracy"]["before"] for summary in figures["runs"].values()}
    assert len(before) == 1
    assert "This is one seed" in outcome.out
    assert "queried result" in outcome.out and "attribution" in outcome.out
    page = Path(figures["report"]).read_text()
    assert "oar-g" in page and "uniform" in page
    assert figures["report"] in outcome.out


def test_it_can_be_run_again(cli):
    """The second time replaces the first."""
    for _ in range(2):
        assert cli("demo", "--steps", 1, "--problems", 8, "--output_dir", "d").code == 0
    assert len(Path("d/oar-g/metrics.jsonl").read_text().splitlines()) == 1


def test_refusals(cli):
    assert "no built-in task 'x'" in cli("demo", "--task", "x").error
    assert "must be at least 1" in cli("demo", "--steps", 0).error
    assert not Path("runs").exists()
