"""Deletion and insertion curves against one plain forward a level, and areas by hand."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import pytest
import torch

import plain
from models import bart, llama, ragged, with_probe
from tokencredit import Options, Rollouts, token_importance
from tokencredit.fidelity.causal import LEVELS, Curves, causal_curves, order
from tokencredit.policy import Policy


def scores_of(rollouts: Rollouts, levels: int = 1000) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(0, levels, tuple(rollouts.shape), generator=random).double()


def plain_moves(model, rollouts: Rollouts, row: int, tokens: list[int], new_ids, mode: str) -> float:
    """How far the outcome of one row moves when these tokens are replaced together."""
    ids, start, where, said = plain.row_parts(rollouts, row)
    changed = list(ids)
    for token in tokens:
        changed[start + token] = int(new_ids[row, token])
    with torch.no_grad():
        clean, moved = (
            plain.representation(
                plain.full_logits(model, input_ids=torch.tensor([each])), where, list(said), mode
            )
            for each in (ids, changed)
        )
    return abs(float(plain.distance(clean, moved, mode)))


@pytest.mark.parametrize("build", [llama, bart])
@pytest.mark.parametrize(
    ("options", "mode"),
    [({}, "answer_kl"), ({"outcome": "last", "counterfactual": "alternative", "pad_token_id": 7}, "last")],
)
def test_against_a_plain_forward_each(build, options, mode):
    model, rollouts = build(), with_probe(ragged(), [3])
    scores, options = scores_of(rollouts), Options(**options)
    (curves,) = causal_curves(Policy(model, max_rows=3), rollouts, [scores], options)
    new_ids = torch.zeros_like(rollouts.completion_ids)
    if options.counterfactual == "alternative":
        new_ids = alternatives(model, rollouts)
    for row in range(rollouts.shape[0]):
        if not rollouts.readable[row]:
            assert curves.deletion[row].isnan().all()
            continue
        tokens = rollouts.reasoning_mask[row].nonzero().squeeze(1).tolist()
        ranked = sorted(tokens, key=lambda token, row=row: -float(scores[row, token]))
        for level, share in enumerate(LEVELS):
            count = max(1, round(share * len(tokens))) if share else 0
            assert curves.shares[row, level] == pytest.approx(count / len(tokens))
            for found, edited in ((curves.deletion, ranked[:count]), (curves.insertion, ranked[count:])):
                expected = plain_moves(model, rollouts, row, edited, new_ids, mode)
                assert float(found[row, level]) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def alternatives(model, rollouts: Rollouts) -> torch.Tensor:
    """The most probable token at each place that is not the one there."""
    found = torch.zeros_like(rollouts.completion_ids)
    for row in range(rollouts.shape[0]):
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]]
        ids = torch.cat([prompt, rollouts.completion_ids[row][rollouts.completion_mask[row]]])
        with torch.no_grad():
            logits = plain.full_logits(model, input_ids=ids[None])
        for token in range(len(ids) - len(prompt)):
            ranked = logits[len(prompt) + token - 1].argsort(descending=True).tolist()
            found[row, token] = next(i for i in ranked if i != int(ids[len(prompt) + token]))
    return found


def test_the_first_deletion_is_exact_oar_p():
    """Where 5% is one token, deleting the top one moves the outcome by its importance."""
    model, rollouts = llama(), ragged()
    importance = token_importance(model, rollouts, "oar-p", outcome="answer_kl", pad_token_id=0)
    (curves,) = causal_curves(Policy(model), rollouts, [importance], Options(pad_token_id=0))
    for row in rollouts.readable.nonzero().squeeze(1).tolist():
        assert float(curves.deletion[row, 1]) == pytest.approx(float(importance[row].max()), rel=1e-9)


def test_answers_and_rollouts_stay_as_they_are():
    rollouts = ragged()
    before = rollouts.completion_ids.clone()
    causal_curves(Policy(llama()), rollouts, [scores_of(rollouts)], Options())
    assert torch.equal(rollouts.completion_ids, before)


@contextmanager
def counted(model):
    """The number of tokens of each pass."""
    passes: list[int] = []
    handle = model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: passes.append(args[0].numel())
    )
    yield passes
    handle.remove()


def test_rankings_together_give_what_each_gives_alone():
    """And the fewer passes, the more they replace the same tokens: all of them, at the least."""
    model, rollouts = llama(), ragged()
    policy, options = Policy(model), Options()
    rankings = [scores_of(rollouts), -scores_of(rollouts), scores_of(rollouts)]
    alone = [causal_curves(policy, rollouts, [scores], options)[0] for scores in rankings]
    with counted(model) as passes:
        together = causal_curves(policy, rollouts, rankings, options)
    for one, other in zip(alone, together, strict=True):
        for name in ("shares", "deletion", "insertion"):
            first, second = getattr(one, name), getattr(other, name)
            assert torch.allclose(first, second, rtol=1e-9, atol=1e-12, equal_nan=True)
    with counted(model) as twice:
        causal_curves(policy, rollouts, rankings[:2], options)
    assert passes == twice


@pytest.mark.parametrize("budget", [1, 60, 100_000])
def test_a_packed_pass_keeps_to_the_budget_and_runs_a_prompt_once(budget):
    model, rollouts = llama(), ragged()
    rows = rollouts.readable.nonzero().squeeze(1)
    one = rollouts.select(rows[:1])
    prompt, length = int(one.prompt_mask.sum()), int(one.answer_mask[0].nonzero().max())
    policy = Policy(model, token_budget=budget)
    causal_curves(policy, one, [scores_of(one)], Options())  # finds out what the model can do
    with counted(model) as passes:
        causal_curves(policy, one, [scores_of(one)], Options())
    assert all(tokens <= max(budget, prompt + length) for tokens in passes)
    versions = sum(tokens - prompt for tokens in passes) // length
    assert all((tokens - prompt) % length == 0 for tokens in passes)
    assert len(passes) == {1: versions, 100_000: 2}.get(budget, len(passes)) <= versions


def test_ties_are_ordered_by_seed_and_row_alone():
    rollouts = ragged()
    same, keys = torch.ones(rollouts.shape), rollouts.row_keys
    first = order(same, rollouts, 0)
    reversed_rows = rollouts.select(torch.arange(rollouts.shape[0] - 1, -1, -1))
    assert torch.equal(order(same, reversed_rows, 0).flip(0), first)
    assert not torch.equal(order(same, rollouts, 1), first)
    other = dataclasses.replace(rollouts, row_keys=keys + 1)
    assert not torch.equal(order(same, other, 0), first)
    for row, mask in zip(first, rollouts.reasoning_mask, strict=True):
        assert sorted(row[mask].tolist()) == list(range(int(mask.sum())))


def test_areas_by_hand():
    """Trapezoids over shares 0, 1/2, 1: (0 + 4)/4 + (4 + 2)/4 = 2.5, and (2 + 1)/4 + (1 + 0)/4 = 1."""
    curves = Curves(
        shares=torch.tensor([[0.0, 0.5, 1.0]]),
        deletion=torch.tensor([[0.0, 4.0, 2.0]]),
        insertion=torch.tensor([[2.0, 1.0, 0.0]]),
    )
    assert [float(area) for area in curves.areas] == [2.5, 1.0]
