"""Credit: who earned the reward, token by token. Imports torch alone.

`STRATEGIES` is the one table of names. A strategy is a function (policy, rollouts, options) -> Credit; other packages
add theirs through the entry-point group `tokencredit.strategies` (each entry a `Strategy`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit import controls
from tokencredit.credit.advantages import group_advantages
from tokencredit.credit.attention_influence import attention_influence
from tokencredit.credit.base import Credit, Strategy
from tokencredit.credit.blame import entropy_blame
from tokencredit.credit.early_answer import early_answer
from tokencredit.credit.entropy_shaping import entropy_shaping
from tokencredit.credit.fipo import fipo
from tokencredit.credit.gate import bilevel_gate
from tokencredit.credit.gradient import oar_g
from tokencredit.credit.options import Options
from tokencredit.credit.path import path
from tokencredit.credit.path_sibling import path_sibling
from tokencredit.credit.perturbation import oar_p
from tokencredit.credit.process_verified import process_verified
from tokencredit.credit.sibling import sibling
from tokencredit.credit.spae import spae
from tokencredit.credit.span_masking import span_masking
from tokencredit.credit.vine import vine
from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

__all__ = [
    "STRATEGIES",
    "Credit",
    "Options",
    "Strategy",
    "TokenCredit",
    "assign",
    "get_strategy",
    "group_advantages",
]

_ROUNDING = 1e-6  # weights this near 1 are 1, whatever passes they came from

STRATEGIES: dict[str, Strategy] = {
    "oar-p": Strategy(oar_p, "how far the outcome moves when the token is replaced"),
    "oar-g": Strategy(
        oar_g, "how far the outcome would move, from one gradient to the token's embedding", in_graph=True
    ),
    "path": Strategy(path, "how strong a path leads from the token to the answer, through later tokens", m=4),
    "sibling": Strategy(
        sibling,
        "bonus: after which step of a failure a sibling's success was out of reach",
        additive=True,
        needs=("advantages", "groups", "steps"),
    ),
    "path-sibling": Strategy(
        path_sibling,
        "weights of path, and a bonus: those of sibling times the weights",
        m=4,
        additive=True,
        needs=("advantages", "groups", "steps"),
    ),
    "early-answer": Strategy(
        early_answer,
        "bonus: a baseline from the right answer's probability after each step",
        additive=True,
        needs=("advantages", "groups", "steps", "gold_ids", "ask_ids"),
    ),
    "entropy-blame": Strategy(
        entropy_blame, "in failures alone: the entropy of the token's prediction", needs=("advantages",)
    ),
    "entropy-shaping": Strategy(entropy_shaping, "the entropy of the token's prediction over its mean"),
    "span-masking": Strategy(
        span_masking, "how much less likely the answer is without the token's step", needs=("steps",)
    ),
    "fipo": Strategy(
        fipo,
        "how much more likely the update makes what follows; in later optimizer steps of a generation",
        needs=("old_logps",),
        at_loss=True,
    ),
    "spae": Strategy(
        spae,
        "bonus: gains of a step potential, from answers that are asked for and sampled after each step",
        additive=True,
        centred=False,
        needs=("advantages", "steps", "gold_ids", "ask_ids"),
        samples=True,
    ),
    "vine": Strategy(
        vine,
        "bonus: what a step adds to the mean reward of completions that go on from it",
        additive=True,
        centred=False,
        needs=("advantages", "steps", "grader"),
        samples=True,
    ),
    "process-verified": Strategy(
        process_verified,
        "bonus on the first token of each step: whether a verifier found an error up to it",
        additive=True,
        centred=False,
        needs=("rewards", "groups", "steps", "step_verdicts"),
    ),
    "attention-influence": Strategy(
        attention_influence, "how much later tokens look back at the token, in the heads that look far back"
    ),
    "uniform": Strategy(controls.uniform, "control: all tokens alike, plain GRPO"),
    "random": Strategy(controls.random, "control: uniform random importance"),
    "position": Strategy(controls.position, "control: later tokens matter more"),
    "entropy": Strategy(controls.entropy, "control: the entropy of the token's prediction"),
    "inverted": Strategy(controls.inverted, "control: the reverse of oar-g"),
    "bias": Strategy(controls.bias, "control: a constant added to every token", additive=True, centred=False),
}


def get_strategy(name: str) -> Strategy:
    """The strategy of that name, ours or one that another package registered.

    Raises:
        UsageError: no such strategy; the message lists the names.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    others = {entry.name: entry for entry in entry_points(group="tokencredit.strategies")}
    if name in others:
        try:
            strategy = others[name].load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"the credit strategy {name!r} of another package does not load: {error}"
            ) from error
        if not isinstance(strategy, Strategy):
            raise UsageError(f"the credit strategy {name!r} of another package is no tokencredit.Strategy")
        return strategy
    raise UsageError(f"unknown credit strategy {name!r}; use one of {', '.join([*STRATEGIES, *others])}")


