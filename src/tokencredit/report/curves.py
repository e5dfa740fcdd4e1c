"""Learning curves as inline SVG: themed by the page's style sheet, told apart by dash and label."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tokencredit.report.records import Run
from tokencredit.report.text import visible

WIDTH, HEIGHT = 340, 190
LEFT, TOP, BOTTOM = 44, 12, 26
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 2 1 2 1 2", "12 4")
SMOOTHED_FROM = 20  # points; shorter curves are drawn as they are
MOST_POINTS = 600
STEPS_NOTE = "Against the training step. Faint: every logged step; strong: its running mean."

# What to draw, in this order, and how to say it.
FIRST = {
    "reward": "mean reward",
    "loss": "loss",
    "credit/ess_ratio": "evenness of weights, (Σw)²/(n Σw²)",
    "credit/suppressed": "share of tokens below the threshold",
    "credit/boosted": "share of tokens above the threshold",
    "credit/bonus": "size of the bonus, root mean square",
    "credit/no_answer": "share of completions without an answer",
    "credit/skipped": "share of rows with nothing to attribute",
    "credit/not_finite": "rows whose credit was not finite",
    "credit/steps_left_out": "share of steps whose gradient was not finite",
    "credit/seconds": "seconds spent on credit",
    "credit/rollout_seconds": "seconds spent on sampling and rewards",
    "credit/share_of_step": "credit's share of the step's time",
}
FURTHER = {
    "entropy": "entropy of the policy (nats)",
    "completions/mean_length": "mean length of completions (tokens)",
    "grad_norm": "gradient norm",
    "kl": "KL to the reference (nats)",
    "step_time": "seconds a step",
}

Points = list[tuple[float, float]]
Band = list[tuple[float, float, float]]  # step, low, high
Place = Callable[[tuple[float, float]], tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """One measure over the steps of all runs: its metric's name, a caption, and the SVG."""

    metric: str
    caption: str
    svg: Markup


def charts(runs: Mapping[str, Run], *, further: bool = False) -> list[Chart]:
    """Return the charts of the metrics that the runs (label -> run) logged.

    The main ones are reward, loss and all that starts with "credit/"; `further` gives the secondary ones.
    """
    logged = dict.fromkeys(name for run in runs.values() for line in run.metrics for name in line)
    if further:
        wanted = dict(FURTHER)
    else:
        wanted = FIRST | {name: name for name in logged if name.startswith("credit/") and name not in FIRST}
    found = []
    for metric, caption in wanted.items():
        lines = {label: points_of(run, metric) for label, run in runs.items()}
        if any(lines.values()):
            found.append(Chart(visible(metric), visible(caption), chart_svg(visible(metric), lines)))
    return found


def points_of(run: Run, metric: str) -> Points:
    """Return a metric's (step, value) in order of steps; of a step logged twice the last value counts."""
    values = {}
    for line in run.metrics:
        step, value = line.get("step"), line.get(metric)
        if isinstance(step, int | float) and isinstance(value, int | float) and math.isfinite(value):
            values[float(step)] = float(value)
    return sorted(values.items())


def smooth(points: Points) -> Points:
    """Return the centred running mean over a twelfth of the points, narrower at the ends."""
    reach = len(points) // 24
    means = []
    for index, (step, _) in enumerate(points):
        near = min(reach, index, len(points) - 1 - index)
        window = points[index - near : index + near + 1]
        means.append((step, sum(value for _, value in window) / len(window)))
    return means


