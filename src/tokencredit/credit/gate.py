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
    weights = torch.ones_like(importance)
    suppressed = torch.zeros_like(mask)
    boosted = torch.zeros_like(mask)
    for row in range(mask.shape[0]):
        covered = mask[row]
        normalised = _normalise(importance[row, covered].double())
        if normalised is None:
            continue
        tau = torch.quantile(normalised, q) if threshold == "quantile" else normalised.new_tensor(q)
        tiny = torch.finfo(torch.float64).tiny
        low = torch.clamp(normalised / tau.clamp(min=tiny), min=floor)
        high = 1 + beta * (normalised - tau) / (1 - tau).clamp(min=tiny)
        row_weights = torch.where(normalised < tau, low, high)
        if mass:
            row_weights = row_weights * (row_weights.numel() / row_weights.sum())
        weights[row, covered] = row_weights.to(weights.dtype)
        suppressed[row, covered] = normalised < tau
        boosted[row, covered] = normalised > tau
    return Gate(weights, suppressed, boosted)


def _normalise(importance: Tensor) -> Tensor | None:
    """n in [0, 1], (R,) float64; None where the row has no spread to speak of."""
    scores = importance.log1p()
    if scores.numel() < 2 or not bool(scores.isfinite().all()):
        return None
    low, high = scores.min(), scores.max()
    rounding = torch.finfo(torch.float64).eps * high.abs()
    if high - low <= rounding:
        return None
    return (scores - low) / (high - low)
