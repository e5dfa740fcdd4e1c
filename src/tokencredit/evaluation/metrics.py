"""What an evaluation reports, from the verdicts of n samples a problem.

Every metric is a mean over problems of one value a problem; its standard error is that of the mean over problems, for
samples of one problem are not independent (Miller 2024, arXiv 2411.00640).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokencredit.errors import UsageError

CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclass(frozen=True)
class Scored:
    """One judged sample.

    Attributes:
        right: whether its answer is the gold.
        vote: the number of its answer's class among the problem's samples; None without an answer.
        truncated: whether it was cut off at the token limit; None where the back-end does not tell.
        tokens: length of the completion; None where the back-end does not tell.
    """

    right: bool
    vote: int | None
    truncated: bool | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Estimate:
    """A mean over problems, its standard error and its 95% interval; None where one problem is all there is."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None


def pass_at(n: int, right: int, k: int) -> float:
    """The unbiased estimate of pass@k: 1 - C(n - right, k) / C(n, k), Chen et al. 2021 (arXiv 2107.03374), eq. 1.

    It is the share of all subsets of k of the n samples that hold a right one.

    Raises:
        UsageError: fewer than k samples, from which pass@k cannot be estimated without bias.
    """
    if not 1 <= k <= n:
        raise UsageError(f"pass@{k} needs at least {max(k, 1)} samples a problem, not {n}: raise --samples")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def majority_at(samples: Sequence[Scored], k: int) -> float:
    """maj@k: how often the commonest answer of k samples is right, the mean over the n // k disjoint blocks of k.

    Samples without an answer do not vote, and a block without votes is wrong. Where answers tie, each is taken equally
    often; an answer counts as right by the share of its votes that were judged right.

    Raises:
        UsageError: fewer than k samples.
    """
    if not 1 <= k <= len(samples):
        raise UsageError(
            f"maj@{k} needs at least {max(k, 1)} samples a problem, not {len(samples)}: raise --samples"
        )
    blocks = [samples[start : start + k] for start in range(0, len(samples) - k + 1, k)]
    return math.fsum(map(_majority, blocks)) / len(blocks)


def _majority(block: Sequence[Scored]) -> float:
    votes = Counter(sample.vote for sample in block if sample.vote is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [vote for vote, count in votes.items() if count == most]
    right = sum(sample.right for sample in block if sample.vote in winners)
    return right / (most * len(winners))


def summarise(problems: Sequence[Sequence[Scored]], ks: Sequence[int], seed: int = 0) -> dict[str, Estimate]:
    """All metrics of one task, by name, as shares between 0 and 1 (``tokens``: mean length of a completion).

    Args:
        problems: the samples of each problem, as many for each.
        ks: the k of pass@k and, above 2, of maj@k.
        seed: of the bootstrap.

    Returns:
        ``pass@k``; with several samples ``avg@n``, the share of right samples, which equals pass@1, and ``maj@k``;
        ``no-answer``; and, where the back-end tells, ``truncated`` and ``tokens``.

    Raises:
        UsageError: no problems, or a k above the number of samples.
    """
    if not problems or not problems[0]:
        raise UsageError("nothing to summarise: there are no samples")
    n = len(problems[0])
    values: dict[str, list[float]] = {}
    for k in ks:
        values[f"pass@{k}"] = [pass_at(n, sum(s.right for s in samples), k) for samples in problems]
    if n > 1:
        values[f"avg@{n}"] = [_share(samples, "right") for samples in problems]
    for k in ks:
        if k > 2:  # of two answers that differ each is taken half the time: maj@2 is pass@1
            values[f"maj@{k}"] = [majority_at(samples, k) for samples in problems]
    values["no-answer"] = [sum(s.vote is None for s in samples) / n for samples in problems]
    for name in ("truncated", "tokens"):
        if all(getattr(s, name) is not None for samples in problems for s in samples):
            values[name] = [_share(samples, name) for samples in problems]
    return {name: estimate(each, bounded=name != "tokens", seed=seed) for name, each in values.items()}


def _share(samples: Sequence[Scored], name: str) -> float:
    return math.fsum(getattr(sample, name) for sample in samples) / len(samples)


def estimate(values: Sequence[float], *, bounded: bool = True, seed: int = 0) -> Estimate:
    """The mean of one value a problem, its standard error (n - 1 below the root) and its interval, see `interval`."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count), *interval(values, bounded=bounded, seed=seed))


def interval(values: Sequence[float], *, bounded: bool = True, seed: int = 0) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the mean over problems, from 9,999 resamples of the problems.

    Where all values of a `bounded` metric are 0, or all are 1, resampling shows no spread, though the truth may lie
    beside it: then the exact binomial interval (Clopper-Pearson) of that many problems.
    """
    import numpy as np
    from scipy import stats

    if len(set(values)) == 1:
        if bounded and values[0] in (0.0, 1.0):
            exact: Any = stats.binomtest(round(sum(values)), len(values)).proportion_ci(CONFIDENCE)
            return float(exact.low), float(exact.high)
        return values[0], values[0]
    found = stats.bootstrap(
        (np.asarray(values, dtype=np.float64),),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, 2_000_000 // len(values)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)
