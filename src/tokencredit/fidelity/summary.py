"""Means of the figures with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tokencredit.evaluation.metrics import estimate

Row = Mapping[str, Any]
Summary = dict[str, Any]


def summarise(rows: Sequence[Row], seed: int) -> Summary:
    """The means of one strategy's rows, one a completion.

    Returns:
        `metrics`: each figure's `value`, `stderr`, `low` and `high` (95% bootstrap interval) and `n`, the completions
        that have it; `by_role`: the same for each role's figures; `curves`: mean share of tokens, and for deletion and
        insertion the same as for figures, a list by level.
    """
    names = dict.fromkeys(name for row in rows for name in row["figures"])
    found: Summary = {
        "metrics": {
            name: mean(((r["problem"], r["figures"].get(name)) for r in rows), seed) for name in names
        }
    }
    roles = dict.fromkeys(role for row in rows for role in row.get("by_role", {}))
    if roles:
        found["by_role"] = {
            role: {
                name: mean(((r["problem"], r["by_role"][role][name]) for r in rows), seed)
                for name in ("importance_share", "mean_weight")
            }
            for role in roles
        }
    curves = [(row["problem"], row["curves"]) for row in rows]
    found["curves"] = {
        name: [
            mean(((problem, curve[name][level]) for problem, curve in curves), seed)
            for level in range(len(rows[0]["curves"][name]))
        ]
        for name in ("shares", "deletion", "insertion")
    }
    found["curves"]["shares"] = [level["value"] for level in found["curves"]["shares"]]
    return found


def mean(values: Iterable[tuple[Any, float | None]], seed: int) -> Summary:
    """Mean over problems of each problem's mean, for (problem, value) pairs; values that are None are left out.

    Completions of one problem are not independent, so that it is problems that are drawn in the bootstrap; with one
    completion a problem they are the same.
    """
    by_problem: dict[Any, list[float]] = {}
    for problem, value in values:
        if value is not None and math.isfinite(value):
            by_problem.setdefault(problem, []).append(value)
    if not by_problem:
        return {"value": None, "stderr": None, "low": None, "high": None, "n": 0}
    means = [math.fsum(each) / len(each) for each in by_problem.values()]
    return {**asdict(estimate(means, bounded=False, seed=seed)), "n": sum(map(len, by_problem.values()))}
