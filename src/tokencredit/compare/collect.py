"""What the finished runs of a comparison have left behind, in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tokencredit.compare.runs import HELD_OUT, TEMPERATURES, RunKey, is_trained, measured
from tokencredit.compare.statistics import Curve
from tokencredit.report.files import read_lines
from tokencredit.report.records import METRICS, load_info


@dataclass(frozen=True)
class Finished:
    """One finished run.

    Attributes:
        key: which one.
        curves: held-out accuracy as (step, share), by the way of answering; empty without held-out problems.
        metrics: of each logged step, in order.
        seconds: a step, by part, as the run's summary has them.
    """

    key: RunKey
    curves: Mapping[str, Curve]
    metrics: Sequence[Mapping[str, Any]]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def metric(self, name: str) -> dict[int, float]:
        """A metric's values by step, without those that are missing or not finite."""
        found = {}
        for line in self.metrics:
            value = line.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                found[int(line["step"])] = float(value)
        return found


def read_finished(
    directory: Path, keys: Sequence[RunKey], starts: Mapping[int, Mapping[tuple[int, str], float]]
) -> list[Finished]:
    """The runs of `keys` that are finished, and measured where `starts` says that they are to be.

    Args:
        starts: accuracies before training by warm start, see `measured`; empty without held-out problems.
    """
    found = []
    for key in keys:
        folder = directory / key.name
        if not is_trained(folder):
            continue
        accuracies = {**starts.get(key.warm, {}), **measured(folder / HELD_OUT)}
        metrics = [line for _, line in read_lines(folder / METRICS)]
        summary = load_info(folder).get("summary", {})
        if starts and max(step for step, _ in accuracies) < int(metrics[-1]["step"]):
            continue  # trained, but not yet measured to its end
        found.append(
            Finished(
                key,
                {way: _curve(accuracies, way) for way in TEMPERATURES} if accuracies else {},
                metrics,
                summary.get("seconds_per_step", {}),
            )
        )
    return found


def _curve(accuracies: Mapping[tuple[int, str], float], way: str) -> Curve:
    return sorted((step, value) for (step, each), value in accuracies.items() if each == way)


def clock_of(runs: Sequence[Finished]) -> Curve:
    """Seconds of training by step, from the start at (0, 0), as one arm's runs took them; measuring takes none of them.

    A step counts with the median over the runs of their `step_time`: what else the machine did beside one of them is
    not the arm's. Steps that were not logged took as long as those of the next line.
    """
    times: dict[int, list[float]] = {}
    for run in runs:
        for step, seconds in run.metric("step_time").items():
            times.setdefault(step, []).append(seconds)
    clock: list[tuple[float, float]] = [(0.0, 0.0)]
    for step in sorted(times):
        clock.append((step, clock[-1][1] + (step - clock[-1][0]) * median(times[step])))
    return clock


def on_common_steps(runs: Sequence[Finished], way: str) -> dict[RunKey, Curve]:
    """Each run's held-out curve at the steps at which all were measured.

    A run that was stopped and went on has a further checkpoint where it stopped; the others have none there.
    """
    steps = set.intersection(*({step for step, _ in run.curves[way]} for run in runs)) if runs else set()
    return {run.key: [point for point in run.curves[way] if point[0] in steps] for run in runs}
