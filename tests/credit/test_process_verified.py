"""Process-verified credit by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models import family, llama
from tokencredit import STRATEGIES, Options
from tokencredit.credit import assign
from tokencredit.policy import Policy


def test_by_hand():
    """Rewards of the groups: 1, 0, 0, 1 (mean 1/2), 0, 1, 0 (1/3), 0, 0."""
    rollouts = family()
    verdicts = torch.full_like(rollouts.steps, -1)
    verdicts[rollouts.steps == 0] = 1
    verdicts[(rollouts.steps == 1) & (torch.arange(9) == 1)[:, None]] = 0  # row 1 errs at its second step
    verdicts[(rollouts.steps == 2) & (torch.arange(9) == 1)[:, None]] = 1
    verdicts[(rollouts.steps == 1) & (torch.arange(9) == 5)[:, None]] = 0  # row 5 too, but it passes
    rollouts = dataclasses.replace(rollouts, step_verdicts=verdicts)
    found = assign(STRATEGIES["process-verified"], Policy(llama()), rollouts, Options())

    def bonus(row: int) -> list[float]:
        values = found.bonus[row]
        starts = [
            rollouts.steps[row].tolist().index(step) for step in range(int(rollouts.steps[row].max()) + 1)
        ]
        assert values.count_nonzero() == len(starts)
        return values[starts].tolist()

    assert bonus(0) == pytest.approx([0.5] * 3)
    assert bonus(1) == pytest.approx([-0.55, -0.6, -0.6])
    assert bonus(2) == pytest.approx([-0.55] * 2)  # no error was found
    assert bonus(5) == pytest.approx([2 / 3] * 3)
    assert bonus(7) == pytest.approx([-0.05] * 2)  # all of its group failed
    per_token = found.token_advantages(rollouts.advantages)
    assert per_token[1, :3].tolist() == pytest.approx([-0.5 - 0.55, -0.5, -0.5])


def test_rows_that_nobody_judged_leave_the_mean():
    rewards = torch.tensor([1.0, torch.nan, 0, 1, 0, 1, 0, 0, 0], dtype=torch.float64)
    rollouts = dataclasses.replace(family(), rewards=rewards)
    found = assign(STRATEGIES["process-verified"], Policy(llama()), rollouts, Options(from_error=-1.0))
    assert float(found.bonus[0, 0]) == pytest.approx(1 - 2 / 3)
    assert found.bonus.min() < -1
