"""FIPO by hand: a policy that is given, against one that wrote the completions."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from models import llama, ragged, rows_of
from tokencredit import Options, UsageError, token_weights
from tokencredit.credit.fipo import discounted_future, fipo
from tokencredit.generation import KnownPolicy
from tokencredit.policy import Policy


def moved(rows: list[list[float]], **options) -> torch.Tensor:
    """Weights (1, T) of row 1, whose 7 tokens are 4 of reasoning, 2 of the marker and one of the answer."""
    rollouts = rows_of(ragged(), [1])
    logps = torch.zeros(rollouts.shape, dtype=torch.float64)
    logps[:, :7] = torch.tensor(rows, dtype=torch.float64)
    rollouts = dataclasses.replace(rollouts, old_logps=torch.zeros_like(logps))
    return fipo(KnownPolicy(rollouts, logps), rollouts, Options(mass=False, **options)).weights


def test_the_future_by_hand():
    values = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    # 1 + 2 / 2 + 4 / 4, 2 + 4 / 2, 4.
    assert discounted_future(values, 0.5).tolist() == [[3.0, 4.0, 4.0]]


def test_weights_by_hand():
    """With a half-life of one token gamma is 1/2; the marker and the answer are part of the future."""
    weights = moved([[0.05, -0.1, 0.1, 0.0, 0.0, 0.04, 0.08]], half_life=1.0)[0, :4]
    # Sums from the end: 0.08, 0.08, 0.04, 0.02, 0.11, -0.045, 0.0275; clip(exp) keeps the second at 1.
    expected = [math.exp(0.0275), 1.0, math.exp(0.11), math.exp(0.02)]
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)
    assert moved([[1.0] * 7])[0, :4].tolist() == [1.2] * 4
    # A token that has become more than ten times as likely counts for nothing.
    assert moved([[0, 0, 0, math.log(10.5), 0, 0, 0]])[0, :4].tolist() == [1.0] * 4


def test_mass_is_kept_and_an_unchanged_policy_changes_nothing():
    model, rollouts = llama(), ragged()
    older = llama(seed=1)
    logps = Policy(older).token_logps(rollouts)
    weights = token_weights(model, dataclasses.replace(rollouts, old_logps=logps), "fipo")
    mask = rollouts.reasoning_mask
    torch.testing.assert_close((weights * mask).sum(1), mask.sum(1).double())
    assert (weights[2] != 1).any()
    same = dataclasses.replace(rollouts, old_logps=Policy(model).token_logps(rollouts))
    torch.testing.assert_close(token_weights(model, same, "fipo"), torch.ones_like(weights))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"half_life": 0}, "half_life must be at least 1"),
        ({"future_clip": math.nan}, "future_clip must be a finite number"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"continuations": 2.5}, "continuations must be a whole number"),
        ({"from_error": "x"}, "from_error must be a finite number"),
        ({"amplification": 0.5}, "amplification must be at least 1"),
    ],
)
def test_options_out_of_range(given, message):
    with pytest.raises(UsageError, match=message):
        Options(**given)
