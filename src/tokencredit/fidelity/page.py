"""A measurement as one HTML file, through the report's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.errors import UsageError
from tokencredit.fidelity.baselines import BASELINES, COMPARED
from tokencredit.fidelity.tables import has_truth, place, tables
from tokencredit.report.completions import Shown
from tokencredit.report.curves import Chart, chart_svg
from tokencredit.report.html import render_report
from tokencredit.report.records import Record
from tokencredit.report.tables import Table, show_setting

NUMBERS, RECORDS, PAGE = "fidelity.json", "records.jsonl", "fidelity.html"

_TOGETHER = 4  # strategies on one chart, beside those of COMPARED
_GAMES = {
    "deletion": "the top tokens replaced: a good ranking moves it early",
    "insertion": "all but the top tokens replaced: a good ranking moves it little",
}
_RESERVATIONS = (
    "Fidelity says whether credit falls on the tokens that matter, not whether it helps training.",
    "Intervals are 95% bootstrap intervals of the mean over problems. Where those of two strategies do not overlap the "
    "two differ; where they do, nothing is said.",
)


def write_page(out: Path, content: Mapping[str, Any], records: Sequence[Record]) -> Path:
    """Write the page of a measurement to `out`.

    Args:
        content: what its numbers hold, as JSON gives it.
        records: completions to show as heat maps, a record for each strategy.

    Raises:
        UsageError: `content` has no results, or `out` cannot be written.
    """
    found = content.get("results")
    if not found:
        raise UsageError(f"{out}: there are no numbers of a measurement to show")
    names = list(found[0]["strategies"])
    first, *further = _on_charts(names)
    return render_report(
        out,
        title=f"Fidelity on {', '.join(dict.fromkeys(str(result['source']) for result in found))}",
        findings=[line for result in found for line in findings(result)],
        reservations=_RESERVATIONS,
        labels=first,
        charts=[chart for result in found for chart in charts(result, first)],
        further_charts=[chart for result in found for labels in further for chart in charts(result, labels)],
        curves_title="How far the outcome moves",
        curves_note="In nats, against the share of the reasoning tokens. Bands: 95% intervals over problems.",
        tables=[table for result in found for table in tables(result)],
        settings=_settings(content),
        completions=[Shown(record["credit"], record, place(record)) for record in records],
    )


def findings(result: Mapping[str, Any]) -> Iterator[str]:
    """Which strategies are above every baseline, in words."""
    figure, what = "path_auroc", "AUROC of the tokens on the path"
    if not has_truth(result):
        figure, what = "deletion_over_random", "area under deletion beyond that of random"
    metrics = {name: each["metrics"].get(figure) for name, each in result["strategies"].items()}
    known = {name: found for name, found in metrics.items() if found and found["low"] is not None}
    bar = max((known[name]["high"] for name in BASELINES if name in known), default=None)
    if bar is None:
        return
    shown = {
        name: f"{name} ({found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}])"
        for name, found in known.items()
        if name not in BASELINES
    }
    above = [text for name, text in shown.items() if known[name]["low"] > bar]
    others = [text for name, text in shown.items() if known[name]["low"] <= bar]
    if above:
        yield f"{place(result)}: above every baseline by {what}: {', '.join(above)}."
    if others:
        yield f"{place(result)}: not shown to be above every baseline by {what}: {', '.join(others)}."


def charts(result: Mapping[str, Any], labels: Sequence[str]) -> list[Chart]:
    """The deletion and the insertion curves of some strategies of one subject."""
    drawn = []
    for game, what in _GAMES.items():
        lines, bands = {}, {}
        for label in labels:
            curves = result["strategies"][label]["curves"]
            points = list(zip(curves["shares"], curves[game], strict=True))
            lines[label] = [(share, at["value"]) for share, at in points if at["value"] is not None]
            bands[label] = [(share, at["low"], at["high"]) for share, at in points if at["low"] is not None]
        svg = chart_svg(game, lines, bands, against="share of the reasoning tokens")
        drawn.append(Chart(game, f"{place(result)}: {what}", svg))
    return drawn


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuses a folder that a measurement cannot go to, whatever its settings.

    Raises:
        UsageError: it is a file, or holds a training run, a comparison or, without `overwrite`, a finished measurement.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder")
    for name, what in (("run.json", "training run"), ("plan.json", "comparison")):
        if (folder / name).exists():
            raise UsageError(f"--out {folder} holds a {what}; name another folder")
    if (folder / NUMBERS).exists() and not overwrite:
        raise UsageError(f"--out {folder} holds a measurement; name another folder or give --overwrite")


def _on_charts(names: Sequence[str]) -> list[list[str]]:
    """Few enough lines on each chart to tell them apart, those of COMPARED on all of them."""
    others = [name for name in names if name not in COMPARED]
    return [[*COMPARED, *others[at : at + _TOGETHER]] for at in range(0, max(1, len(others)), _TOGETHER)]


def _settings(content: Mapping[str, Any]) -> Table:
    parts = ("settings", "versions", "machine")
    rows = [[name, show_setting(value)] for part in parts for name, value in content[part].items()]
    return Table("Settings", ["all strategies"], rows)
