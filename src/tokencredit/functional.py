"""Plain tensors in, plain tensors out: for a training loop of one's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from tokencredit.credit import Options, TokenCredit, assign, get_strategy
from tokencredit.errors import UsageError
from tokencredit.policy import Policy
from tokencredit.rollouts import Rollouts


def token_importance(
    model: nn.Module,
    rollouts: Rollouts,
    strategy: str = "oar-p",
    *,
    token_budget: int | None = None,
    max_rows: int | None = None,
    **options: Any,
) -> Tensor:
    """How much each reasoning token moves the model's final answer.

    Args:
        model: a transformers causal language model; in float64 the result is float64, else float32.
        rollouts: the completions; advantages are not looked at.
        strategy: a name from `tokencredit.STRATEGIES`.
        token_budget, max_rows: tokens and rows in one forward pass; by default what the free memory holds.
        **options: fields of `tokencredit.Options`, such as outcome="last", counterfactual="pad", pad_token_id=0.

    Returns:
        (B, T) >= 0, 0 off the reasoning tokens and in rows without an outcome. In nats for `oar-p`.

    Raises:
        UsageError: an unknown strategy or option, or a model that attribution cannot work on.
    """
    rows = rollouts.readable
    policy = Policy(model, token_budget, max_rows)
    importance = torch.zeros(rollouts.shape, dtype=policy.dtype, device=rollouts.completion_ids.device)
    chosen = get_strategy(strategy)
    settings = _options(options)
    chosen.check(rollouts)
    if rows.any():
        credit = chosen.function(policy, rollouts.select(rows), settings)
        if credit.importance is not None:
            importance[rows] = credit.importance.to(importance)
    return importance


def token_weights(
    model: nn.Module,
    rollouts: Rollouts,
    strategy: str = "oar-g",
    *,
    token_budget: int | None = None,
    max_rows: int | None = None,
    **options: Any,
) -> Tensor:
    """The weight of each token: what the gate makes of its importance.

    Arguments as in `token_importance`; q=0.25, floor=0.1, beta=1.0 set the gate. Rows whose advantage is 0, if
    `rollouts` has advantages, are not computed.

    Returns:
        (B, T), mean 1 over the reasoning tokens of each row, 1 on all other tokens.

    Raises:
        UsageError: as in `token_importance`.
    """
    return _assign(model, rollouts, strategy, token_budget, max_rows, options).weights


def token_advantages(
    model: nn.Module,
    rollouts: Rollouts,
    strategy: str = "oar-g",
    *,
    token_budget: int | None = None,
    max_rows: int | None = None,
    **options: Any,
) -> Tensor:
    """A_i w_{i,t} + b_{i,t}: what goes into the policy-gradient loss of each token.

    Arguments as in `token_weights`; `rollouts.advantages` must be there.

    Returns:
        (B, T). Multiply by the completion mask before summing.

    Raises:
        UsageError: no advantages, or as in `token_importance`.
    """
    if rollouts.advantages is None:
        raise UsageError("token_advantages needs rollouts.advantages; see group_advantages")
    credit = _assign(model, rollouts, strategy, token_budget, max_rows, options)
    return credit.token_advantages(rollouts.advantages.to(credit.weights))


def _assign(
    model: nn.Module,
    rollouts: Rollouts,
    strategy: str,
    token_budget: int | None,
    max_rows: int | None,
    options: dict[str, Any],
) -> TokenCredit:
    policy = Policy(model, token_budget, max_rows)
    return assign(get_strategy(strategy), policy, rollouts, _options(options))


def _options(options: dict[str, Any]) -> Options:
    known = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; the options are {', '.join(known)}")
    return Options(**options)
