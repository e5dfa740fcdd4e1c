"""Controls: credit that knows nothing of the outcome, or the reverse of it. All but `bias` go through the same gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.gradient import oar_g
from tokencredit.credit.keys import keyed_generator
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def uniform(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """Every reasoning token alike: weights 1, plain GRPO."""
    return Credit(importance=rollouts.reasoning_mask.to(policy.dtype))


def random(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t uniform in [0, 1), keyed by (seed, step, row)."""
    importance = torch.zeros(rollouts.shape, dtype=policy.dtype)
    keys = rollouts.row_keys
    assert keys is not None
    for row, key in enumerate(keys.tolist()):
        tokens = rollouts.reasoning_mask[row].cpu()
        generator = keyed_generator(options.seed, options.step, 0, key)
        importance[row, tokens] = torch.rand(int(tokens.sum()), generator=generator).to(importance.dtype)
    return Credit(importance=importance.to(rollouts.completion_ids.device))


def position(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t = t, counted over the reasoning tokens from 0: later tokens matter more."""
    ranks = rollouts.reasoning_mask.cumsum(dim=1) - 1
    return Credit(importance=(ranks * rollouts.reasoning_mask).to(policy.dtype))


def entropy(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t = H(prediction of token t), nats."""
    values = policy.per_token(rollouts, _entropy)
    return Credit(importance=values.to(policy.dtype) * rollouts.reasoning_mask)


def inverted(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """max_t I_t - I_t of OAR-G: boosts what OAR-G suppresses."""
    importance = oar_g(policy, rollouts, options).importance
    assert importance is not None
    highest = importance.max(dim=1, keepdim=True).values
    return Credit(importance=(highest - importance) * rollouts.reasoning_mask)


def bias(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """A constant added to every reasoning token of every row, whatever its advantage."""
    return Credit(bonus=options.bias * rollouts.reasoning_mask.to(policy.dtype))


def _entropy(logits: Tensor, ids: Tensor) -> Tensor:
    log_p = logits.double().log_softmax(-1)
    return -torch.where(log_p.isneginf(), 0.0, log_p.exp() * log_p).sum(-1)
