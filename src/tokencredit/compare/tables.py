"""The tables of a comparison, in points and seconds, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokencredit.compare.summary import OVER_TIME
from tokencredit.compare.verdict import points
from tokencredit.report.tables import NONE, Number, Table

PARTS = {
    "rollout": "sampling and rewards",
    "attribution": "credit",
    "training": "loss and update",
    "total": "the whole step",
}


def all_tables(compared: Mapping[str, Any], *, full: bool = True) -> list[Table]:
    """Every table of a comparison, the levels first; without `full`, differences with their t interval alone."""
    tables = [levels(compared), *differences(compared, full=full), by_warm_start(compared), seconds(compared)]
    return [table for table in [*tables, over_time(compared)] if table.rows]


def levels(compared: Mapping[str, Any]) -> Table:
    """Each measure's mean over the runs with its bootstrap interval, and the interquartile mean."""
    rows = []
    for measure in compared["measures"].values():
        cells = [_level(measure["arms"][arm]) for arm in compared["arms"]]
        rows.append([measure["label"], *cells])
    return Table(
        "Per cent right: mean [95% bootstrap], interquartile mean", list(compared["arms"]), rows, "measure"
    )


def _level(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return NONE
    interval = _hundredfold(found["bootstrap_interval"])
    between = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else ""
    text = f"{found['mean'] * 100:.1f}{between}, {found['interquartile_mean'] * 100:.1f}"
    return Number(text, found["mean"] * 100, *interval)


def _hundredfold(interval: Sequence[float] | None) -> list[float]:
    """The ends of an interval of shares in points; none where there is no interval."""
    return [end * 100 for end in interval or ()]


def differences(compared: Mapping[str, Any], *, full: bool = True) -> list[Table]:
    """One table an arm: what it has more than the first, in points, by measure.

    IQM is the interquartile mean; of a true difference as large as the one under "80% seen", 80% of comparisons like
    this would show it.
    """
    columns = ["points", "95% paired t", "95% bootstrap", "IQM", "p (Holm)", "80% seen", "verdict"]
    tables = []
    for arm in compared["arms"][1:]:
        rows, pairs = [], 0
        for measure in compared["measures"].values():
            found = measure["differences"].get(arm)
            if found is not None:
                rows.append([measure["label"], *_difference(found)])
                pairs = found["pairs"]
        title = f"{arm} against {compared['arms'][0]}, {pairs} pair{'' if pairs == 1 else 's'}"
        tables.append(
            Table(title, columns, rows, "measure") if full else _without_details(title, columns, rows)
        )
    return tables


def _without_details(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    return Table(title, [*columns[:2], columns[-1]], [[*row[:3], row[-1]] for row in rows], "measure")


def _difference(found: Mapping[str, Any]) -> list[str]:
    adjusted, detectable = found["p_adjusted"], found["detectable"]
    return [
        _points(found["mean"]),
        _interval(found["mean"], found["t_interval"]),
        _interval(found["mean"], found["bootstrap_interval"]),
        _points(found["interquartile_mean"]),
        NONE if adjusted is None else Number("< 0.001" if adjusted < 0.001 else f"{adjusted:.3f}", adjusted),
        NONE if detectable is None else Number(f"{detectable * 100:.1f}", detectable * 100),
        found["words"],
    ]


def _points(share: float) -> Number:
    return Number(points(share), share * 100)


def _interval(mean: float, interval: Sequence[float] | None) -> str:
    """The ends; the page sorts by what lies between."""
    if interval is None:
        return NONE
    low, high = interval
    return Number(f"{points(low)} to {points(high)}", mean * 100, *_hundredfold(interval))


def by_warm_start(compared: Mapping[str, Any]) -> Table:
    """The headline differences within each warm start; no rows where there is one warm start."""
    rows, warm_starts = [], dict[str, None]()
    for name in compared["headline"]:
        measure = compared["measures"][name]
        for arm, found in measure["differences"].items():
            each = found["by_warm_start"]
            warm_starts |= dict.fromkeys(each)
            rows.append((f"{arm}, {measure['label']}", each))
    columns = sorted(warm_starts, key=int)
    cells = [
        [name, *(_points(each[warm]) if warm in each else NONE for warm in columns)] for name, each in rows
    ]
    title = f"Difference to {compared['arms'][0]} in points, by warm start"
    return Table(title, [f"warm{warm}" for warm in columns], cells if len(columns) > 1 else [], "measure")


def seconds(compared: Mapping[str, Any]) -> Table:
    """Seconds a step of each part."""
    found = compared["seconds_per_step"]
    rows = [
        [name, *(_seconds(found[arm].get(part)) for arm in compared["arms"])] for part, name in PARTS.items()
    ]
    return Table("Seconds a step", list(compared["arms"]), rows, "part")


def _seconds(value: float | None) -> str:
    return NONE if value is None else Number(f"{value:.3f}", value)


def over_time(compared: Mapping[str, Any]) -> Table:
    """Entropy, length and evenness, in the first and in the last tenth of the steps."""
    rows = []
    for name, label in OVER_TIME.items():
        ends = compared["over_time"][name]
        cells = [
            NONE if ends[arm] is None else Number(f"{ends[arm][0]:.3g} → {ends[arm][1]:.3g}", ends[arm][1])
            for arm in compared["arms"]
        ]
        if set(cells) != {NONE}:
            rows.append([label, *cells])
    return Table("First → last tenth of the steps", list(compared["arms"]), rows, "metric")
