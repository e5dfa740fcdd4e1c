"""Early-answer potential as a baseline: numbers computed by hand, and a plain regression."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from credit.test_sibling import pair
from models import bart, family, gpt2, llama
from test_policy import Sum
from tokencredit import Options, Rollouts
from tokencredit.credit.early_answer import early_answer
from tokencredit.policy import Policy


def asked(advantages: list[float]) -> Rollouts:
    """Completions 1, 0 and 0, 0 before their answers; the right answer 0 is asked for with 1."""
    return pair(
        [1, 0, 0],
        [0, 0, 1],
        advantages=torch.tensor(advantages, dtype=torch.float64),
        gold_ids=torch.zeros(2, 1, dtype=torch.long),
        ask_ids=torch.ones(2, 1, dtype=torch.long),
    )


def test_by_hand():
    """After n ones, `Sum` predicts 0 with probability 3^n / (3^n + 1).

    Before step 1 both have Phi = 3/4, after the question's 1. Before step 2, Phi is 9/10 after 1 and 3/4 after 0, so
    that d = 3/40, -3/40. With A = 1, -1 the slope is (2 * 3/40) / (2 * 9/1600) = 40/3, and b = -1, 1 on step 2: nothing
    is left of A. With A = -1, 1 the potential misleads, and is not used.
    """
    found = early_answer(Policy(Sum()), asked([1.0, -1.0]), Options()).bonus
    torch.testing.assert_close(found, torch.tensor([[0, -1, 0], [0, 1, 0]]).double(), rtol=1e-9, atol=1e-12)
    half = early_answer(Policy(Sum()), asked([1.0, -1.0]), Options(coefficient=0.5)).bonus
    torch.testing.assert_close(half, found / 2, rtol=1e-12, atol=0)
    assert (early_answer(Policy(Sum()), asked([-1.0, 1.0]), Options()).bonus == 0).all()


def plain(model, rollouts: Rollouts) -> torch.Tensor:
    """One sequence at a time; numpy's least squares with an intercept for each group and step."""
    phi, at = [], []
    for row in range(rollouts.shape[0]):
        if rollouts.advantages[row] == 0:
            continue
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
        gold = [token for token in rollouts.gold_ids[row].tolist() if token >= 0]
        for step in range(int(rollouts.steps[row].max()) + 1):
            said = rollouts.completion_ids[row][
                (rollouts.steps[row] < step) & rollouts.reasoning_mask[row]
            ].tolist()
            ids = prompt + said + rollouts.ask_ids[row].tolist() + gold
            with torch.no_grad():
                p = model(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
            start = len(ids) - len(gold)
            phi.append(np.prod([float(p[start + k - 1, token]) for k, token in enumerate(gold)]))
            at.append((row, step))
    groups = [(int(rollouts.groups[row]), step) for row, step in at]
    design = np.array(
        [
            [x, *(float(group == own) for group in sorted(set(groups)))]
            for x, own in zip(phi, groups, strict=True)
        ]
    )
    returns = np.array([float(rollouts.advantages[row]) for row, _ in at])
    slope = np.linalg.lstsq(design, returns, rcond=None)[0][0]
    bonus = torch.zeros(rollouts.shape, dtype=torch.float64)
    for x, own, (row, step) in zip(phi, groups, at, strict=True):
        mean = np.mean([y for y, other in zip(phi, groups, strict=True) if other == own])
        bonus[row, rollouts.steps[row] == step] = -max(slope, 0.0) * (x - mean)
    return bonus


@pytest.mark.parametrize("build", [llama, gpt2, bart])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_against_plain_regression(build, sign):
    """Packed and whole rows, golds of one token and of two; one of the two signs makes the slope positive."""
    model, rollouts = build(), family()
    rollouts = dataclasses.replace(rollouts, advantages=sign * rollouts.advantages)
    found = early_answer(Policy(model), rollouts, Options()).bonus
    torch.testing.assert_close(found, plain(model, rollouts), rtol=1e-7, atol=1e-10)
    if not (found != 0).any():
        flipped = dataclasses.replace(rollouts, advantages=-rollouts.advantages)
        assert (early_answer(Policy(model), flipped, Options()).bonus != 0).any()


def test_all_questions_of_a_row_share_a_pass():
    """The clean pass, then one pass over all questions: those before the first step are asked once a prompt."""
    model, rollouts, sizes = llama(), family(), []
    early_answer(Policy(model), rollouts, Options())
    model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: sizes.append(args[0].numel()))
    early_answer(Policy(model), rollouts, Options())
    # Steps of the seven rows with an advantage: 3, 3, 2, 4, 2, 3, 1, of which the first are the prompt's (4 + 3 rows);
    # row 1 begins as row 0 does, so that its second is row 0's. Questions have 3 tokens in the first group, 4 in the
    # second.
    assert len(sizes) == 2 and sizes[1] == 3 * (1 + (2 + 2 + 1 + 3) - 1) + 4 * (1 + 1 + 2)


def test_a_row_that_is_not_finite_does_not_spread():
    """Its group's means and the slope are those of the others."""
    rollouts = family()
    ids = rollouts.completion_ids.masked_fill(rollouts.completion_ids == 36, 35)
    ids[2, 0] = 36
    rollouts = dataclasses.replace(rollouts, completion_ids=ids)
    model = llama()
    model.get_input_embeddings().register_forward_hook(
        lambda _module, args, output: output.masked_fill((args[0] == 36)[..., None], torch.nan)
    )
    found = early_answer(Policy(model), rollouts, Options()).bonus
    assert found[2, 2:7].isnan().all() and found[[0, 1, 3, 4, 5, 6, 7, 8]].isfinite().all()
    assert (found[[0, 1, 3]] != 0).any()
