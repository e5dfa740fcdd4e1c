"""`tokencredit demo`, shortened."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tokencredit.cli import train
from tokencredit.cli.callbacks import SafeStops
from tokencredit.cli.demo import role_table


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


@pytest.mark.slow
def test_it_can_be_run_again(cli):
    """The second time replaces the first."""
    for _ in range(2):
        assert cli("demo", "--steps", 1, "--problems", 8, "--output_dir", "d").code == 0
    assert len(Path("d/oar-g/metrics.jsonl").read_text().splitlines()) == 1


def test_an_interrupted_demo_leaves_nothing_of_the_one_before(cli, monkeypatch):
    flags = ("demo", "--problems", 8, "--output_dir", "d")
    assert cli(*flags, "--steps", 1).code == 0
    Path("d/notes.txt").write_text("mine")

    class Stopped(SafeStops):
        def __enter__(self):
            super().__enter__()
            os.kill(os.getpid(), signal.SIGTERM)
            return self

    monkeypatch.setattr("tokencredit.cli.callbacks.SafeStops", Stopped)
    outcome = cli(*flags, "--steps", 3)
    assert outcome.code == 130
    assert outcome.error == "the demo was interrupted; running it again starts anew"
    assert "--resume" not in outcome.err
    assert len(Path("d/oar-g/metrics.jsonl").read_text().splitlines()) == 1
    assert not Path("d/oar-g/model.safetensors").exists()
    assert {path.name for path in Path("d").iterdir()} == {"notes.txt", "oar-g", "uniform"}
    assert list(Path("d/uniform").iterdir()) == []


def test_a_demo_stopped_at_once(cli, monkeypatch):
    def stopped(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "train", stopped)
    outcome = cli("demo", "--steps", 1, "--problems", 8)
    assert outcome.code == 130
    assert outcome.err.count("the demo was interrupted; running it again starts anew") == 1


def test_measured_and_given_credit_are_told_apart():
    row = {"token_share": 0.5, "importance_share": 0.75, "credit_share": 0.6, "mean_weight": 1.2}
    headers = [column.header for column in role_table({"share_by_role": {"operand": row}}).columns]
    assert headers == ["role", "tokens", "importance", "credit (after the gate)", "mean weight"]


@pytest.mark.parametrize("file", ["d", "d/oar-g", "d/uniform"])
def test_a_file_in_the_place_of_a_folder(cli, file):
    Path(file).parent.mkdir(exist_ok=True)
    if file != "d":
        Path("d/report.html").write_text("old")
    Path(file).write_text("x")
    outcome = cli("demo", "--steps", 1, "--output_dir", "d")
    assert outcome.code == 2
    assert f"output_dir {file} is a file; name a folder" in outcome.error
    assert Path(file).read_text() == "x"
    assert file == "d" or Path("d/report.html").exists()


def test_refusals(cli):
    assert "no built-in task 'x'" in cli("demo", "--task", "x").error
    assert "must be at least 1" in cli("demo", "--steps", 0).error
    assert not Path("runs").exists()