NOT_FINITE = "rows whose credit is NaN or infinite, as such logits make it, get weight 1"


@dataclass(frozen=True)
class TokenCredit:
    """Credit with nothing left to imply, (B, T) each.

    Attributes:
        importance: >= 0, 0 off the reasoning and in rows that were left out.
        weights: mean 1 over the reasoning tokens, 1 elsewhere.
        bonus: 0 off the reasoning.
        suppressed, boosted: bool, the tokens below and above the gate's tau.
        rows: (B,) bool, the rows that the strategy gave credit to.
        lost: (B,) bool, further rows that it was asked about and found a NaN or an infinite number for; by default
            none, ().
    """

    importance: Tensor
    weights: Tensor
    bonus: Tensor
    suppressed: Tensor
    boosted: Tensor
    rows: Tensor
    lost: Tensor = field(default_factory=lambda: torch.tensor(False))

    def token_advantages(self, advantages: Tensor) -> Tensor:
        """A_i w_{i,t} + b_{i,t}, (B, T)."""
        return advantages[:, None] * self.weights + self.bonus


def assign(
    strategy: Strategy, policy: Policy, rollouts: Rollouts, options: Options, *, warns: bool = True
) -> TokenCredit:
    """Runs a strategy on the rows that can use it and fills in what it implies.

    A strategy without a bonus never sees rows whose credit is known without it: zero advantage, no outcome to read,
    fewer than two reasoning tokens. Their weights are 1, and so are those of rows that came out NaN or infinite, as
    the model's logits do after a mishap; `lost` tells which, and with `warns` a warning says so.

    Raises:
        UsageError: the rollouts lack what the strategy needs.
    """
    strategy.check(rollouts)
    if strategy.additive:
        rows = rollouts.reasoning_mask.any(dim=1)
    else:
        rows = rollouts.readable & (rollouts.reasoning_mask.sum(dim=1) > 1)
        if rollouts.advantages is not None:
            rows = rows & (rollouts.advantages != 0)
    zeros = torch.zeros(rollouts.shape, dtype=policy.dtype, device=rollouts.completion_ids.device)
    importance, bonus = zeros.clone(), zeros.clone()
    weights = torch.ones_like(zeros)
    suppressed, boosted = zeros.bool(), zeros.bool()
    lost, carrying = torch.zeros_like(rows), torch.zeros_like(rows)
    if rows.any() or policy.in_step:
        asked = rollouts.select(rows)
        credit, lost[rows] = _finite(strategy.function(policy, asked, options), asked.reasoning_mask)
        if warns and lost.any():
            warnings.warn(NOT_FINITE, stacklevel=2)
        if credit.importance is not None:
            importance[rows] = credit.importance.to(zeros)
        if credit.weights is not None:
            weights[rows] = torch.where(asked.reasoning_mask, credit.weights.to(zeros), weights[rows])
        elif credit.importance is not None:
            gate = bilevel_gate(
                credit.importance,
                asked.reasoning_mask,
                options.q,
                options.floor,
                options.beta,
                options.threshold,
                options.mass,
            )
            weights[rows] = gate.weights.to(zeros)
            suppressed[rows], boosted[rows] = gate.suppressed, gate.boosted
        if credit.bonus is not None:
            added = credit.bonus.to(zeros) * asked.reasoning_mask
            carrying[rows] = (added != 0).any(dim=1)
            bonus[rows] = _centred(policy, added, asked.reasoning_mask) if strategy.centred else added
    given = rows & ~lost
    if strategy.additive:
        moved = (weights - 1).abs() > _ROUNDING
        given = given & (carrying | moved.any(dim=1))
    return TokenCredit(importance, weights, bonus, suppressed, boosted, given, lost)


def _finite(credit: Credit, mask: Tensor) -> tuple[Credit, Tensor]:
    """Neutral credit in rows with a number on the mask that is not finite, and which rows (B,) those are."""
    neutral = {"importance": 0.0, "weights": 1.0, "bonus": 0.0}
    given = {name: values for name in neutral if (values := getattr(credit, name)) is not None}
    lost = mask.new_zeros(mask.shape[0])
    for values in given.values():
        lost = lost | (mask & ~values.isfinite()).any(dim=1)
    return Credit(**{name: _filled(values, lost, neutral[name]) for name, values in given.items()}), lost


def _filled(values: Tensor, rows: Tensor, value: float) -> Tensor:
    return values.masked_fill(rows[:, None], value)


def _centred(policy: Policy, bonus: Tensor, mask: Tensor) -> Tensor:
    """The bonus less its mean over the reasoning tokens, of all ranks, of the rows that carry one."""
    carrying = mask & (bonus != 0).any(dim=1, keepdim=True)
    total, count = policy.total(torch.stack([bonus[carrying].sum(), carrying.sum().to(bonus)]))
    return torch.where(carrying, bonus - total / count.clamp(min=1), bonus)
