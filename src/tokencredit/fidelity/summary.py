"""Means of the figures with their intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokencredit.evaluation.metrics import CONFIDENCE, RESAMPLES

Row = Mapping[str, Any]
Summary = dict[str, Any]
Values = Iterable[tuple[Any, float | None]]
"""(problem, value) of each completion; None where it has none."""

_NUMBERS = 2_000_000  # that are drawn at once


def summarise(rows: Sequence[Row], seed: int) -> Summary:
    """The means of one strategy's rows, one a completion.

    Returns:
        `metrics`: each figure's `value`, `stderr`, `low` and `high` (95% bootstrap interval) and `n`, the completions
        that have it; `by_role`: the same for each role's figures; `curves`: mean share of tokens, and for deletion and
        insertion the same as for figures, a list by level.
    """
    problems = [row["problem"] for row in rows]
    figures = dict.fromkeys(name for row in rows for name in row["figures"])
    roles = dict.fromkeys(role for row in rows for role in row.get("by_role", {}))
    by_role, levels = ("importance_share", "mean_weight"), range(len(rows[0]["curves"]["shares"]))
    games = ("shares", "deletion", "insertion")
    columns: dict[Hashable, Sequence[float | None]] = {
        **{name: [row["figures"].get(name) for row in rows] for name in figures},
        **{(role, name): [r["by_role"][role][name] for r in rows] for role in roles for name in by_role},
        **{(game, at): [row["curves"][game][at] for row in rows] for game in games for at in levels},
    }
    found = means({name: zip(problems, values, strict=True) for name, values in columns.items()}, seed)
    summary: Summary = {"metrics": {name: found[name] for name in figures}}
    if roles:
        summary["by_role"] = {role: {name: found[role, name] for name in by_role} for role in roles}
    summary["curves"] = {game: [found[game, at] for at in levels] for game in games}
    summary["curves"]["shares"] = [level["value"] for level in summary["curves"]["shares"]]
    return summary


def means(columns: Mapping[Hashable, Values], seed: int) -> dict[Hashable, Summary]:
    """Mean over problems of each problem's mean; values that are None or not finite are left out.

    Completions of one problem are not independent, so that it is problems that are drawn in the bootstrap; with one
    completion a problem they are the same.
    """
    found: dict[Hashable, Summary] = {}
    alike: dict[tuple[Any, ...], dict[Hashable, list[float]]] = {}
    for name, values in columns.items():
        by_problem: dict[Any, list[float]] = {}
        for problem, value in values:
            if value is not None and math.isfinite(value):
                by_problem.setdefault(problem, []).append(value)
        own = [math.fsum(each) / len(each) for each in by_problem.values()]
        found[name] = {**_moments(own), "n": sum(map(len, by_problem.values()))}
        alike.setdefault(tuple(by_problem), {})[name] = own
    for problems, group in alike.items():
        if len(problems) > 1:
            low, high = intervals(np.array(list(group.values())).T, seed)
            for name, *ends in zip(group, low.tolist(), high.tolist(), strict=True):
                found[name]["low"], found[name]["high"] = ends
    return found


def _moments(values: Sequence[float]) -> Summary:
    """Mean and standard error, and room for an interval."""
    count = len(values)
    mean = math.fsum(values) / count if count else None
    stderr = None
    if mean is not None and count > 1:
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        stderr = math.sqrt(variance / count)
    return {"value": mean, "stderr": stderr, "low": None, "high": None}


def intervals(
    columns: NDArray[np.float64], seed: int, resamples: int = RESAMPLES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95% percentile bootstrap intervals of many means over the same problems.

    Args:
        columns: (n, F), a value of each figure for each problem.

    Returns:
        Lower and upper ends, (F,). They are those of `evaluation.metrics.interval`, where each figure draws anew what
        here is drawn once for all: how often each problem is in each resample.
    """
    count = len(columns)
    random = np.random.default_rng(seed)
    found = []
    for start in range(0, resamples, block := max(1, _NUMBERS // count)):
        drawn = random.integers(count, size=(min(block, resamples - start), count))
        places = drawn + count * np.arange(len(drawn))[:, None]
        times = np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape)
        found.append(times.astype(np.float64) @ columns / count)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(np.concatenate(found), [tail, 100 - tail], axis=0)
    return low, high
