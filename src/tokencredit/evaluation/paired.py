"""Is one evaluation better than another? The difference over the same problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokencredit.errors import UsageError
from tokencredit.evaluation.metrics import estimate

FEWEST = 6
"""Differing problems below which nothing is shown: all on one side, 5 give the sign test p = 2 / 2**5 > 0.05."""


@dataclass(frozen=True)
class Difference:
    """The first evaluation minus the second, over the problems that both hold.

    Attributes:
        problems: how many both hold.
        first, second: the mean scores there.
        value, stderr, low, high: the mean difference, its standard error and 95% bootstrap interval over problems.
        better, worse: problems with a higher and a lower score in the first.
        words: what that shows.
    """

    problems: int
    first: float
    second: float
    value: float
    stderr: float | None
    low: float | None
    high: float | None
    better: int
    worse: int
    words: str


def difference(first: Mapping[str, float], second: Mapping[str, float], seed: int = 0) -> Difference:
    """The paired difference of two evaluations' scores by problem; a score is the share of right samples.

    Pairing takes out how hard each problem is, which is most of the spread between problems.

    Raises:
        UsageError: no problem is in both.
    """
    shared = [name for name in first if name in second]
    if not shared:
        raise UsageError("the two evaluations share no problem, so there is nothing to compare")
    deltas = [first[name] - second[name] for name in shared]
    found = estimate(deltas, bounded=False, seed=seed)
    better, worse = sum(delta > 0 for delta in deltas), sum(delta < 0 for delta in deltas)
    return Difference(
        problems=len(shared),
        first=sum(first[name] for name in shared) / len(shared),
        second=sum(second[name] for name in shared) / len(shared),
        value=found.value,
        stderr=found.stderr,
        low=found.low,
        high=found.high,
        better=better,
        worse=worse,
        words=_words(found.low, found.high, better + worse),
    )


def _words(low: float | None, high: float | None, differing: int) -> str:
    if low is None or high is None or low <= 0 <= high:
        return "no difference shown"
    if differing < FEWEST:
        return f"no difference shown: only {differing} problems differ"
    return "higher" if low > 0 else "lower"
