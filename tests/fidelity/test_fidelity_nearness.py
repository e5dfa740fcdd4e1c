"""Agreement of two credits: by hand, and against scipy-free arithmetic."""

from __future__ import annotations

import pytest
import torch

from tokencredit import bilevel_gate
from tokencredit.credit import TokenCredit
from tokencredit.fidelity.nearness import agreement
from tokencredit.fidelity.scores import blame, magnitude


def credit(importance, weights=None, bonus=None, mask=None) -> TokenCredit:
    importance = torch.tensor(importance, dtype=torch.float64)
    mask = torch.ones_like(importance, dtype=torch.bool) if mask is None else mask
    gate = bilevel_gate(importance, mask)
    zeros = torch.zeros_like(importance)
    return TokenCredit(
        importance=importance,
        weights=gate.weights if weights is None else torch.tensor(weights, dtype=torch.float64),
        bonus=zeros if bonus is None else torch.tensor(bonus, dtype=torch.float64),
        suppressed=gate.suppressed,
        boosted=gate.boosted,
        rows=mask.any(dim=1),
    )


def test_a_credit_agrees_with_itself():
    one = credit([[5.0, 1.0, 2.0, 4.0, 3.0]])
    (found,) = agreement(one, one, one.importance > 0)
    assert found == pytest.approx({"spearman": 1, "top_overlap": 1, "mean_dw": 0, "same_side": 1})


def test_by_hand():
    """Ten tokens and a reversed order but for the top one: with d the differences of ranks, rho = 1 - 6 sum d^2/990."""
    values = [[10.0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    other = [[10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1]]
    one, two = credit(values), credit(other)
    (found,) = agreement(one, two, torch.ones(1, 10, dtype=torch.bool))
    squares = sum((a - b) ** 2 for a, b in zip(values[0], other[0], strict=True))
    assert found["spearman"] == pytest.approx(1 - 6 * squares / 990)
    assert found["top_overlap"] == 1
    assert found["mean_dw"] == pytest.approx(float((one.weights - two.weights).abs().sum()) / 10)
    sides = [(c.boosted.int() - c.suppressed.int())[0].tolist() for c in (one, two)]
    assert found["same_side"] == pytest.approx(sum(a == b for a, b in zip(*sides, strict=True)) / 10)


def test_only_reasoning_tokens_count():
    mask = torch.tensor([[True] * 4 + [False] * 2])
    one, two = credit([[1.0, 2, 3, 4, 0, 99]], mask=mask), credit([[1.0, 2, 3, 4, 99, 0]], mask=mask)
    (found,) = agreement(one, two, mask)
    assert found == pytest.approx({"spearman": 1, "top_overlap": 1, "mean_dw": 0, "same_side": 1})


def test_ties_overlap_as_chance_has_it():
    """Of ten equal tokens each is the top one in a tenth of the orders."""
    flat, steep = credit([[1.0] * 10]), credit([[float(i) for i in range(10)]])
    (found,) = agreement(flat, steep, torch.ones(1, 10, dtype=torch.bool))
    assert found["spearman"] is None
    assert found["top_overlap"] == pytest.approx(0.1)


def test_rows_without_tokens_and_importance_that_is_not_finite():
    mask = torch.tensor([[False, False], [True, True]])
    broken = credit([[0.0, 0.0], [float("nan"), 1.0]], mask=mask)
    empty, found = agreement(broken, credit([[0.0, 0.0], [1.0, 2.0]], mask=mask), mask)
    assert set(empty.values()) == {None}
    assert (found["spearman"], found["top_overlap"]) == (None, None)


def test_scores_of_each_form_of_credit():
    """Importance where there is one; else weights and the size of the bonus. Blame is the advantage at -1, turned."""
    measured = credit([[1.0, 3.0]])
    assert magnitude(measured).tolist() == [[1, 3]]
    weighted = credit([[0.0, 0.0]], weights=[[0.5, 1.5]])
    assert magnitude(weighted).tolist() == [[0.5, 1.5]]
    added = credit([[0.0, 0.0]], bonus=[[-2.0, 1.0]])
    assert magnitude(added).tolist() == [[3, 2]]
    assert blame(added).tolist() == [[3, 0]]
    assert torch.equal(blame(added), -added.token_advantages(torch.tensor([-1.0])))
