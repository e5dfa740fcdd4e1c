"""One self-contained HTML file from records: of runs, single attributions, comparisons and fidelity alike.

The file loads nothing: style, script and data are in it, and its content security policy admits only the
style and the script whose hashes it names. What a model wrote travels as JSON and becomes text nodes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tokencredit.errors import UsageError
from tokencredit.report.completions import MOST_COMPLETIONS, Shown, payload, sample_evenly, together
from tokencredit.report.curves import STEPS_NOTE, Chart, charts, line_style
from tokencredit.report.files import write_atomic
from tokencredit.report.records import Run, load_run, record_problem
from tokencredit.report.tables import Number, Table, settings_table, summary_tables
from tokencredit.report.text import listed, visible

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("dom", "theme", "download", "tables", "measures", "heatmap", "reading", "records", "completions")
"""In the order in which they build on one another; the page has them as one."""
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_ESCAPES |= {surrogate: f"\\u{surrogate:04x}" for surrogate in range(0xD800, 0xE000)}


def render_run(
    runs: Sequence[str | Path | Run],
    out: str | Path,
    *,
    title: str | None = None,
    most: int = MOST_COMPLETIONS,
) -> Path:
    """Write the report of one or several runs (directories or loaded ones), overlaid, to `out`.

    At most `most` completions are shown, spread evenly over what was recorded.
    Raises UsageError for no run at all, for directories that cannot be read, and if `out` cannot be written.
    """
    loaded = [run if isinstance(run, Run) else load_run(run) for run in runs]
    if not loaded:
        raise UsageError("no run to report: name at least one run directory")
    labelled = label_runs(loaded)
    return render_report(
        out,
        title=title or _run_title(loaded),
        labels=list(labelled),
        charts=charts(labelled),
        further_charts=charts(labelled, further=True),
        curves_note=STEPS_NOTE,
        tables=summary_tables(labelled),
        settings=settings_table(labelled),
        completions=[Shown(label, record) for label, run in labelled.items() for record in run.records],
        most=most,
    )


def render_attribution(records: Sequence[Mapping[str, Any]], out: str | Path, title: str) -> Path:
    """Write the heat maps of `records` to `out`; several strategies on one completion come together.

    Raises UsageError for records that are not in the form of `Record`, for none at all, and if `out` cannot be
    written.
    """
    if not records:
        raise UsageError("nothing to show: the list of records is empty")
    for number, record in enumerate(records):
        problem = record_problem(record)
        if problem:
            raise UsageError(f"record {number}: {problem}")
    return render_report(
        out, title=title, completions=[Shown(record["credit"], record) for record in records]
    )


def render_report(
    out: str | Path,
    *,
    title: str,
    findings: Sequence[str] = (),
    reservations: Sequence[str] = (),
    labels: Sequence[str] = (),
    charts: Sequence[Chart] = (),
    further_charts: Sequence[Chart] = (),
    curves_title: str = "Learning curves",
    curves_note: str = "",
    tables: Sequence[Table] = (),
    settings: Table | None = None,
    completions: Sequence[Shown] = (),
    most: int = MOST_COMPLETIONS,
) -> Path:
    """Write a report of whatever kind to `out`; what is empty is left out.

    Args:
        findings, reservations: sentences, what there is to say and what limits it.
        labels: of the lines in the charts, in their order.
        charts, further_charts: the second are folded away.
        curves_title, curves_note: the heading over the charts, and what to know to read them.
        tables, settings: settings are folded away, too.
        completions: their heat maps. Of one completion two strategies are side by side, see `completions.together`;
            at most `most` completions are shown, spread evenly.

    Raises UsageError if `out` cannot be written.
    """
    groups = together(completions)
    shown = [payload(group) for group in sample_evenly(groups, most)]
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    script = _script()
    page = _template().render(
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        data=embed_json(shown),
        title=visible(title),
        findings=[visible(line) for line in findings],
        reservations=[visible(line) for line in reservations],
        legend=[(visible(label), *line_style(index)) for index, label in enumerate(labels)],
        charts=charts,
        further_charts=further_charts,
        curves_title=visible(curves_title),
        curves_note=visible(curves_note),
        tables=[table.visible() for table in tables],
        settings=settings and settings.visible(),
        n_shown=len(shown),
        n_recorded=len(groups),
    )
    return write_atomic(out, page)


def label_runs(runs: Iterable[Run]) -> dict[str, Run]:
    """Return the runs by a label each: the strategy, with the directory where that is not unique."""
    labelled: dict[str, Run] = {}
    runs = list(runs)
    names = [run.credit for run in runs]
    for run, name in zip(runs, names, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({run.path.name})"
        while label in labelled:
            label += "′"
        labelled[label] = run
    return labelled


def _run_title(runs: Sequence[Run]) -> str:
    strategies = listed(list(dict.fromkeys(run.credit for run in runs)))
    tasks = dict.fromkeys(str(run.info["task"]) for run in runs if run.info.get("task"))
    return f"{strategies} on {', '.join(tasks)}" if tasks else strategies


def embed_json(value: Any) -> Markup:
    """Return JSON that can stand in a script element whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _policy(style: str, script: str) -> str:
    """The content security policy. Files that a reader saves are blobs behind links, which need no leave of it."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _script() -> str:
    parts = [(PAGE / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['"use strict";', "(() => {", *parts, "})();\n"])


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["cell_data"] = _cell_data
    return environment.get_template("page.html")


def _cell_data(cell: str) -> Markup:
    """The attributes of a table's cell by which the page sorts it, and saves it as a number."""
    if not isinstance(cell, Number):
        return Markup("")
    known = {"value": cell.value, "low": cell.low, "high": cell.high}
    return Markup("").join(
        Markup(' data-{}="{}"').format(name, value) for name, value in known.items() if value is not None
    )
