"""`--report_to`: refused at once where it cannot work; the credit's metrics are in what a tracker is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from cli_helpers import SMALL

STEPS = ("--task", "query", "--max_steps", 2, "--eval_problems", 0, *SMALL)


def missing(monkeypatch, name: str) -> None:
    """As if the package were not installed."""
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda asked, *rest: None if asked.startswith(name) else original(asked, *rest),
    )


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_refused_before_any_work(cli, monkeypatch, name):
    missing(monkeypatch, name)
    outcome = cli("train", *STEPS, "--report_to", name, "--output_dir", "run")
    assert outcome.code == 2
    assert f"report_to {name}: install the package {name}. " in outcome.error
    assert list(Path().iterdir()) == []


def test_an_unknown_tracker_is_refused(cli):
    outcome = cli("train", *STEPS, "--report_to", "nowhere", "--output_dir", "run")
    assert outcome.code == 2
    assert "report_to nowhere: nowhere is not supported, only" in outcome.error
    assert list(Path().iterdir()) == []


def test_a_tracker_is_told_of_the_credit(cli, monkeypatch):
    """Any callback of transformers' that is told what is logged; here one that keeps it."""
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    told = []

    class Keeper(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            told.append(dict(logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "keeper", Keeper)
    outcome = cli("train", *STEPS, "--report_to", "keeper", "--output_dir", "run")
    assert outcome.code == 0
    steps = [logs for logs in told if "reward" in logs]
    assert len(steps) == 2
    for logs in steps:
        assert {"credit/ess_ratio", "credit/seconds", "credit/share_of_step"} <= logs.keys()


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")
def test_tensorboard_reads_it_back(cli):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert cli("train", *STEPS, "--report_to", "tensorboard", "--output_dir", "run").code == 0
    (folder,) = Path("run/runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("train/credit/ess_ratio")] == [1, 2]
    assert {"train/reward", "train/credit/share_of_step"} <= set(events.Tags()["scalars"])
