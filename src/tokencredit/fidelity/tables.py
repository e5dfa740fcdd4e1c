"""The figures of one subject as tables, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokencredit.report.tables import NONE, Number, Table

Result = Mapping[str, Any]

TRUTH = {
    "path_auroc": "path AUROC",
    "path_ap": "path AP",
    "path_precision": "path P@n",
    "step_auroc": "wrong step AUROC",
    "step_ap": "wrong step AP",
    "fatal_auroc": "fatal step AUROC",
}
AGREEMENT = {
    "exact_spearman": "Spearman",
    "exact_top_overlap": "top 10%",
    "exact_mean_dw": "mean |dw|",
    "draws_spearman": "draws: Spearman",
    "draws_mean_dw": "draws: mean |dw|",
}
CAUSAL = {
    "deletion_area": "deletion",
    "deletion_over_random": "del. − random",
    "deletion_over_position": "del. − position",
    "insertion_area": "insertion",
    "insertion_over_random": "ins. − random",
    "insertion_over_position": "ins. − position",
}
_WITHOUT_REASONING = ("answer",)  # a role that no reasoning token has


def tables(result: Result) -> list[Table]:
    """What there is to show: against the truth, agreement, causal checks, and roles."""
    where = place(result)
    found = []
    if has_truth(result):
        counts = f"{result['measured']} completions, {result['failed']} of {result['completions']} failed"
        found.append(_metrics(result, TRUTH, f"{where}: importance and blame against the truth ({counts})"))
    found.append(
        _metrics(
            result, AGREEMENT, f"{where}: agreement with exact oar-p and between draws; cost", seconds=True
        )
    )
    found.append(_metrics(result, CAUSAL, f"{where}: how far the outcome moves, areas in nats"))
    if has_truth(result):
        found.append(_roles(result, "importance_share", f"{where}: share of importance by role"))
        found.append(_roles(result, "mean_weight", f"{where}: mean weight by role"))
    return found


def place(result: Result) -> str:
    """What was measured: the task or data, and the policy."""
    return f"{result['source']}, {result['policy']}"


def has_truth(result: Result) -> bool:
    """Whether the truth of each token was known."""
    return "by_role" in next(iter(result["strategies"].values()))


def _metrics(result: Result, columns: Mapping[str, str], title: str, *, seconds: bool = False) -> Table:
    strategies = result["strategies"]
    kept = [name for name in columns if any(name in found["metrics"] for found in strategies.values())]
    heads = [columns[name] for name in kept]
    rows = []
    for name, found in strategies.items():
        cells = [cell(found["metrics"].get(metric)) for metric in kept]
        if seconds:
            spent = 1000 * found["seconds_per_completion"]
            cells.append(Number(f"{spent:.1f}", spent))
        rows.append([name, *cells])
    return Table(title, [*heads, "ms a completion"] if seconds else heads, rows, "strategy")


def _roles(result: Result, figure: str, title: str) -> Table:
    strategies = result["strategies"]
    first = next(iter(strategies.values()))["by_role"]
    roles = [role for role in first if role not in _WITHOUT_REASONING]
    rows = [
        [name, *(cell(found["by_role"][role][figure]) for role in roles)]
        for name, found in strategies.items()
    ]
    return Table(title, roles, rows, "strategy")


def cell(found: Mapping[str, Any] | None) -> str:
    """A mean with half the width of its 95% interval."""
    if found is None or found["value"] is None:
        return NONE
    value, low, high = found["value"], found["low"], found["high"]
    text = f"{value:.2f}" if low is None else f"{value:.2f} ±{(high - low) / 2:.2f}"
    return Number(text, value, low, high)
