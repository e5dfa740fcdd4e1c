"""Process-verified credit: steps that a verifier has judged, up to the first error (arXiv 2606.20068)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

PASSED = 0.5


def process_verified(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """A bonus on the first token of each step:

        b = phi_k - mean reward of the group,  phi_k = 1 if the whole passes (its reward is at least 0.5)
                                               else before_error = -0.05 before the first error, from_error = -0.1 on

    A step that no verdict was passed on is no error. A_i stays on all tokens, and b is not centred: as published for
    Lean tactics, groups in which all fail have a bonus too.
    """
    assert rollouts.rewards is not None and rollouts.groups is not None
    assert rollouts.steps is not None and rollouts.step_verdicts is not None
    mask, steps = rollouts.reasoning_mask, rollouts.steps
    rewards = rollouts.rewards.double()
    wrong = mask & (rollouts.step_verdicts == 0)
    after = torch.iinfo(steps.dtype).max
    first_error = torch.where(wrong, steps, after).amin(dim=1, keepdim=True)
    failed = torch.where(steps < first_error, options.before_error, options.from_error).double()
    phi = torch.where((rewards >= PASSED)[:, None], 1.0, failed)
    process = phi - _group_means(rewards, rollouts.groups)[:, None]
    return Credit(bonus=torch.where(_first_tokens(steps, mask), process, 0.0))


def _group_means(rewards: Tensor, groups: Tensor) -> Tensor:
    """(B,) mean reward of each row's group over those that were judged."""
    means = torch.zeros_like(rewards)
    for label in groups.unique():
        means[groups == label] = rewards[groups == label].nanmean()
    return torch.where(means.isnan(), 0.0, means)


def _first_tokens(steps: Tensor, mask: Tensor) -> Tensor:
    """(B, T) bool, the first reasoning token of each step."""
    numbers = torch.where(mask, steps, -1)
    highest = torch.cat([torch.full_like(numbers[:, :1], -1), numbers.cummax(dim=1).values[:, :-1]], dim=1)
    return mask & (numbers > highest)
