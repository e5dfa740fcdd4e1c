"""Figures of one completion with a known truth, and their means."""

from __future__ import annotations

import numpy as np
import pytest

from tokencredit.evaluation.metrics import interval
from tokencredit.fidelity.figures import fatal_figures, path_figures, role_figures, step_figures
from tokencredit.fidelity.summary import intervals, means, summarise

ON_PATH = [False, True, True, False, True]
RIGHT = [None, True, False, False, False]


def test_path_figures():
    found = path_figures(np.array([0.0, 3.0, 2.0, 2.5, 1.0]), ON_PATH)
    # pairs in order: 3 beats 0 and 2.5, 2 beats 0, 1 beats 0: 4 of 6; hits at ranks 1, 3, 4
    assert found["path_auroc"] == pytest.approx(4 / 6)
    assert found["path_ap"] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert found["path_precision"] == pytest.approx(2 / 3)


def test_the_wrong_step_is_the_one_that_the_answer_depends_on():
    """The fourth token is wrong, but off the path: the positives are the third and the fifth."""
    assert step_figures(np.array([0.0, 0, 2, 1, 3]), ON_PATH, RIGHT) == {"step_auroc": 1.0, "step_ap": 1.0}
    assert step_figures(np.array([0.0, 0, 0, 1, 0]), ON_PATH, RIGHT)["step_auroc"] == pytest.approx(2 / 6)


def test_a_failure_without_a_wrong_step_has_no_figures():
    assert set(step_figures(np.ones(2), [True, True], [True, None]).values()) == {None}


def test_the_fatal_step_is_the_first_wrong_one_on_the_path():
    """Step 0 is off the path, steps 1 and 2 are wrong on it: step 1 is to have the highest mean of the three."""
    steps, on_path = [0, 0, 1, 1, 2, -1], [False, False, True, False, True, False]
    right = [False, False, False, False, False, None]

    def found(*blame: float) -> float | None:
        return fatal_figures(np.array(blame), steps, on_path, right)["fatal_auroc"]

    assert found(0.0, 1, 2, 2, 1, 9) == 1.0
    assert found(2.0, 2, 3, 0, 1, 9) == 0.5  # the mean 1.5 lies between 2 and 1
    assert found(2.0, 2, 1, 1, 3, 0) == 0.0
    assert fatal_figures(np.ones(6), steps, [False] * 6, right) == {"fatal_auroc": None}
    assert fatal_figures(np.ones(6), [0] * 6, on_path, right) == {"fatal_auroc": None}


def test_roles_that_are_absent():
    shares = {"operand": {"importance_share": 1.0, "mean_weight": 1.5, "tokens": 3}}
    found = role_figures(shares, ["operand", "filler"])
    assert found["operand"] == {"importance_share": 1.0, "mean_weight": 1.5}
    assert found["filler"] == {"importance_share": 0.0, "mean_weight": None}
    unmeasured = {"operand": {"importance_share": None, "mean_weight": 1.0}}
    assert role_figures(unmeasured, ["filler"])["filler"]["importance_share"] is None


def mean(values, seed: int) -> dict:
    return means({"it": values}, seed)["it"]


def test_means_are_over_problems():
    """Two completions of the first problem count as one: (1 + 4) / 2, not (0 + 2 + 4) / 3."""
    found = mean([(0, 0.0), (0, 2.0), (1, 4.0), (2, None), (3, float("nan"))], seed=0)
    assert (found["value"], found["n"]) == (2.5, 3)
    assert found["stderr"] == pytest.approx(1.5)  # sd 3/sqrt(2), over sqrt(2)
    assert (found["low"], found["high"]) == (1.0, 4.0)  # of two problems the bootstrap draws 1, 2.5 and 4
    assert mean([(0, None)], seed=0) == {"value": None, "stderr": None, "low": None, "high": None, "n": 0}


def test_intervals_are_those_of_one_figure_at_a_time():
    values = np.random.default_rng(1).exponential(size=(40, 3))
    low, high = intervals(values, seed=5)
    for column, ends in zip(values.T, zip(low, high, strict=True), strict=True):
        assert ends == pytest.approx(interval(column.tolist(), bounded=False, seed=5), rel=1e-12)


def test_figures_that_other_problems_have_keep_to_their_own():
    """Each alone and both together: the resamples are drawn over the problems that a figure has."""
    first = [(problem, float(problem**2)) for problem in range(6)]
    second = [(problem, None if problem == 2 else float(problem)) for problem in range(6)]
    together = means({"a": first, "b": second, "c": first}, seed=1)
    assert together == {"a": mean(first, 1), "b": mean(second, 1), "c": mean(first, 1)}


def test_the_interval_is_that_of_the_normal_distribution_for_many():
    values = np.random.default_rng(0).normal(1.0, 2.0, 400)
    found = mean(enumerate(values.tolist()), seed=0)
    half = 1.96 * values.std(ddof=1) / 20
    assert found["low"] == pytest.approx(values.mean() - half, abs=0.03)
    assert found["high"] == pytest.approx(values.mean() + half, abs=0.03)


def test_summary_of_rows():
    curves = {"shares": [0.0, 1.0], "deletion": [0.0, 2.0], "insertion": [2.0, 0.0]}
    rows = [
        {"problem": 0, "figures": {"a": 1.0}, "curves": curves},
        {"problem": 1, "figures": {"a": 3.0, "b": 5.0}, "curves": {**curves, "deletion": [0.0, 4.0]}},
    ]
    found = summarise(rows, seed=0)
    assert found["metrics"]["a"]["value"] == 2.0
    assert (found["metrics"]["b"]["value"], found["metrics"]["b"]["n"]) == (5.0, 1)
    assert [level["value"] for level in found["curves"]["deletion"]] == [0.0, 3.0]
    assert found["curves"]["shares"] == [0.0, 1.0]
    assert "by_role" not in found
