"""Metrics against arithmetic by hand and brute force."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest

from tokencredit.errors import UsageError
from tokencredit.evaluation.metrics import Scored, estimate, interval, majority_at, pass_at, summarise


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_is_the_share_of_subsets_with_a_right_one(n):
    for right, k in product(range(n + 1), range(1, n + 1)):
        subsets = list(combinations([1] * right + [0] * (n - right), k))
        assert pass_at(n, right, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_does_not_overflow():
    assert pass_at(1000, 1, 500) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [0, 3])
def test_pass_at_refuses_what_the_samples_cannot_tell(k):
    with pytest.raises(UsageError, match=f"pass@{k} needs"):
        pass_at(2, 1, k)


def block(*votes: str) -> list[Scored]:
    """Samples by their answers: "R" is right, "-" none, other letters wrong."""
    return [Scored(vote == "R", None if vote == "-" else ord(vote)) for vote in votes]


@pytest.mark.parametrize(
    ("votes", "k", "expected"),
    [
        ("RRA", 3, 1.0),
        ("RAA", 3, 0.0),
        ("RA", 2, 0.5),  # a tie of a right and a wrong answer
        ("RAB", 3, 1 / 3),
        ("RRAAB", 5, 1 / 2),
        ("R---", 4, 1.0),  # no answer is no vote
        ("----", 4, 0.0),
        ("RRAA", 2, 0.5),  # the blocks RR and AA
        ("RRAAA", 2, 0.5),  # the last one is left over
        ("RAB", 1, 1 / 3),
    ],
)
def test_majority(votes, k, expected):
    assert majority_at(block(*votes), k) == pytest.approx(expected)


def test_majority_refuses_more_than_there_are():
    with pytest.raises(UsageError, match="maj@4 needs at least 4 samples a problem, not 3"):
        majority_at(block(*"RAB"), 4)


def test_estimate_by_hand():
    """Mean 1/2; variance (4 * 1/4) / 3 = 1/3; standard error sqrt(1/3 / 4)."""
    found = estimate([1.0, 1.0, 0.0, 0.0])
    assert found.value == 0.5
    assert found.stderr == pytest.approx(math.sqrt(1 / 12))


def test_interval_against_all_resamples():
    """Of four values all 4**4 resamples can be listed; the quantiles of their means are the interval."""
    values = [0.0, 0.1, 0.35, 1.0]
    means = sorted(sum(each) / 4 for each in product(values, repeat=4))
    low, high = interval(values)
    assert low == pytest.approx(means[round(0.025 * len(means))], abs=0.03)
    assert high == pytest.approx(means[round(0.975 * len(means)) - 1], abs=0.03)


def test_interval_is_the_same_each_time():
    values = [0.0, 0.25, 0.5, 1.0, 1.0]
    assert interval(values, seed=3) == interval(values, seed=3)


def test_no_spread_is_not_certainty():
    """None of 40 right: up to p with (1 - p)**40 = 0.025 that is no surprise."""
    low, high = interval([0.0] * 40)
    assert low == 0.0 and (1 - high) ** 40 == pytest.approx(0.025)
    low, high = interval([1.0] * 40)
    assert high == 1.0 and low**40 == pytest.approx(0.025)
    assert interval([0.5] * 40) == (0.5, 0.5)
    assert interval([0.0] * 40, bounded=False) == (0.0, 0.0)


def test_one_problem_has_no_error():
    found = estimate([1.0])
    assert (found.value, found.stderr, found.low, found.high) == (1.0, None, None, None)


def test_summary_by_hand():
    """Two problems of four samples: 2 of 4 and 0 of 4 right.

    pass@1: (1/2 + 0) / 2; pass@2: (1 - C(2,2)/C(4,2)) / 2 = 5/12; maj@4: R ties with A, so (1/2 + 0) / 2.
    """
    first = [
        Scored(True, 0, False, 10),
        Scored(True, 0, False, 20),
        Scored(False, 1, True, 30),
        Scored(False, 1, True, 40),
    ]
    second = [Scored(False, None, True, 100)] * 4
    found = summarise([first, second], [1, 2, 4])
    assert list(found) == ["pass@1", "pass@2", "pass@4", "avg@4", "maj@4", "no-answer", "truncated", "tokens"]
    values = {name: each.value for name, each in found.items()}
    assert values == pytest.approx(
        {
            "pass@1": 1 / 4,
            "pass@2": 5 / 12,
            "pass@4": 1 / 2,
            "avg@4": 1 / 4,
            "maj@4": 1 / 4,
            "no-answer": 1 / 2,
            "truncated": 3 / 4,
            "tokens": 62.5,
        }
    )


def test_unknown_endings_are_left_out():
    found = summarise([[Scored(True, 0)], [Scored(False, 0, True, 5)]], [1])
    assert list(found) == ["pass@1", "no-answer"]


def test_nothing_to_summarise():
    with pytest.raises(UsageError, match="no samples"):
        summarise([], [1])
