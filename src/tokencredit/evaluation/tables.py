"""The numbers of an evaluation as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from tokencredit.evaluation.paired import Difference


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """A line for each task's metric: its value, standard error and 95% interval, shares in percent."""
    table = Table("task", "problems", "samples", "metric", "value", "std. error", "95% interval")
    for column in table.columns[1:]:
        column.justify = "right"
    for task, found in results.items():
        for number, (name, metric) in enumerate(found["metrics"].items()):
            first = [task, str(found["problems"]), str(found["samples"])] if number == 0 else ["", "", ""]
            table.add_row(*first, name, *_cells(metric, name))
        table.add_section()
    return table


def _cells(metric: Mapping[str, Any], name: str) -> list[str]:
    scale, unit = (1, "") if name == "tokens" else (100, "%")
    value = f"{scale * metric['value']:.1f}{unit}"
    if metric["stderr"] is None:
        return [value, "-", "-"]
    return [value, f"{scale * metric['stderr']:.1f}", _interval(metric["low"], metric["high"], scale)]


def _interval(low: float, high: float, scale: int, sign: str = "") -> str:
    return f"[{scale * low:{sign}.1f}, {scale * high:{sign}.1f}]"


def differences_table(differences: Mapping[str, Difference]) -> Table:
    """A line for each task: both shares of right samples, and their difference in points with its 95% interval."""
    table = Table("task", "problems", "this", "other", "difference", "95% interval")
    for column in table.columns[1:]:
        column.justify = "right"
    for task, found in differences.items():
        known = found.low is not None and found.high is not None
        table.add_row(
            task,
            str(found.problems),
            f"{100 * found.first:.1f}%",
            f"{100 * found.second:.1f}%",
            f"{100 * found.value:+.1f}",
            _interval(found.low, found.high, 100, "+") if known else "-",  # type: ignore[arg-type]
        )
    return table


def in_words(task: str, found: Difference) -> str:
    """What a task's difference shows, as a sentence."""
    counts = f"{found.better} problems better, {found.worse} worse"
    return f"{task}: {found.words} ({counts}, of {found.problems})"
