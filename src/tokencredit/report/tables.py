"""Tables of a report: a run's summary, whatever is in it, and the settings, with the runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokencredit.report.records import Run, share_by_role
from tokencredit.report.text import visible

Rows = dict[str, list[Any]]  # the row's name -> one value a column


@dataclass(frozen=True)
class Table:
    """A titled table of text cells; each row is its name followed by one cell a column."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def differs(self, row: Sequence[str]) -> bool:
        """Say whether the cells of `row` are not all the same (settings in which runs differ)."""
        return len(set(row[1:])) > 1


def show_value(value: Any) -> str:
    """Return a cell's text: numbers to three digits, absent values as a dash, anything else as it prints."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return visible(str(value))


def _title(name: str) -> str:
    words = visible(name).replace("_", " ")
    return words[:1].upper() + words[1:]


def _table(title: str, columns: Sequence[str], rows: Rows) -> Table:
    cells = [[visible(name).replace("_", " "), *map(show_value, values)] for name, values in rows.items()]
    return Table(title, [visible(column).replace("_", " ") for column in columns], cells)


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
    if all(isinstance(entry, Mapping) and _is_flat(entry) for entry in entries.values()):
        rows = {row: [entry.get(row) for entry in entries.values()] for row in _names(list(entries.values()))}
        return [_table(_title(name), list(entries), rows)]
    several = len(entries) > 1
    return [
        _run_table(_title(name) + (f", {visible(label)}" if several else ""), entry)
        for label, entry in entries.items()
    ]


def _is_flat(entry: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, Mapping) for value in entry.values())


def _run_table(title: str, entry: Any) -> Table:
    if isinstance(entry, list):
        entry = {str(number): row for number, row in enumerate(entry, start=1)}
    if not isinstance(entry, Mapping):
        entry = {"value": entry}
    by_row = {str(name): row if isinstance(row, Mapping) else {"value": row} for name, row in entry.items()}
    columns = _names(list(by_row.values()))
    return _table(title, columns, {name: [row.get(c) for c in columns] for name, row in by_row.items()})


def settings_table(runs: Mapping[str, Run]) -> Table:
    """Return what was set in each run: run.json without its summary, nested mappings by dotted names."""
    flat = {
        label: _flatten({k: v for k, v in run.info.items() if k != "summary"}) for label, run in runs.items()
    }
    rows = {name: [settings.get(name) for settings in flat.values()] for name in _names(list(flat.values()))}
    cells = [[visible(name), *map(_show_setting, values)] for name, values in rows.items()]
    return Table("Settings", [visible(label) for label in runs], cells)


def _show_setting(value: Any) -> str:
    """Settings are shown in full: a learning rate is not to be rounded, nor a seed grouped by thousands."""
    return "–" if value is None else visible(str(value))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
