"""How well scores put the right tokens first. Ties count half, or as if they were broken at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

Vector = NDArray[np.float64]
Figures = dict[str, float | None]
"""Figures of one completion by name; None where it has none."""


def auroc(scores: ArrayLike, positives: ArrayLike) -> float | None:
    """The share of pairs (positive, negative) in which the positive has the higher score; equal scores count half.

    This is the Mann-Whitney U of the positives over the number of pairs.

    Args:
        scores: (n,).
        positives: (n,) bool.

    Returns:
        A number in [0, 1]; None without a positive, without a negative, or where a score is not finite.
    """
    values, right = _checked(scores, positives)
    first, second = int(right.sum()), int((~right).sum())
    if not first or not second or not np.isfinite(values).all():
        return None
    return float((rankdata(values)[right].sum() - first * (first + 1) / 2) / (first * second))


def average_precision(scores: ArrayLike, positives: ArrayLike) -> float | None:
    """sum_i (R_i - R_{i-1}) P_i over the distinct scores from the highest down, P and R precision and recall there.

    Arguments and None as in `auroc`, but negatives may be missing. Equal scores all around give the share of positives.
    """
    values, right = _checked(scores, positives)
    if not right.any() or not np.isfinite(values).all():
        return None
    _, level = np.unique(-values, return_inverse=True)
    hits = np.bincount(level, weights=right)
    precision = hits.cumsum() / np.bincount(level).cumsum()
    return float((hits * precision).sum() / hits.sum())


def precision_at_positives(scores: ArrayLike, positives: ArrayLike) -> float | None:
    """The share of positives among as many top tokens as there are positives, expected over random orders of ties.

    Arguments and None as in `average_precision`.
    """
    values, right = _checked(scores, positives)
    if not right.any() or not np.isfinite(values).all():
        return None
    return float(top(values, int(right.sum()))[right].sum() / right.sum())


def top(scores: ArrayLike, k: int) -> Vector:
    """(n,) the probability of each to be among the k highest, ties broken at random; it sums to k <= n."""
    values = np.asarray(scores, dtype=np.float64)
    threshold = np.sort(values)[len(values) - k]
    above, tied = values > threshold, values == threshold
    chance: Vector = above + tied * (k - above.sum()) / tied.sum()
    return chance


def _checked(scores: ArrayLike, positives: ArrayLike) -> tuple[Vector, NDArray[np.bool_]]:
    return np.asarray(scores, dtype=np.float64), np.asarray(positives, dtype=np.bool_)
