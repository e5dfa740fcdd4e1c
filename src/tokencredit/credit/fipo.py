"""FIPO: tokens whose future the update makes more likely get more of the advantage (arXiv 2603.19835)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.mass import mean_one
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

HIGHEST_RATIO = 10.0


def fipo(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """w_t = clip(exp(sum_{k>=t} gamma^(k-t) dlogp_k), 1, 1 + future_clip), rescaled to mean 1 over the reasoning.

    dlogp_k is the log-probability of completion token k under the policy as it is now less that under the policy that
    wrote it, nats; 0 for tokens that have become more than 10 times as likely. gamma = 2^(-1 / half_life): what happens
    32 tokens on counts half. future_clip = 0.2. Rescaling is ours; mass = False is as published. All weights are 1
    where the policy is still the one that wrote the completions, so that this says something in later optimizer steps
    alone. The public code, under Apache-2.0, also lowers the weight of failures' tokens that have become that likely.
    """
    assert rollouts.old_logps is not None
    moved = (policy.token_logps(rollouts) - rollouts.old_logps).double()
    counted = rollouts.completion_mask & ~(moved > math.log(HIGHEST_RATIO))
    future = discounted_future(torch.where(counted, moved, 0.0), 2 ** (-1 / options.half_life))
    influence = future.exp().clamp(1.0, 1.0 + options.future_clip)
    return Credit(weights=mean_one(influence, rollouts.reasoning_mask) if options.mass else influence)


def discounted_future(values: Tensor, gamma: float) -> Tensor:
    """(B, T) sum_{k>=t} gamma^(k-t) values_k."""
    sums = values.clone()
    for token in range(values.shape[1] - 2, -1, -1):
        sums[:, token] += gamma * sums[:, token + 1]
    return sums
