"""A comparison as one HTML file, through the report's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.compare.runs import RunKey
from tokencredit.compare.tables import all_tables
from tokencredit.report.completions import Shown
from tokencredit.report.curves import FIRST, FURTHER, STEPS_NOTE, Chart, chart_svg
from tokencredit.report.html import render_report
from tokencredit.report.records import Record, load_run
from tokencredit.report.tables import Table, show_setting
from tokencredit.report.text import listed

HELD_OUT = {
    "held_out_sampled": "held-out accuracy at temperature 1",
    "held_out_greedy": "held-out accuracy, greedy",
}
BANDS_NOTE = "Lines: means over runs; bands: their 95% intervals over seeds."
MAIN = (*HELD_OUT, "reward", "credit/ess_ratio", "entropy", "completions/mean_length")


def write_page(
    out: Path,
    compared: Mapping[str, Any],
    settings: Mapping[str, Any],
    records: Sequence[tuple[str, Record]],
) -> Path:
    """Write the page of a comparison (`summary.compare`, with its "verdict" and "reservations") to `out`.

    Args:
        settings: of all runs, by name.
        records: (arm, record) to show as heat maps.
    """
    arms = compared["arms"]
    several = any(
        row[2] is not None
        for curves in compared["curves"].values()
        for rows in curves.values()
        for row in rows
    )
    return render_report(
        out,
        title=f"{listed(arms)} on {settings.get('task') or settings.get('dataset_name') or 'a data set'}",
        findings=compared["verdict"],
        reservations=compared["reservations"],
        labels=arms,
        charts=charts(compared, main=True),
        further_charts=charts(compared, main=False),
        curves_note=f"{BANDS_NOTE} {STEPS_NOTE}" if several else STEPS_NOTE,
        tables=all_tables(compared),
        settings=Table(
            "Settings",
            ["all runs"],
            [[name, show_setting(value)] for name, value in settings.items()],
            "setting",
        ),
        completions=[Shown(arm, record) for arm, record in records],
    )


def charts(compared: Mapping[str, Any], *, main: bool) -> list[Chart]:
    """The charts of the measures over the steps, each arm's mean on its band."""
    captions = {**HELD_OUT, **FIRST, **FURTHER}
    found = []
    for name, curves in compared["curves"].items():
        if (name in MAIN) == main:
            lines = {arm: [(row[0], row[1]) for row in curves.get(arm, [])] for arm in compared["arms"]}
            bands = {
                arm: [(row[0], row[2], row[3]) for row in rows if row[2] is not None]
                for arm, rows in curves.items()
            }
            found.append(Chart(name, captions[name], chart_svg(name, lines, bands)))
    return found


def records_of(directory: Path, keys: Sequence[RunKey]) -> list[tuple[str, Record]]:
    """The records of each arm's first run, by arm."""
    first: dict[str, RunKey] = {}
    for key in keys:
        first.setdefault(key.arm, key)
    return [(arm, record) for arm, key in first.items() for record in load_run(directory / key.name).records]
