"""Path x sibling: the product of the two, token by token."""

from __future__ import annotations

import sys

import pytest
import torch

from credit.test_sibling import family, pair
from models import llama, with_probe
from tokencredit import Options, token_weights
from tokencredit.credit import STRATEGIES, Credit, assign
from tokencredit.credit.path_sibling import path_sibling
from tokencredit.credit.sibling import sibling
from tokencredit.policy import Policy


def test_by_hand(monkeypatch):
    """Weights 1.5, 0.5 and bonuses 2, -1 on the failure's two tokens: bonuses 3, -0.5, and the success has none."""
    module = sys.modules["tokencredit.credit.path_sibling"]
    weights = torch.tensor([[1.5, 0.5, 1.0], [0.2, 1.8, 1.0]], dtype=torch.float64)
    bonus = torch.tensor([[2.0, -1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    monkeypatch.setattr(module, "path", lambda *_: Credit(importance=weights, weights=weights))
    monkeypatch.setattr(module, "sibling", lambda *_: Credit(bonus=bonus))
    found = path_sibling(Policy(llama()), pair([2, 3, 4], [5, 6, 7]), Options())
    assert found.bonus.tolist() == [[3.0, -0.5, 0.0], [0.0, 0.0, 0.0]]
    assert torch.equal(found.weights, weights) and torch.equal(found.importance, weights)


def test_weights_are_those_of_path_and_bonuses_those_of_sibling_by_weight():
    """Also with a row that has no answer of its own, and one whose advantage is 0 and whose weights stay 1."""
    model, rollouts = llama(), with_probe(family(), [2])
    answer = rollouts.answer_mask.clone()
    answer[4] = False
    rollouts = type(rollouts)(**{**vars(rollouts), "answer_mask": answer})
    found = assign(STRATEGIES["path-sibling"], Policy(model), rollouts, Options())
    weights = token_weights(model, rollouts, "path")
    torch.testing.assert_close(found.weights, weights, rtol=1e-9, atol=1e-12)
    assert (found.weights[4] == 1).all() and (found.weights[7:] == 1).all() and found.weights[1].std() > 0.05
    product = sibling(Policy(model), rollouts, Options()).bonus * weights
    carrying = rollouts.reasoning_mask & (product != 0).any(1, keepdim=True)
    centred = torch.where(carrying, product - product[carrying].mean(), product)
    torch.testing.assert_close(found.bonus, centred, rtol=1e-9, atol=1e-12)
    assert found.bonus[4].abs().sum() > 0 and pytest.approx(0, abs=1e-12) == float(found.bonus.sum())
