"""The figures of one subject as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tokencredit.report.text import visible

Result = Mapping[str, Any]

TRUTH = {
    "path_auroc": "on path: AUROC",
    "path_ap": "AP",
    "path_precision": "P@n",
    "step_auroc": "wrong step: AUROC",
    "step_ap": "AP",
}
AGREEMENT = {
    "exact_spearman": "exact oar-p: Spearman",
    "exact_top_overlap": "top 10%",
    "exact_mean_dw": "mean |dw|",
    "draws_spearman": "two draws: Spearman",
    "draws_mean_dw": "mean |dw|",
}
CAUSAL = {
    "deletion_area": "deletion",
    "deletion_over_random": "less random",
    "insertion_area": "insertion",
    "insertion_over_random": "less random",
}
_WITHOUT_REASONING = ("answer",)  # a role that no reasoning token has


def tables(result: Result) -> list[Table]:
    """What there is to show: against the truth, agreement, causal checks, and roles."""
    where = f"{result['source']}, {result['policy']}"
    known = next(iter(result["strategies"].values()))
    found = []
    if "by_role" in known:
        counts = f"{result['measured']} completions, {result['failed']} of {result['completions']} failed"
        found.append(_metrics(result, TRUTH, f"{where}: importance and blame against the truth ({counts})"))
    found.append(_metrics(result, AGREEMENT, f"{where}: agreement and cost", seconds=True))
    found.append(_metrics(result, CAUSAL, f"{where}: how far the outcome moves, areas in nats"))
    if "by_role" in known:
        found.append(_roles(result, "importance_share", f"{where}: share of importance by role"))
        found.append(_roles(result, "mean_weight", f"{where}: mean weight by role"))
    return found


def _metrics(result: Result, columns: Mapping[str, str], title: str, *, seconds: bool = False) -> Table:
    table = _empty(title)
    strategies = result["strategies"]
    kept = {
        name: head for name, head in columns.items() if any(name in s["metrics"] for s in strategies.values())
    }
    for head in kept.values():
        table.add_column(head, justify="right")
    if seconds:
        table.add_column("ms a completion", justify="right")
    for name, found in strategies.items():
        cells = [cell(found["metrics"].get(metric)) for metric in kept]
        table.add_row(
            Text(visible(name)),
            *cells,
            *([f"{1000 * found['seconds_per_completion']:.1f}"] if seconds else []),
        )
    return table


def _roles(result: Result, figure: str, title: str) -> Table:
    table = _empty(title)
    first = next(iter(result["strategies"].values()))["by_role"]
    roles = [role for role in first if role not in _WITHOUT_REASONING]
    for role in roles:
        table.add_column(role, justify="right")
    for name, found in result["strategies"].items():
        table.add_row(Text(visible(name)), *(cell(found["by_role"][role][figure]) for role in roles))
    return table


def _empty(title: str) -> Table:
    """Names of files and strategies are text, not markup."""
    table = Table(title=Text(visible(title), style="bold"), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("strategy", no_wrap=True)
    return table


def cell(found: Mapping[str, Any] | None) -> str:
    """A mean with half the width of its 95% interval."""
    if found is None or found["value"] is None:
        return "–"
    if found["low"] is None:
        return f"{found['value']:.2f}"
    return f"{found['value']:.2f} ±{(found['high'] - found['low']) / 2:.2f}"
