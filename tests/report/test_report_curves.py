from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tokencredit.report.curves import (
    chart_svg,
    charts,
    line_style,
    points_of,
    smooth,
    spread_out,
    thin_out,
    ticks,
)
from tokencredit.report.records import Run


def run_of(*metrics) -> Run:
    return Run(Path("run"), {}, metrics, [])


def test_points_are_ordered_and_the_last_value_of_a_step_counts():
    run = run_of(
        {"step": 2, "loss": 1.0}, {"step": 1, "loss": 3}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": None}
    )
    assert points_of(run, "loss") == [(1.0, 3.0), (2.0, 2.0)]


def test_smoothing_keeps_the_ends_and_averages_the_middle():
    points = [(float(x), float(x % 2)) for x in range(24)]  # reach 1
    smoothed = smooth(points)
    assert smoothed[0] == (0.0, 0.0) and smoothed[-1] == (23.0, 1.0)
    assert smoothed[1] == (1.0, pytest.approx(1 / 3)) and smoothed[2] == (2.0, pytest.approx(2 / 3))


def test_long_curves_are_thinned_to_means_of_stretches():
    assert thin_out([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0), (3.0, 7.0)], most=2) == [(0.5, 2.0), (2.5, 6.0)]
    assert thin_out([(0.0, 1.0)], most=2) == [(0.0, 1.0)]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.5, 1.0]),
        (0.41, 0.79, [0.5, 0.6, 0.7]),
        (-3.0, 3.0, [-2, 0, 2]),
        (1.0, 60.0, [20, 40, 60]),
        (5.0, 5.0, [5]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_runs_differ_by_dash_and_label():
    svg = ElementTree.fromstring(
        chart_svg("reward", {"oar-g": [(1, 0.1), (2, 0.9)], "uniform": [(1, 0.1), (2, 0.9)]})
    )
    assert [path.get("stroke-dasharray") for path in svg.iter("path")] == ["none", "7 3"]
    labels = [text for text in svg.iter("text") if "label" in text.get("class")]
    assert [label.text for label in labels] == ["oar-g", "uniform"]
    assert abs(float(labels[0].get("y")) - float(labels[1].get("y"))) >= 11.9
    assert svg.get("aria-label") == "reward against step: oar-g from 0.1 to 0.9; uniform from 0.1 to 0.9"


def test_bands_lie_behind_their_lines_within_the_axes():
    lines = {"a": [(0, 1.0), (1, 2.0)], "b": [(0, 1.0), (1, 2.0)]}
    svg = ElementTree.fromstring(chart_svg("reward", lines, {"b": [(0, 0.0, 3.0), (1, 1.0, 4.0)], "a": []}))
    band, *rest = svg.iter("path")
    assert [path.get("class") for path in (band, *rest)] == ["band line-1", "mean line-0", "mean line-1"]
    corners = [tuple(map(float, corner.split())) for corner in band.get("d")[1:].split("L")]
    left, right, top, bottom = corners[0][0], corners[1][0], corners[1][1], corners[3][1]
    assert [x for x, _ in corners] == [left, right, right, left]
    assert corners[0][1] == pytest.approx(bottom - 3 / 4 * (bottom - top), abs=0.1)  # heights 3, 4, 1, 0
    assert corners[2][1] == pytest.approx(bottom - 1 / 4 * (bottom - top), abs=0.1)
    assert top == pytest.approx(12, abs=0.1)


def test_constant_and_single_points_are_drawn():
    ElementTree.fromstring(chart_svg("loss", {"a": [(1, 0.0), (2, 0.0)]}))
    svg = ElementTree.fromstring(chart_svg("loss", {"a": [(1, 0.25)]}))
    assert len(list(svg.iter("circle"))) == 1


def test_names_are_escaped_in_the_drawing():
    svg = chart_svg("<b>&", {'"><script>': [(1, 0.0)], "y": [(1, 1.0)]})
    assert "<script" not in svg and "<b>" not in svg
    ElementTree.fromstring(svg)


def test_the_known_metrics_come_first_and_other_credit_metrics_follow():
    run = run_of(
        {"step": 1, "credit/own": 1.0, "entropy": 0.5, "loss": 0.1, "reward": 0.2, "learning_rate": 1.0}
    )
    assert [chart.metric for chart in charts({"a": run})] == ["reward", "loss", "credit/own"]
    assert [chart.metric for chart in charts({"a": run}, further=True)] == ["entropy"]


def test_lines_are_told_apart_beyond_six():
    styles = [line_style(index) for index in range(36)]
    assert len(set(styles)) == 36
    assert (styles[0], styles[6]) == (("line-0", "none"), ("line-0", "7 3"))
    drawn = chart_svg("x", {str(index): [(0.0, index), (1.0, index)] for index in range(8)})
    assert drawn.count('class="mean line-0"') == 2


@pytest.mark.parametrize(
    ("heights", "apart"),
    [
        ([20, 50], [20, 50]),  # nothing to do
        ([20, 25, 30], [20, 32, 44]),  # downwards
        ([95, 98, 99], [76, 88, 100]),  # the last one meets the bottom
        ([10, 97, 99], [10, 88, 100]),  # and what is far away stays where it is
        ([2, 3], [10, 22]),
        ([50] * 11, [10 + 9 * k for k in range(11)]),  # no room for 12 each
    ],
)
def test_labels_move_apart_and_stay_between_top_and_bottom(heights, apart):
    assert spread_out(heights, 10, 100) == pytest.approx(apart)
