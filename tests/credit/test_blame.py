"""Blame by entropy in failures alone."""

from __future__ import annotations

import torch

from models import family, llama
from tokencredit import token_importance, token_weights


def test_entropy_in_failures_and_nothing_elsewhere():
    model, rollouts = llama(), family()
    found = token_importance(model, rollouts, "entropy-blame")
    failed = rollouts.advantages < 0
    assert torch.equal(found[failed], token_importance(model, rollouts, "entropy")[failed])
    assert (found[~failed] == 0).all()
    weights = token_weights(model, rollouts, "entropy-blame")
    assert (weights[~failed] == 1).all()
    torch.testing.assert_close(weights[failed], token_weights(model, rollouts, "entropy")[failed])
