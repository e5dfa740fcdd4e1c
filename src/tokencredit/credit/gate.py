"""The conservative bi-level gate: suppress dull tokens, boost pivotal ones, keep the mass (arXiv 2601.07408)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gate:
    """Attributes: weights (B, T), mean 1 over the mask if mass is kept, 1 elsewhere; suppressed and boosted (B, T)
    bool, the tokens below and above tau."""

    weights: Tensor
    suppressed: Tensor
    boosted: Tensor


def bilevel_gate(
    importance: Tensor,
    mask: Tensor,
    q: float = 0.25,
    floor: float = 0.1,
    beta: float = 1.0,
    threshold: str = "quantile",
    mass: bool = True,
) -> Gate:
    """Weights from importance, per row over its masked tokens.

    s = log1p(I);  n = (s - min s) / (max s - min s);  tau = the q-quantile of n (linear interpolation), or q itself
    with threshold `absolute`;

        n < tau:  w = max(n / tau, floor)
        else:     w = 1 + beta (n - tau) / max(1 - tau, tiny)

    then w is rescaled so that the weights sum to their number, unless mass is off (a weight may then fall below the
    floor). A row without spread above rounding, with one token, or with an importance that is not finite gets 1.

    Args:
        importance: (B, T) >= 0, any values off the mask.
        mask: (B, T) bool, the reasoning tokens.

    Returns:
        Gate, its weights in the dtype of importance.
    """
    if not mask.any():
        return Gate(torch.ones_like(importance), torch.zeros_like(mask), torch.zeros_like(mask))
    normalised, gated = _normalise(importance, mask)
    tau = (
        _quantile(normalised, gated, q) if threshold == "quantile" else torch.full_like(normalised[:, :1], q)
    )
    tiny = torch.finfo(torch.float64).tiny
    low = torch.clamp(normalised / tau.clamp(min=tiny), min=floor)
    high = 1 + beta * (normalised - tau) / (1 - tau).clamp(min=tiny)
    weights = torch.where(normalised < tau, low, high) * gated
    if mass:
        weights = weights * (gated.sum(1) / weights.sum(1).clamp(min=tiny))[:, None]
    return Gate(
        weights=torch.where(gated, weights, 1.0).to(importance.dtype),
        suppressed=gated & (normalised < tau),
        boosted=gated & (normalised > tau),
    )


def _normalise(importance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """n in [0, 1] (B, T) float64, and the mask without the rows that have no spread to speak of."""
    scores = importance.double().log1p()
    finite = (scores.isfinite() | ~mask).all(1)
    low = scores.masked_fill(~mask, torch.inf).amin(1)
    high = scores.masked_fill(~mask, -torch.inf).amax(1)
    rounding = torch.finfo(torch.float64).eps * high.abs()
    spread = finite & (mask.sum(1) > 1) & (high - low > rounding)
    gated = mask & spread[:, None]
    width = torch.where(spread, high - low, 1.0)
    return torch.where(gated, (scores - low[:, None]) / width[:, None], 0.0), gated


def _quantile(values: Tensor, mask: Tensor, q: float) -> Tensor:
    """(B, 1) the q-quantile of each row's masked values, linear between neighbours; 0 where none are masked."""
    ordered = values.masked_fill(~mask, torch.inf).sort(1).values
    place = q * (mask.sum(1, keepdim=True) - 1).clamp(min=0).double()
    below = ordered.gather(1, place.floor().long())
    above = ordered.gather(1, place.ceil().long())
    between = torch.lerp(below, above, place - place.floor())
    return torch.where(mask.any(1, keepdim=True), between, 0.0)
