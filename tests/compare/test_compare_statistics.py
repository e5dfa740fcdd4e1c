"""Statistics of paired runs against arithmetic by hand, scipy's other ways and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tokencredit.compare import statistics


def test_paired_test_by_hand():
    """Differences 1, 2, 3, 6: mean 3, variance (4 + 1 + 0 + 9) / 3, t = 3 / sqrt(14/3 / 4) = 2.777."""
    found = statistics.paired_test([1.0, 2.0, 3.0, 6.0])
    assert (found.pairs, found.mean) == (4, 3.0)
    assert found.sd == pytest.approx(math.sqrt(14 / 3))
    half = 3.182446 * math.sqrt(14 / 3 / 4)  # the 97.5% quantile of t with 3 degrees of freedom, from a table
    assert found.interval == pytest.approx((3 - half, 3 + half), rel=1e-6)
    assert found.p == pytest.approx(2 * stats.t.sf(3 / math.sqrt(14 / 3 / 4), 3))


def test_paired_test_is_that_of_two_related_samples():
    first, second = [0.5, 0.7, 0.6, 0.9, 0.4], [0.45, 0.6, 0.65, 0.7, 0.4]
    found = statistics.paired_test([a - b for a, b in zip(first, second, strict=True)])
    assert found.p == pytest.approx(stats.ttest_rel(first, second).pvalue)


@pytest.mark.parametrize(("differences", "sd"), [([0.3], None), ([0.0, 0.0], 0.0), ([0.1 + 0.2, 0.3], 0.0)])
def test_no_test_without_spread(differences, sd):
    found = statistics.paired_test(differences)
    assert (found.sd, found.interval, found.p) == (sd, None, None)


def test_holm_by_hand():
    """Sorted 0.01, 0.02, 0.04 times 4, 3, 2 (the fourth has no p) = 0.04, 0.06, 0.08; then kept from falling."""
    found = statistics.holm({"a": 0.02, "b": None, "c": 0.01, "d": 0.04})
    assert found == {"a": pytest.approx(0.06), "b": None, "c": pytest.approx(0.04), "d": pytest.approx(0.08)}
    assert statistics.holm({"a": 0.03, "b": 0.02}) == {"a": pytest.approx(0.04), "b": pytest.approx(0.04)}
    assert statistics.holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_stratified_interval_against_all_resamples():
    """Every resample of (0, 1, 5) and of (10, 12), each within itself: 27 x 4 of equal weight."""
    strata = {"a": [0.0, 1.0, 5.0], "b": [10.0, 12.0]}
    means = [
        (sum(a) + sum(b)) / 5
        for a in itertools.product(strata["a"], repeat=3)
        for b in itertools.product(strata["b"], repeat=2)
    ]
    expected = np.percentile(means, [2.5, 97.5])
    low, high = statistics.stratified_interval(strata)
    assert low == pytest.approx(expected[0], abs=0.15)
    assert high == pytest.approx(expected[1], abs=0.15)


def test_strata_keep_their_own_level():
    """What lies between warm starts is no part of the interval; resampled together it would be."""
    strata = {0: [0.0, 0.0, 0.0], 1: [1.0, 1.0, 1.0]}
    assert statistics.stratified_interval(strata) == (0.5, 0.5)
    together = statistics.stratified_interval({0: [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]})
    assert together[1] - together[0] > 0.5


def test_one_run_shows_no_spread():
    assert statistics.stratified_interval({0: [0.2, 0.4], 1: [0.3]}) is None
    assert statistics.stratified_interval({}) is None


def test_bands_are_intervals_at_each_place():
    values = np.array([[1.0, 2.0, 4.0], [0.0, 0.0, 9.0]])
    low, high = statistics.stratified_bands([values])
    for row in range(2):
        expected = statistics.stratified_interval({0: values[row].tolist()})
        assert (low[row], high[row]) == pytest.approx(expected, abs=0.4)


def test_interquartile_mean_by_hand():
    """Of eight the lowest and highest two go; of five one at each end; of three none."""
    assert statistics.interquartile_mean([100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 0.0, 99.0]) == pytest.approx(2.5)
    assert statistics.interquartile_mean([9.0, 1.0, 2.0, 3.0, -7.0]) == pytest.approx(2.0)
    assert statistics.interquartile_mean([0.0, 0.0, 3.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(("pairs", "alpha"), [(2, 0.05), (5, 0.05), (5, 0.05 / 7), (20, 0.05)])
def test_power_against_simulation(pairs, alpha):
    """Of 40,000 samples with the detectable difference, four fifths are shown by scipy's own test."""
    difference = statistics.detectable_difference(2.0, pairs, alpha)
    sample = np.random.default_rng(3).normal(difference, 2.0, (40_000, pairs))
    shown = stats.ttest_1samp(sample, 0.0, axis=1).pvalue < alpha
    assert shown.mean() == pytest.approx(0.8, abs=0.01)


def test_power_without_an_effect_is_the_level():
    assert statistics.power_of_paired_t(0.0, 6, 0.05) == pytest.approx(0.05, rel=1e-5)
    assert statistics.power_of_paired_t(1.0, 6, 0.05) == pytest.approx(
        stats.nct.sf(stats.t.isf(0.025, 5), 5, math.sqrt(6))
        + stats.nct.cdf(-stats.t.isf(0.025, 5), 5, math.sqrt(6)),
        rel=1e-5,
    )


def test_detectable_difference_of_few_and_of_equal_pairs():
    assert statistics.detectable_difference(1.0, 1, 0.05) is None
    assert statistics.detectable_difference(0.0, 5, 0.05) == 0.0


def test_curve_average_by_hand():
    """0.2 to 0.4 over 10 steps, 0.4 to 0.8 over 30: (10 x 0.3 + 30 x 0.6) / 40."""
    assert statistics.curve_average([(0, 0.2), (10, 0.4), (40, 0.8)]) == pytest.approx(0.525)
    assert statistics.curve_average([(5, 0.3)]) == 0.3


def test_value_at_time_by_hand():
    """Steps took 2 s up to 10 and 1 s after; at 25 s it is at step 15, half way from 10 to 20."""
    curve, clock = [(0, 0.0), (10, 0.4), (20, 0.6)], [(0, 0.0), (10, 20.0), (20, 30.0)]
    assert statistics.value_at_time(curve, clock, 25.0) == pytest.approx(0.5)
    assert statistics.value_at_time(curve, clock, 10.0) == pytest.approx(0.2)
    assert statistics.value_at_time(curve, clock, 99.0) == 0.6


def test_sampling_error_bounds():
    """2,501 samples are the fewest whose error is under a point at any share."""
    assert statistics.sampling_error(0.5, 2501) < 0.01 <= statistics.sampling_error(0.5, 2500)
    assert statistics.sampling_error(0.1, 900) == pytest.approx(0.01)
