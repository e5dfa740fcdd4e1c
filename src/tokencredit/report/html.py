"""One self-contained HTML file from the records of runs, or from single attributions.

The file loads nothing: style, script and data are in it, and its content security policy admits only the
style and the script whose hashes it names. What a model wrote travels as JSON and becomes text nodes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tokencredit.errors import UsageError
from tokencredit.report.curves import DASHES, Chart, charts
from tokencredit.report.files import write_atomic
from tokencredit.report.records import Record, Run, load_run, record_problem
from tokencredit.report.tables import Table, settings_table, summary_tables
from tokencredit.report.text import are_words, visible, visible_tokens

HERE = Path(__file__).parent
MOST_COMPLETIONS = 200
MOST_TOKENS = 400_000
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


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
    recorded = [(label, record) for label, run in labelled.items() for record in run.records]
    shown = sample_evenly(recorded, most)
    return _write(
        out,
        title=title or _run_title(loaded),
        runs=labelled,
        charts=charts(labelled),
        further_charts=charts(labelled, further=True),
        tables=summary_tables(labelled),
        settings=settings_table(labelled),
        completions=[_completion(label, [record]) for label, record in shown],
        n_recorded=len(recorded),
    )


def render_attribution(records: Sequence[Mapping[str, Any]], out: str | Path, title: str) -> Path:
    """Write the heat maps of `records` to `out`; several strategies on one completion come together.

    Records belong together if prompt and tokens are equal. Raises UsageError for records that are not in the
    form of `Record`, for none at all, and if `out` cannot be written.
    """
    if not records:
        raise UsageError("nothing to show: the list of records is empty")
    together: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for number, record in enumerate(records):
        problem = record_problem(record)
        if problem:
            raise UsageError(f"record {number}: {problem}")
        together.setdefault((record["prompt"], *record["tokens"]), []).append(record)
    return _write(
        out,
        title=title,
        runs={},
        charts=[],
        further_charts=[],
        tables=[],
        settings=None,
        completions=[_completion("", group) for group in together.values()],
        n_recorded=len(together),
    )


def render_comparison(
    out: str | Path,
    *,
    title: str,
    findings: Sequence[str],
    reservations: Sequence[str],
    labels: Sequence[str],
    charts: Sequence[Chart],
    further_charts: Sequence[Chart],
    curves_note: str,
    tables: Sequence[Table],
    settings: Table,
    records: Sequence[tuple[str, Record]],
) -> Path:
    """Write the report of a comparison of several arms, by their labels, to `out`.

    The first `findings` say what it shows, `reservations` what limits that; `records` are (label, record), of which
    a few are shown. Raises UsageError if `out` cannot be written.
    """
    shown = sample_evenly(records, MOST_COMPLETIONS)
    return _write(
        out,
        title=title,
        findings=[visible(line) for line in findings],
        reservations=[visible(line) for line in reservations],
        runs={visible(label): None for label in labels},
        charts=charts,
        further_charts=further_charts,
        curves_note=curves_note,
        tables=tables,
        settings=settings,
        completions=[_completion(label, [record]) for label, record in shown],
        n_recorded=len(records),
    )


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


def sample_evenly(
    records: Sequence[tuple[str, Record]], most: int, most_tokens: int = MOST_TOKENS
) -> list[tuple[str, Record]]:
    """Return at most `most` records, evenly spaced, about `most_tokens` tokens in all; at least one."""
    if not records:
        return []
    mean_length = sum(len(record["tokens"]) for _, record in records) / len(records)
    count = max(1, min(most, len(records), int(most_tokens / max(mean_length, 1))))
    return [records[index * len(records) // count] for index in range(count)]


def _run_title(runs: Sequence[Run]) -> str:
    strategies = " and ".join(dict.fromkeys(run.credit for run in runs))
    tasks = dict.fromkeys(str(run.info["task"]) for run in runs if run.info.get("task"))
    return f"{strategies} on {', '.join(tasks)}" if tasks else strategies


def _completion(run: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the page's script shows of one completion under one or several strategies."""
    first = records[0]
    truth = {name: first[name] for name in ("roles", "on_path", "right") if name in first}
    views = [
        {
            "credit": visible(record["credit"]),
            "advantage": _rounded(record["advantage"]),
            **{name: _rounded_all(record[name]) for name in ("importance", "weights", "advantages")},
        }
        for record in records
    ]
    return {
        "run": visible(run),
        "step": first["step"],
        "row": first["row"],
        "prompt": visible(first["prompt"]),
        "tokens": visible_tokens(first["tokens"]),
        "words": are_words(first["tokens"]),
        "probability": _rounded_all(first["probability"] or [None] * len(first["tokens"])),
        "reward": _rounded(first["reward"]),
        "reasoning": first["reasoning"],
        "answer": first["answer"],
        "rule": visible(first["rule"]),
        "views": views,
        **truth,
    }


def _rounded(value: float | None) -> float | None:
    """Four digits are what the page can show, and make the file half as long."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _rounded_all(values: Sequence[float | None]) -> list[float | None]:
    return [_rounded(value) for value in values]


def embed_json(value: Any) -> Markup:
    """Return JSON that can stand in a script element whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _write(out: str | Path, **content: Any) -> Path:
    style = (HERE / "report.css").read_text(encoding="utf-8")
    script = (HERE / "report.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    content = {"findings": [], "reservations": [], "curves_note": "", **content}
    content["title"] = visible(content["title"])
    page = environment.get_template("report.html").render(
        style=Markup(style),
        script=Markup(script),
        policy=policy,
        dashes=DASHES,
        data=embed_json(content["completions"]),
        **content,
    )
    return write_atomic(out, page)
