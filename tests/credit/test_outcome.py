"""Outcome modes by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tokencredit import UsageError
from tokencredit.credit.outcome import Outcome, divergence, log_distribution


def outcome(*positions: list[float], targets: list[int] | None = None, padding: int = 0) -> Outcome:
    """One row whose logits are the logs of the given (unnormalised) probabilities, then masked positions."""
    width = len(positions[0])
    logits = torch.tensor([list(positions)], dtype=torch.float64).log()
    logits = torch.cat([logits, torch.full((1, padding, width), 3.0, dtype=torch.float64)], dim=1)
    count = logits.shape[1]
    mask = torch.tensor([[k < len(positions) for k in range(count)]])
    ids = (targets or [-1] * len(positions)) + [-1] * padding
    return Outcome(logits, mask, torch.tensor([ids]))


CLEAN = outcome([1, 3], [2, 2], targets=[1, 0], padding=1)
CHANGED = outcome([2, 2], [1, 3], targets=[1, 0], padding=1)
# KL((1/4, 3/4) || (1/2, 1/2)) and the reverse at the second position.
FIRST = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
SECOND = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)


def test_last_reads_the_first_position():
    assert divergence(CLEAN, CHANGED, "last").tolist() == pytest.approx([FIRST], rel=1e-12)


def test_answer_kl_sums_over_positions():
    assert divergence(CLEAN, CHANGED, "answer_kl").tolist() == pytest.approx([FIRST + SECOND], rel=1e-12)


def test_answer_mean_averages_logits():
    # Mean logits: (log 1 + log 2) / 2 against (log 3 + log 2) / 2, so p0 is in proportion sqrt 2 : sqrt 6 = 1 : sqrt 3,
    # and the changed one likewise: the two positions are only swapped.
    log_p, weights = log_distribution(CLEAN, "answer_mean")
    assert log_p[0, 0].exp().tolist() == pytest.approx([1 / (1 + 3**0.5), 3**0.5 / (1 + 3**0.5)], rel=1e-12)
    assert weights.tolist() == [[1.0]]
    assert divergence(CLEAN, CHANGED, "answer_mean").tolist() == pytest.approx([0.0], abs=1e-15)


def test_answer_joint_is_a_signed_mean():
    # log p0(answer) = (log 3/4 + log 1/2) / 2; log p(answer) = (log 1/2 + log 1/4) / 2.
    expected = (math.log(0.75) + math.log(0.5) - math.log(0.5) - math.log(0.25)) / 2
    assert divergence(CLEAN, CHANGED, "answer_joint").tolist() == pytest.approx([expected], rel=1e-12)
    assert divergence(CHANGED, CLEAN, "answer_joint").tolist() == pytest.approx([-expected], rel=1e-12)


def test_without_an_answer_the_most_probable_token_stands_for_it():
    clean, changed = outcome([1, 3]), outcome([1, 1])
    assert divergence(clean, changed, "answer_joint").tolist() == pytest.approx(
        [math.log(0.75 / 0.5)], rel=1e-12
    )


def test_impossible_tokens_are_no_nan():
    clean, changed = outcome([0.0, 1.0]), outcome([0.0, 1.0])
    assert divergence(clean, changed, "last").tolist() == [0.0]


def test_impossible_tokens_at_masked_positions_are_no_nan():
    clean = outcome([0.0, 1.0, 1.0], padding=1)
    clean.logits[0, 1, 0] = -float("inf")
    assert divergence(clean, clean, "answer_mean").tolist() == [0.0]


def test_small_kl_is_right_in_float32():
    """KL of about 1e-9 nats over 50,000 tokens: float32 arithmetic would give noise of 1e-7."""
    torch.manual_seed(0)
    logits = torch.randn(1, 1, 50_000)
    shifted = logits + 3e-5 * torch.randn(1, 1, 50_000)
    mask, targets = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.long)
    found = divergence(Outcome(logits, mask, targets), Outcome(shifted, mask, targets), "last")
    p = logits.double().softmax(-1)
    step = (shifted.double() - logits.double())[0, 0]
    second_order = 0.5 * ((p[0, 0] * step.square()).sum() - (p[0, 0] * step).sum().square())
    assert found.item() == pytest.approx(second_order.item(), rel=1e-3)


def test_unknown_mode():
    with pytest.raises(UsageError, match="answer_kl"):
        divergence(CLEAN, CHANGED, "first")


@pytest.mark.parametrize("mode", ["last", "answer_mean", "answer_joint", "answer_kl"])
def test_one_clean_row_serves_all(mode):
    changed = Outcome(
        torch.cat([CHANGED.logits, CLEAN.logits, 3 * CLEAN.logits]),
        CLEAN.mask.repeat(3, 1),
        CLEAN.targets.repeat(3, 1),
    )
    rows = torch.zeros(3, dtype=torch.long)
    once = CLEAN.select(rows)
    assert once.logits.shape[0] == 1
    repeated = Outcome(CLEAN.logits.repeat(3, 1, 1), CLEAN.mask.repeat(3, 1), CLEAN.targets.repeat(3, 1))
    found = divergence(once, changed, mode)
    torch.testing.assert_close(found, divergence(repeated, changed, mode), rtol=0, atol=0)
    assert found[1] == 0 and found[2] != found[0]