def thin_out(points: Points, most: int = MOST_POINTS) -> Points:
    """Return at most about `most` points, each the mean of a stretch of equally many."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return points
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in c) / len(c), sum(y for _, y in c) / len(c)) for c in chunks]


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return at most `most` + 1 round numbers within [low, high], in steps of 1, 2 or 5 times 10^k."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + k) * step for k in range(count)]


def line_style(index: int) -> tuple[str, str]:
    """Return the class, which gives the colour, and the dashes of a chart's line: no two alike up to the 36th."""
    colours = len(DASHES)
    return f"line-{index % colours}", DASHES[(index + index // colours) % colours]


def chart_svg(
    name: str,
    lines: Mapping[str, Points],
    bands: Mapping[str, Band] | None = None,
    *,
    against: str = "step",
) -> Markup:
    """Draw one metric of several runs against the step; each line has its dash pattern and its label.

    Args:
        lines: points by label. Those of 20 points or more are smoothed.
        bands: by label, too; a line that has one is drawn on it.
        against: what the steps are, where they are something else.
    """
    edges = {label: edges_of(band) for label, band in (bands or {}).items() if band}
    end = WIDTH - (66 if len(lines) > 1 else 8)  # room for the labels
    every = [point for points in [*lines.values(), *edges.values()] for point in points]
    x_low, x_high = _spread([x for x, _ in every])
    y_low, y_high = _spread([y for _, y in every])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + (point[0] - x_low) / (x_high - x_low) * (end - LEFT)
        y = HEIGHT - BOTTOM - (point[1] - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return x, y

    parts = _axes(place, end, (x_low, x_high), (y_low, y_high))
    parts += [
        _path([place(p) for p in edges[label]], f"band {line_style(index)[0]}")
        for index, label in enumerate(lines)
        if label in edges
    ]
    ends: list[tuple[float, float, str, int]] = []
    for index, (label, points) in enumerate(lines.items()):
        if not points:
            continue
        drawn = thin_out(points)
        main = smooth(drawn) if len(points) >= SMOOTHED_FROM else drawn
        colour, dash = line_style(index)
        if main is not drawn:
            parts.append(_path([place(p) for p in drawn], f"raw {colour}"))
        parts.append(_path([place(p) for p in main], f"mean {colour}", dash))
        ends.append((*place(main[-1]), label, index))
    parts += _end_labels(ends) if len(lines) > 1 else []
    spoken = "; ".join(f"{label} from {p[0][1]:.3g} to {p[-1][1]:.3g}" for label, p in lines.items() if p)
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, f"{name} against {against}: {visible(spoken)}", Markup("").join(parts)
    )


def edges_of(band: Band) -> Points:
    """Return the outline of a band: along its upper edge and back along its lower one, smoothed as lines are."""
    upper, lower = [(x, high) for x, _, high in band], [(x, low) for x, low, _ in band]
    if len(band) >= SMOOTHED_FROM:
        upper, lower = smooth(thin_out(upper)), smooth(thin_out(lower))
    return upper + lower[::-1]


def _spread(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    return low, high


def _path(places: Sequence[tuple[float, float]], classes: str, dash: str = "none") -> Markup:
    if len(places) == 1:
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(
            f"dot {classes}", *places[0]
        )
    route = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return Markup('<path class="{}" d="{}" stroke-dasharray="{}"/>').format(classes, route, dash)


def _axes(
    place: Place, end: float, x_range: tuple[float, float], y_range: tuple[float, float]
) -> list[Markup]:
    parts = []
    for value in ticks(*y_range):
        y = place((x_range[0], value))[1]
        parts.append(
            Markup(
                '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
                '<text class="tick end" x="{3}" y="{4:.1f}">{5}</text>'
            ).format(LEFT, end, y, LEFT - 6, y + 3.5, _tick(value))
        )
    for value in ticks(*x_range):
        x = place((value, y_range[0]))[0]
        parts.append(
            Markup('<text class="tick middle" x="{:.1f}" y="{}">{}</text>').format(
                x, HEIGHT - 8, _tick(value)
            )
        )
    return parts


def _tick(value: float) -> str:
    return f"{round(value, 12):g}".replace("-", "−")


def _end_labels(ends: Sequence[tuple[float, float, str, int]]) -> list[Markup]:
    """Label the lines where they end, moved apart where they would overlap, but not off the canvas."""
    ordered = sorted(ends, key=lambda end: end[1])
    heights = spread_out([y for _, y, *_ in ordered], TOP, HEIGHT - BOTTOM)
    return [
        Markup('<text class="label {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            line_style(index)[0], x + 5, y + 3.5, escape(_short(label))
        )
        for (x, _, label, index), y in zip(ordered, heights, strict=True)
    ]


def spread_out(heights: Sequence[float], top: float, bottom: float, gap: float = 12) -> list[float]:
    """Return ascending heights moved apart to `gap` where they are nearer, and none beyond `top` and `bottom`.

    Where there is no room for them, the gap is as wide as they allow.
    """
    gap = min(gap, (bottom - top) / max(len(heights) - 1, 1))
    spread: list[float] = []
    for height in heights:
        spread.append(max(height, spread[-1] + gap if spread else top))
    limit = bottom
    for index in reversed(range(len(spread))):
        spread[index] = min(spread[index], limit)
        limit = spread[index] - gap
    return spread


def _short(label: str, most: int = 11) -> str:
    shown = visible(label)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
