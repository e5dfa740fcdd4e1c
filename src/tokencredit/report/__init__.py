"""Records in, one self-contained HTML file or a terminal heat map out."""

from __future__ import annotations

from tokencredit.report.completions import Shown
from tokencredit.report.curves import Chart, chart_svg
from tokencredit.report.files import write_atomic
from tokencredit.report.html import render_attribution, render_report, render_run
from tokencredit.report.records import (
    Record,
    Run,
    append_metrics,
    append_record,
    drop_after,
    load_run,
    read_records,
    share_by_role,
)
from tokencredit.report.tables import Number, Table
from tokencredit.report.terminal import heat_map, in_terminal, top_table, top_tokens

__all__ = [
    "Chart",
    "Number",
    "Record",
    "Run",
    "Shown",
    "Table",
    "append_metrics",
    "append_record",
    "chart_svg",
    "drop_after",
    "heat_map",
    "in_terminal",
    "load_run",
    "read_records",
    "render_attribution",
    "render_report",
    "render_run",
    "share_by_role",
    "top_table",
    "top_tokens",
    "write_atomic",
]
