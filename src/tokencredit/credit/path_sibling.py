"""Path x sibling: where credit flows, times whether the step was right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokencredit.credit.base import Credit
from tokencredit.credit.options import Options
from tokencredit.credit.path import path
from tokencredit.credit.sibling import sibling

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def path_sibling(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """(A_i + b_t) w_t, with w_t the weights of `path` and b_t the bonus of `sibling`.

    A failure's steps that were right are spared and the one that was not is blamed, and within a step most of either
    goes to the tokens through which the answer came about. Completions without a bonus have the weights of `path`.
    """
    assert rollouts.advantages is not None
    asked = rollouts.readable & (rollouts.advantages != 0)
    where = path(policy, rollouts.select(asked), options)
    whether = sibling(policy, rollouts, options).bonus
    assert where.importance is not None and where.weights is not None and whether is not None
    importance = torch.zeros_like(whether)
    weights = torch.ones_like(whether)
    importance[asked], weights[asked] = where.importance.to(whether), where.weights.to(whether)
    return Credit(importance=importance, weights=weights, bonus=whether * weights)
