"""The figures of one completion under one credit, where the truth about its tokens is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokencredit.fidelity.ranking import (
    Figures,
    Vector,
    auroc,
    average_precision,
    precision_at_positives,
)


def path_figures(scores: Vector, on_path: Sequence[bool]) -> Figures:
    """How well the scores of the reasoning tokens, (n,), find those on the path to the answer."""
    positives = np.asarray(on_path, dtype=np.bool_)
    return {
        "path_auroc": auroc(scores, positives),
        "path_ap": average_precision(scores, positives),
        "path_precision": precision_at_positives(scores, positives),
    }


def step_figures(blame: Vector, on_path: Sequence[bool], right: Sequence[bool | None]) -> Figures:
    """How well the blame of a failed completion's reasoning tokens, (n,), finds the step that went wrong.

    That step's operands, operators and results are the positives, if the answer depends on it. A failure without such
    a step (a result copied wrongly into the answer) has no figures.
    """
    positives = [path and ok is False for path, ok in zip(on_path, right, strict=True)]
    return {"step_auroc": auroc(blame, positives), "step_ap": average_precision(blame, positives)}


def fatal_figures(
    blame: Vector, steps: Sequence[int], on_path: Sequence[bool], right: Sequence[bool | None]
) -> Figures:
    """How well the mean blame of a failed completion's steps finds the fatal one, the first wrong one on the path.

    `steps` has the step of each of the n reasoning tokens. None as for `step_figures`, and with a single step.
    """
    numbers = np.asarray(steps)
    wrong = [step for step, path, ok in zip(steps, on_path, right, strict=True) if path and ok is False]
    kinds = np.unique(numbers[numbers >= 0])
    means = [blame[numbers == kind].mean() for kind in kinds]
    return {"fatal_auroc": auroc(means, kinds == min(wrong)) if wrong else None}


def role_figures(shares: Mapping[str, Mapping[str, Any]], roles: Sequence[str]) -> dict[str, Figures]:
    """Share of importance and mean weight by role.

    Args:
        shares: of this completion alone, as `report.share_by_role` gives them.
        roles: all there are; one that the completion lacks has no importance, and no mean weight.
    """
    measured = any(found["importance_share"] is not None for found in shares.values())
    absent: Figures = {"importance_share": 0.0 if measured else None, "mean_weight": None}
    return {
        role: {name: shares[role][name] for name in absent} if role in shares else dict(absent)
        for role in roles
    }
