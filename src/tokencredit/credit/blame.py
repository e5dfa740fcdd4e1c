"""Blame by entropy: in failures alone, where the policy was least sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokencredit.credit.base import Credit
from tokencredit.credit.controls import entropy
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def entropy_blame(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t = H(prediction of token t), nats, in completions whose advantage is below 0; none in the others, which the
    gate leaves at weight 1."""
    assert rollouts.advantages is not None
    failed = rollouts.advantages < 0
    importance = torch.zeros(rollouts.shape, dtype=policy.dtype, device=rollouts.completion_ids.device)
    found = entropy(policy, rollouts.select(failed), options).importance
    assert found is not None
    importance[failed] = found.to(importance)
    return Credit(importance=importance)
