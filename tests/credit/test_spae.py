"""SPAE: the potential against plain forwards, and the arithmetic from potentials to advantages by hand."""

from __future__ import annotations

import dataclasses
import importlib
import math
from statistics import stdev

import pytest
import torch

from models import bart, family, llama, rows_of
from tokencredit import STRATEGIES, Options
from tokencredit.credit import assign
from tokencredit.credit.spae import spae, step_potentials, step_uniforms
from tokencredit.policy import Policy
from tokencredit.rollouts import Rollouts

MODULE = importlib.import_module("tokencredit.credit.spae")  # the package has a function of that name


def two_rows() -> Rollouts:
    """Steps of 2 and 1 tokens, and of 1 and 2, then an answer of one token."""
    ids, mask = torch.full((2, 4), 5), torch.ones(2, 4, dtype=torch.bool)
    reasoning = mask.clone()
    reasoning[:, 3] = False
    return Rollouts(
        torch.full((2, 2), 4),
        torch.ones(2, 2, dtype=torch.bool),
        ids,
        mask,
        reasoning,
        ~reasoning,
        advantages=torch.tensor([1.0, -1.0], dtype=torch.float64),
        steps=torch.tensor([[0, 0, 1, -1], [0, 1, 1, -1]]),
        gold_ids=torch.full((2, 1), 6),
        ask_ids=torch.full((2, 1), 7),
    )


def test_advantages_by_hand(monkeypatch):
    phi = {0: torch.tensor([0.95, 1.0]).double(), 1: torch.tensor([0.2, -0.3]).double()}
    monkeypatch.setattr(MODULE, "step_potentials", lambda *_: phi)
    found = assign(STRATEGIES["spae"], Policy(llama()), two_rows(), Options())
    # Gains 0.95, 0.05 and 0.2, -0.5: over the range of 1.45 they are 1, 11/29 and 14/29, 0.
    e = [math.exp(x) for x in (1, 11 / 29, 14 / 29, 0)]
    mean = (2 * e[0] + e[1] + e[2] + 2 * e[3]) / 6
    # The answer was there after the first step of row 0 (0.95 > 0.9).
    damped = 1 - 0.5 * (1 - math.exp(-1))
    shaped = [1 + 0.5 * (e[0] - mean)] * 2 + [damped + 0.5 * (e[1] - mean)]
    shaped += [-1 + 0.5 * (e[2] - mean)] + [-1 + 0.5 * (e[3] - mean)] * 2
    centre, width = sum(shaped) / 6, math.sqrt(stdev(shaped) ** 2 + 1e-8)
    expected = [(x - centre) / width for x in shaped]
    advantages = found.token_advantages(two_rows().advantages)
    assert advantages[0].tolist() == pytest.approx([*expected[:3], 1.0])
    assert advantages[1].tolist() == pytest.approx([*expected[3:], -1.0])


@pytest.mark.parametrize("build", [llama, bart])
def test_potentials_against_plain_forwards(build):
    model, rollouts, options = build(), rows_of(family(), [1, 4]), Options(samples=2, sample_tokens=3, seed=3)
    ends = {0: [3, 7], 1: [4]}
    found = step_potentials(Policy(model), rollouts, ends, options)
    assert [len(values) for values in found.values()] == [2, 1]
    for row, own in ends.items():
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]]
        gold = [token for token in rollouts.gold_ids[row].tolist() if token >= 0]
        for number, end in enumerate(own):
            before = torch.cat([prompt, rollouts.completion_ids[row, :end], torch.tensor([9, 3])]).tolist()
            key = [(int(rollouts.row_keys[row]), number)]
            uniforms = step_uniforms(key, 2, 3, options)[0]
            accuracy = sum(next_token(model, before + gold[:m])[gold[m]] for m in range(len(gold))) / len(
                gold
            )
            confidence = sum(certainty(model, before, draws) for draws in uniforms) / 2
            expected = 1.5 * accuracy * confidence + 0.5 * accuracy - confidence
            assert float(found[row][number]) == pytest.approx(float(expected), rel=1e-8)


def next_token(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1)


def certainty(model, before: list[int], uniforms: torch.Tensor) -> float:
    """exp(-mean entropy) of one text drawn at temperature 0.6, which ends with the model's end token."""
    written, entropies = list(before), []
    for uniform in uniforms:
        p = next_token(model, written)
        entropies.append(float(-(p * p.log()).sum()))
        sharper = p ** (1 / 0.6)
        written.append(int(((sharper / sharper.sum()).cumsum(0) <= uniform).sum()))
        if written[-1] == 1:
            break
    return math.exp(-sum(entropies) / len(entropies))


def test_draws_are_those_of_the_row_and_its_step():
    options = Options(seed=1, step=2)
    both = step_uniforms([(3, 0), (4, 1)], 2, 3, options)
    assert torch.equal(both[1], step_uniforms([(4, 1)], 2, 3, options)[0])
    assert not torch.equal(both[0], step_uniforms([(3, 1)], 2, 3, options)[0])
    assert not torch.equal(both[0], step_uniforms([(3, 0)], 2, 3, dataclasses.replace(options, step=3))[0])


def test_a_broken_row_moves_no_other(monkeypatch):
    def phi(first: float):
        return {0: torch.tensor([first, 1.0]).double(), 1: torch.tensor([0.2, -0.3]).double()}

    def bonus(values, rollouts):
        monkeypatch.setattr(MODULE, "step_potentials", lambda *_: values)
        return spae(Policy(llama()), rollouts, Options()).bonus

    alone = bonus({0: phi(0)[1]}, rows_of(two_rows(), [1]))
    beside = bonus(phi(math.nan), two_rows())
    torch.testing.assert_close(beside[1], alone[0])
