"""Training that fails at its first step leaves nothing that looks like a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import SMALL

TASK = ("train", "--task", "query", "--eval_problems", 0, *SMALL, "--max_steps", 1, "--output_dir", "run")


def test_a_setting_that_the_trainer_finds_out_late(cli):
    outcome = cli(*TASK, "--loss_type", "foo")
    assert outcome.code == 2
    assert outcome.error.endswith("training stopped: Unknown loss type: foo")
    assert not (Path("run") / "run.json").exists()
    assert cli(*TASK).code == 0


def test_a_reward_that_raises_keeps_its_traceback(cli, tmp_path, monkeypatch):
    (tmp_path / "raising.py").write_text("def reward(completions, **kwargs):\n    raise KeyError('gold')\n")
    with pytest.raises(KeyError, match="gold"):
        cli(*TASK, "--reward_funcs", "raising.reward")
    assert not (Path("run") / "run.json").exists()
