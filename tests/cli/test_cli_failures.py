"""Training that fails at its first step leaves nothing that looks like a run."""

from __future__ import annotations

import sys
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


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise KeyError('gold')", "reward raised KeyError: 'gold' (own_reward.py, line 2), at every row"),
        ("return [1.0]", "reward returned 1 rewards for 16 completions"),
        (
            "return [float('nan')] * len(completions)",
            "reward returned nan at row 1 of 16, whose prompt is 'S1 ",
        ),
    ],
)
def test_a_reward_that_fails(cli, tmp_path, monkeypatch, body, says):
    """One line, no traceback, nothing that looks like a run; and the next run can begin."""
    monkeypatch.delitem(sys.modules, "own_reward", raising=False)
    (tmp_path / "own_reward.py").write_text(f"def reward(completions, prompts, **kwargs):\n    {body}\n")
    outcome = cli(*TASK, "--reward_funcs", "own_reward.reward")
    assert outcome.code == 2
    assert f"training stopped: the reward function {says}" in outcome.error
    assert not (Path("run") / "run.json").exists()
