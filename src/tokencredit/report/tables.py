"""Tables of a report: a run's summary, whatever is in it, and the settings, with the runs side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokencredit.report.records import Run, share_by_role
from tokencredit.report.text import visible

Rows = dict[str, list[Any]]  # the row's name -> one value a column


NONE = "–"
"""The cell of a value that is not there."""


class Number(str):
    """A cell's text that knows the number it shows, and the ends of that number's interval if it has one.

    Tables are sorted by `value`; files that are saved from the page hold `value`, `low` and `high`.
    """

    value: float
    low: float | None
    high: float | None

    def __new__(cls, text: str, value: float, low: float | None = None, high: float | None = None) -> Number:
        cell = super().__new__(cls, text)
        cell.value, cell.low, cell.high = value, low, high
        return cell


@dataclass(frozen=True)
class Table:
    """A titled table of text cells, some of them a `Number`; each row is its name followed by one cell a column.

    `head` says what the rows are, where their names do not.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    head: str = ""

    def visible(self) -> Table:
        """Return the table with every text made `visible`, for a page or a terminal."""
        rows = [[cell if isinstance(cell, Number) else visible(cell) for cell in row] for row in self.rows]
        return Table(visible(self.title), [visible(name) for name in self.columns], rows, visible(self.head))

    def differs(self, row: Sequence[str]) -> bool:
        """Say whether the cells of `row` are not all the same (settings in which runs differ)."""
        return len(set(row[1:])) > 1


def show_value(value: Any) -> str:
    """Return a cell: numbers to three digits, absent values as a dash, anything else as it prints."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        return Number(f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}", value)
    if isinstance(value, int):
        return Number(f"{value:,}", value)
    return str(value)


def _title(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _table(title: str, columns: Sequence[str], rows: Rows, head: str = "") -> Table:
    cells = [[name.replace("_", " "), *map(show_value, values)] for name, values in rows.items()]
    return Table(title, [column.replace("_", " ") for column in columns], cells, head)


def _names(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of all mappings, each once, in the order of their first appearance."""
    return list(dict.fromkeys(str(key) for mapping in mappings for key in mapping))


def summary_tables(runs: Mapping[str, Run]) -> list[Table]:
    """Return the tables of the runs' summaries, the runs (label -> run) side by side where that is possible.

    A summary maps names to values, to {row: value}, to {row: {column: value}}, or to a list of row mappings.
    Single values share one table. Where no "share_by_role" is there it is computed from the records.
    """
    summaries = {label: _summary(run) for label, run in runs.items()}
    singles: Rows = {}
    tables = []
    for name in _names(list(summaries.values())):
        entries = {label: summary[name] for label, summary in summaries.items() if name in summary}
        if not any(isinstance(entry, Mapping | list) for entry in entries.values()):
            singles[name] = [entries.get(label) for label in runs]
        else:
            tables += _entry_tables(name, entries)
    overall = [_table("Summary", list(runs), singles)] if singles else []
    return overall + tables


def _summary(run: Run) -> Mapping[str, Any]:
    summary = run.info.get("summary")
    found = dict(summary) if isinstance(summary, Mapping) else {}
    shares = {} if "share_by_role" in found else share_by_role(run.records)
    return {**found, "share_by_role": shares} if shares else found


def _entry_tables(name: str, entries: Mapping[str, Any]) -> list[Table]:
    """Return one table with a column a run if all entries are flat, else one table a run."""
    head = name.partition("_by_")[2]
    if all(isinstance(entry, Mapping) and _is_flat(entry) for entry in entries.values()):
        rows = {row: [entry.get(row) for entry in entries.values()] for row in _names(list(entries.values()))}
        return [_table(_title(name), list(entries), rows, head)]
    several = len(entries) > 1
    return [
        _run_table(_title(name) + (f", {label}" if several else ""), entry, head)
        for label, entry in entries.items()
    ]


def _is_flat(entry: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, Mapping) for value in entry.values())


def _run_table(title: str, entry: Any, head: str) -> Table:
    if isinstance(entry, list):
        entry = {str(number): row for number, row in enumerate(entry, start=1)}
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    by_row = {str(name): row if isinstance(row, Mapping) else {"value": row} for name, row in entry.items()}
    columns = _names(list(by_row.values()))
    return _table(title, columns, {name: [row.get(c) for c in columns] for name, row in by_row.items()}, head)


def settings_table(runs: Mapping[str, Run]) -> Table:
    """Return what was set in each run: run.json without its summary, nested mappings by dotted names."""
    flat = {
        label: _flatten({k: v for k, v in run.info.items() if k != "summary"}) for label, run in runs.items()
    }
    rows = {name: [settings.get(name) for settings in flat.values()] for name in _names(list(flat.values()))}
    cells = [[name, *map(show_setting, values)] for name, values in rows.items()]
    return Table("Settings", list(runs), cells, "setting")


def show_setting(value: Any) -> str:
    """Return a setting's cell, in full: a learning rate is not to be rounded, nor a seed grouped by thousands."""
    if value is None:
        return NONE
    shown = show_value(value)
    return Number(str(value), shown.value) if isinstance(shown, Number) else str(value)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
