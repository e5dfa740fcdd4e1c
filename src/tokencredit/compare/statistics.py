"""The statistics of paired runs: intervals, the paired t test and its power, the interquartile mean.

A run of one arm is paired with the run of another that had the same warm start and the same seed. Strata are the warm
starts: what is resampled are the seeds within each. Values are shares between 0 and 1, or whatever else was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import integrate, optimize, special, stats

CONFIDENCE = 0.95
POWER = 0.8
RESAMPLES = 9999

_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(400)[part] / 2 + (0.5, 0.0)[part] for part in (0, 1))
"""Gauss and Legendre's rule between 0 and 1."""

Strata = Mapping[Any, Sequence[float]]
Curve = Sequence[tuple[float, float]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class PairedTest:
    """A paired t test of differences against zero.

    Attributes:
        pairs: their number.
        mean, sd: of the differences; sd with n - 1 below the root, None for one pair.
        interval: 95% interval of the mean; None for one pair.
        p: two-sided; None for one pair, and where all differences are the same, of which no test can be made.
    """

    pairs: int
    mean: float
    sd: float | None
    interval: Interval | None
    p: float | None


def paired_test(differences: Sequence[float]) -> PairedTest:
    """The paired t test (Student 1908) of the differences, at least one, through `scipy.stats.ttest_1samp`."""
    count = len(differences)
    mean = math.fsum(differences) / count
    if count < 2:
        return PairedTest(count, mean, None, None, None)
    sd = float(np.std(differences, ddof=1))
    if sd <= 1e-12 * max(map(abs, differences)):  # rounding alone
        return PairedTest(count, mean, 0.0, None, None)
    found: Any = stats.ttest_1samp(differences, 0.0)
    low, high = found.confidence_interval(CONFIDENCE)
    return PairedTest(count, mean, sd, (float(low), float(high)), float(found.pvalue))


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The p-values adjusted for there being several (Holm 1979): each may then be held against 0.05 itself.

    The k-th smallest of m is multiplied by m - k + 1 and raised to that before it. None stays None, and counts as one
    of the m.
    """
    adjusted = dict(p_values)
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    least = 0.0
    for index, (p, name) in enumerate(known):
        least = max(least, min(1.0, p * (len(p_values) - index)))
        adjusted[name] = least
    return adjusted


def stratified_interval(strata: Strata, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval | None:
    """The 95% percentile bootstrap interval of the mean of all values, each stratum resampled within itself.

    None where a stratum has fewer than two values, as resampling one shows no spread.
    """
    found = stratified_bands([list(values) for values in strata.values()], resamples=resamples, seed=seed)
    return None if found is None else (float(found[0]), float(found[1]))


def stratified_bands(
    strata: Sequence[Any], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[np.ndarray, np.ndarray] | None:
    """`stratified_interval` at many places at once.

    Args:
        strata: one array (..., n_s) a stratum, the runs last.

    Returns:
        Low and high, each (...); None where a stratum has fewer than two runs, or there is none.
    """
    arrays = [np.asarray(values, dtype=np.float64) for values in strata]
    if not arrays or any(values.shape[-1] < 2 for values in arrays):
        return None

    def mean(*parts: np.ndarray, axis: int = -1) -> Any:
        return sum(part.sum(axis=axis) for part in parts) / sum(part.shape[axis] for part in parts)

    found: Any = stats.bootstrap(
        arrays,
        mean,
        n_resamples=resamples,
        batch=max(1, 2_000_000 // max(values.size for values in arrays)),
        vectorized=True,
        axis=-1,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return np.asarray(found.confidence_interval.low), np.asarray(found.confidence_interval.high)


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter of the values, rounded down, is left out at each end.

    Agarwal et al. 2021 (arXiv 2108.13264) recommend it for few runs.
    """
    return float(stats.trim_mean(values, 0.25))


def power_of_paired_t(effect: float, pairs: int, alpha: float) -> float:
    """How often the two-sided paired t test at `alpha` shows a true mean difference of `effect` standard deviations.

    Args:
        effect: mean over standard deviation of the differences, at least 0.
        pairs: at least 2.
    """
    freedom, shift = pairs - 1, effect * math.sqrt(pairs)
    bound = float(stats.t.isf(alpha / 2, freedom))
    # Given the observed standard deviation the mean is normal; scipy's noncentral t gives NaN at the bounds of two or
    # three pairs.
    spread = stats.chi.ppf(_NODES, freedom) / math.sqrt(freedom)
    shown = special.ndtr(shift - bound * spread) + special.ndtr(-shift - bound * spread)
    return float(_WEIGHTS @ shown)


def detectable_difference(sd: float, pairs: int, alpha: float, power: float = POWER) -> float | None:
    """The smallest true mean difference that the paired t test would show with the given power.

    Args:
        sd: standard deviation of the differences; the answer is in its unit.
        pairs: how many; below two there is no test, and None is returned.
        alpha: level of the test.
    """
    return None if pairs < 2 else sd * _detectable_effect(pairs, alpha, power)


@lru_cache
def _detectable_effect(pairs: int, alpha: float, power: float) -> float:
    highest = 1.0
    while power_of_paired_t(highest, pairs, alpha) < power:
        highest *= 2
    return float(optimize.brentq(lambda d: power_of_paired_t(d, pairs, alpha) - power, 0.0, highest))


def curve_average(curve: Curve) -> float:
    """The mean height of the curve between its first and last step, by the trapezoidal rule."""
    steps, values = np.asarray(curve, dtype=np.float64).T
    if len(steps) == 1:
        return float(values[0])
    return float(integrate.trapezoid(values, steps) / (steps[-1] - steps[0]))


def value_at_time(curve: Curve, clock: Curve, seconds: float) -> float:
    """The curve's value after `seconds`, read off a straight line between its points.

    Args:
        curve: (step, value), in order of steps.
        clock: (step, seconds since the start), in order of steps.
        seconds: beyond the last point its value counts.
    """
    steps, values = np.asarray(curve, dtype=np.float64).T
    clock_steps, clock_seconds = np.asarray(clock, dtype=np.float64).T
    return float(np.interp(seconds, np.interp(steps, clock_steps, clock_seconds), values))


def sampling_error(share: float, samples: int) -> float:
    """The standard error of a share of right ones among independent samples; at most 1 / (2 sqrt(samples))."""
    return math.sqrt(share * (1 - share) / samples)
