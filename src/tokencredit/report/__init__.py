"""Records in, one self-contained HTML file or a terminal heat map out."""

from __future__ import annotations

from tokencredit.report.files import write_atomic
from tokencredit.report.html import render_attribution, render_run
from tokencredit.report.records import (
    Record,
    Run,
    append_metrics,
    append_record,
    drop_after,
    load_run,
    share_by_role,
)
from tokencredit.report.terminal import heat_map, top_table, top_tokens

__all__ = [
    "Record",
    "Run",
    "append_metrics",
    "append_record",
    "drop_after",
    "heat_map",
    "load_run",
    "render_attribution",
    "render_run",
    "share_by_role",
    "top_table",
    "top_tokens",
    "write_atomic",
]
