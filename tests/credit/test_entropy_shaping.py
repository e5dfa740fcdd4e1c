"""Entropy shaping, on a policy whose predictions are known."""

from __future__ import annotations

import math

import pytest
import torch

from models import llama, ragged
from tokencredit import token_importance, token_weights
from tokencredit.credit.mass import mean_one


def test_by_hand():
    values = torch.tensor([[math.log(2), 0.0, math.log(8), 5.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    # log 2, 0 and log 8 = 3 log 2: their mean is 4/3 log 2, so the weights are 3/4, 0 and 9/4.
    assert mean_one(values, mask).tolist() == [pytest.approx([0.75, 0.0, 2.25, 1.0]), [1.0] * 4]


def test_weights_are_entropies_over_their_mean():
    model, rollouts = llama(), ragged()
    entropies = token_importance(model, rollouts, "entropy")[0, :9]
    weights = token_weights(model, rollouts, "entropy-shaping")[0]
    torch.testing.assert_close(weights[:9], entropies / entropies.mean(), rtol=1e-12, atol=0)
    assert (weights[9:] == 1).all()
