"""Ranking figures: by hand, and against brute force over pairs, thresholds and orders of ties."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from tokencredit.fidelity.ranking import auroc, average_precision, precision_at_positives, top

CASES = [
    (np.array(scores, dtype=float), np.array(right, dtype=bool))
    for scores in ([3, 1, 2, 0, 5], [1, 1, 1, 1, 1], [2, 1, 2, 0, 1], [0, 0, 7, 7, 0])
    for right in product([False, True], repeat=5)
]


def test_by_hand():
    """Right, wrong, right, wrong: of the four pairs three are in order; precision 1/1 and 2/3 at the two hits."""
    scores, right = [0.9, 0.8, 0.7, 0.6], [True, False, True, False]
    assert auroc(scores, right) == 0.75
    assert average_precision(scores, right) == pytest.approx((1 + 2 / 3) / 2)
    assert precision_at_positives(scores, right) == 0.5


def test_equal_scores_are_chance():
    scores, right = [1.0] * 8, [True, False, False, True, False, False, False, False]
    assert auroc(scores, right) == 0.5
    assert average_precision(scores, right) == 0.25
    assert precision_at_positives(scores, right) == 0.25


@pytest.mark.parametrize(("scores", "right"), CASES)
def test_auroc_is_the_share_of_pairs_in_order(scores, right):
    pairs = [(a > b) + (a == b) / 2 for a, b in product(scores[right], scores[~right])]
    expected = sum(pairs) / len(pairs) if pairs else None
    assert auroc(scores, right) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("scores", "right"), CASES)
def test_average_precision_is_the_precision_at_each_hit(scores, right):
    """Mean over the positives of the share of positives among all that score as high at least."""
    hits = [right[scores >= score].mean() for score in scores[right]]
    expected = sum(hits) / len(hits) if hits else None
    assert average_precision(scores, right) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("scores", "right"), CASES)
def test_precision_is_the_mean_over_orders_of_ties(scores, right):
    k = int(right.sum())
    if not k:
        assert precision_at_positives(scores, right) is None
        return
    orders = [order for order in permutations(range(5)) if list(scores[list(order)]) == sorted(scores)[::-1]]
    expected = np.mean([right[list(order[:k])].mean() for order in orders])
    assert precision_at_positives(scores, right) == pytest.approx(expected)


def test_top_splits_ties():
    assert top([3.0, 1.0, 1.0, 1.0], 2) == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    assert top([3.0, 1.0], 2) == pytest.approx([1, 1])


@pytest.mark.parametrize("figure", [auroc, average_precision, precision_at_positives])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_have_no_figure(figure, bad):
    assert figure([1.0, bad, 0.0], [True, False, False]) is None
