"""Entropy shaping: tokens that the policy was unsure of get more of the advantage (GTPO, arXiv 2508.04349)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokencredit.credit.base import Credit
from tokencredit.credit.controls import entropy
from tokencredit.credit.mass import mean_one
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def entropy_shaping(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """w_t = H_t / mean H, with H_t the entropy of token t's prediction in nats and the mean over the reasoning.

    GTPO relates a token's entropy to that of the tokens at the same place of the group's other completions, adds the
    ratio to the reward of successes and takes its inverse for failures. This is the ratio alone, within the completion
    and for both signs, so that the weights share out what there is. Unlike the `entropy` control it has no gate: a
    token of no entropy has weight 0.
    """
    values = entropy(policy, rollouts, options).importance
    assert values is not None
    return Credit(importance=values, weights=mean_one(values, rollouts.reasoning_mask))
