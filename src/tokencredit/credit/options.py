"""What a strategy may be told, with the published defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from tokencredit.errors import UsageError

OUTCOMES = ("last", "answer_mean", "answer_joint", "answer_kl")
COUNTERFACTUALS = ("pad", "alternative", "similar")
GRADIENTS = ("noise", "labels")
SALIENCIES = ("product", "norm")
LABELS_FROM = ("top", "sample")
OVERS = ("mean", "max")
THRESHOLDS = ("quantile", "absolute")


@dataclass(frozen=True)
class Options:
    """Settings of attribution and gate.

    Attributes:
        outcome: one of OUTCOMES; None is the strategy's published default.
        counterfactual: what replaces a token, one of COUNTERFACTUALS; None is `pad` for OAR-P, as published, and
            `similar` for path.
        pad_token_id: the id that the `pad` counterfactual puts in; None is the model's own, 0 if it has none.
        m: how many later reasoning tokens, those that attend most to the replaced one, OAR-P computes anew, and how
            many earlier ones, those that it attends to most, a token of a path asks for; 0: all, which is exact.
        gradient: how OAR-G gets its objective: `noise` (published) or `labels` (no noise, one forward). None is
            `noise`, but `labels` in half precision, where rounding drowns the noise.
        saliency: how OAR-G reduces a gradient to a number: `product` with the embedding (published) or `norm`.
        noise_std: standard deviation of the embedding noise.
        draws: number of noise draws, averaged.
        labels: number of labels of the `labels` form.
        labels_from: the `top` labels weighted by p0, or a `sample` of labels from p0, averaged.
        kappa, focus: of path, what a target leaks to the prompt, nats, and how much an edit must be about its target,
            see `tokencredit.credit.path`.
        q, floor, beta, threshold, mass: the gate, see `tokencredit.credit.gate`.
        bias: what the `bias` control adds to every reasoning token.
        coefficient: what the bonuses of `sibling` and `early-answer` are multiplied by.
        siblings: how many successes of its group a failed completion is compared with, those most like it.
        sibling_over: `mean` or `max` of the potential over them.
        most_steps: how many steps of a completion are told apart; of more, neighbours count as one.
        future_clip, half_life: of `fipo`, the largest boost and after how many tokens the future counts half.
        samples, sample_tokens, sample_temperature: of `spae`, how many answers of how many tokens are drawn after each
            step, and how.
        xi, alpha: of `spae`, the weight of its potential's gains, and how much of the advantage is left out at most
            once the answer was there.
        continuations, continuation_tokens: of `vine`, how many completions of how many tokens go on from each step.
        before_error, from_error: of `process-verified`, what steps of failures get before their first error and from
            it on.
        global_heads, amplified_share, amplification: of `attention-influence`, the share of heads that count, and that
            of tokens that get so many times the weight of the others.
        seed, step: with the draw and the row, the key of every random number.
    """

    outcome: str | None = None
    counterfactual: str | None = None
    pad_token_id: int | None = None
    m: int = 0
    gradient: str | None = None
    saliency: str = "product"
    noise_std: float = 1e-3
    draws: int = 1
    labels: int = 8
    labels_from: str = "top"
    kappa: float = 0.1
    focus: float = 2.0
    q: float = 0.25
    floor: float = 0.1
    beta: float = 1.0
    threshold: str = "quantile"
    mass: bool = True
    bias: float = 0.5
    coefficient: float = 1.0
    siblings: int = 1
    sibling_over: str = "mean"
    most_steps: int = 8
    future_clip: float = 0.2
    half_life: float = 32.0
    samples: int = 5
    sample_tokens: int = 10
    sample_temperature: float = 0.6
    xi: float = 0.5
    alpha: float = 0.5
    continuations: int = 9
    continuation_tokens: int = 64
    before_error: float = -0.05
    from_error: float = -0.1
    global_heads: float = 0.3
    amplified_share: float = 0.4
    amplification: float = 1.5
    seed: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        choices = {
            "outcome": (None, *OUTCOMES),
            "counterfactual": (None, *COUNTERFACTUALS),
            "gradient": (None, *GRADIENTS),
            "saliency": SALIENCIES,
            "labels_from": LABELS_FROM,
            "threshold": THRESHOLDS,
            "sibling_over": OVERS,
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                names = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise UsageError(f"{name} must be one of {names}, not {value!r}")
        for name in ("m", "draws", "labels", "siblings", "most_steps", "seed", "step"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
        for name in ("kappa", "focus", "q", "floor", "beta", "noise_std", "bias", "coefficient"):
            if not isinstance(getattr(self, name), Real) or not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} must be a finite number, not {getattr(self, name)!r}")
        for name in ("q", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} must lie in [0, 1], not {getattr(self, name)}")
        for name in ("beta", "noise_std", "m", "kappa", "focus"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("draws", "labels", "siblings", "most_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, least in _LEAST.items():
            _check_least(name, getattr(self, name), least)


_LEAST: dict[str, float] = {
    "future_clip": 0.0,
    "half_life": 1.0,
    "samples": 1,
    "sample_tokens": 1,
    "sample_temperature": 0.01,
    "continuations": 1,
    "continuation_tokens": 1,
    "before_error": -math.inf,
    "from_error": -math.inf,
    "global_heads": 0.0,
    "amplified_share": 0.0,
    "amplification": 1.0,
    "xi": 0.0,
    "alpha": 0.0,
}
"""The least value of further options; those with a whole least are whole numbers."""


def _check_least(name: str, value: float, least: float) -> None:
    kind, words = (Integral, "a whole") if isinstance(least, int) else (Real, "a finite")
    if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value):
        raise UsageError(f"{name} must be {words} number, not {value!r}")
    if value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}")
