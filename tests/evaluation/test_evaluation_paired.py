"""The paired difference against arithmetic by hand."""

from __future__ import annotations

import math

import pytest

from tokencredit.errors import UsageError
from tokencredit.evaluation.paired import difference


def scores(values: list[float]) -> dict[str, float]:
    return {f"p{number}": value for number, value in enumerate(values)}


def test_by_hand():
    """Deltas 1, 0, 0, -1: mean 0, variance 2/3, standard error sqrt(2/3 / 4)."""
    found = difference(scores([1, 1, 0, 0]), scores([0, 1, 0, 1]))
    assert (found.problems, found.first, found.second, found.value) == (4, 0.5, 0.5, 0.0)
    assert found.stderr == pytest.approx(math.sqrt(1 / 6))
    assert (found.better, found.worse) == (1, 1)
    assert found.words == "no difference shown"


def test_pairing_takes_out_what_both_share():
    """Half of the problems are hard for both; the first is right on ten more of the easy ones."""
    ours = scores([0] * 50 + [1] * 50)
    theirs = scores([0] * 60 + [1] * 40)
    found = difference(ours, theirs)
    assert found.value == pytest.approx(0.1) and found.low is not None and found.low > 0
    assert found.words == "higher"
    assert difference(theirs, ours).words == "lower"


def test_a_few_problems_show_nothing():
    """Five of five better: by the sign test that happens by chance with p = 2 / 2**5 > 0.05; six of six do not."""
    assert difference(scores([1] * 5), scores([0] * 5)).words == "no difference shown: only 5 problems differ"
    assert difference(scores([1] * 6), scores([0] * 6)).words == "higher"


def test_an_interval_that_covers_zero_shows_nothing():
    found = difference(scores([1] * 12 + [0] * 8), scores([0] * 12 + [1] * 8))
    assert found.low is not None and found.high is not None and found.low < 0 < found.high
    assert found.words == "no difference shown"


def test_only_shared_problems_count():
    found = difference({"a": 1.0, "b": 0.0}, {"b": 1.0, "c": 1.0})
    assert (found.problems, found.value, found.stderr, found.low) == (1, -1.0, None, None)
    assert found.words == "no difference shown"


def test_nothing_shared():
    with pytest.raises(UsageError, match="share no problem"):
        difference({"a": 1.0}, {"b": 1.0})
