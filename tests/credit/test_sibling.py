"""Sibling potential against numbers computed by hand and against plain forwards."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter

import pytest
import torch

from models import bart, gpt2, llama
from models import family as families
from test_policy import Sum
from tokencredit import Options, Rollouts
from tokencredit.credit.sibling import Potentials, sibling, sibling_potentials
from tokencredit.credit.steps import aligned, on_tokens, similarity, steps_of, thinned
from tokencredit.policy import Policy


def family() -> Rollouts:
    """Completions some of which die."""
    return families(seed=2)


def pair(failed: list[int], won: list[int], **changes) -> Rollouts:
    """A failure and a success after the prompt 0: one token a step, the last token the answer."""
    ids = torch.tensor([failed, won])
    answer = torch.zeros_like(ids, dtype=torch.bool)
    answer[:, -1] = True
    fields = dict(
        prompt_ids=torch.zeros(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1, dtype=torch.bool),
        completion_ids=ids,
        completion_mask=torch.ones_like(answer),
        reasoning_mask=~answer,
        answer_mask=answer,
        advantages=torch.tensor([-1.0, 1.0]),
        groups=torch.zeros(2, dtype=torch.long),
        steps=torch.arange(ids.shape[1]).expand(2, -1).masked_fill(answer, -1),
    )
    return Rollouts(**{**fields, **changes})


def test_by_hand():
    """After n ones, `Sum` predicts 0 with probability 3^n / (3^n + 1); the success says 0, 0 and answers 1.

    After the failure's 1 the rest (0, 1) has probability 3/4 * 1/4, after the success's own 0 it has 1/2 * 1/2: the
    ratio is 3/4. After 1, 0 the answer has 1/4, after 0, 0 it has 1/2: 1/2. So phi = 1, 3/4, 1/2;
    c = 2 * 3/4 - 1, 2 * 1/2 - 3/4 = 1/2, 1/4; rms = sqrt((1/4 + 1/16) / 2) = sqrt(5/32).
    """
    rollouts, policy = pair([1, 0, 0], [0, 0, 1]), Policy(Sum())
    phi = sibling_potentials(policy, rollouts, Options()).phi
    assert list(phi) == [0] and phi[0].tolist() == pytest.approx([1, 3 / 4, 1 / 2], rel=1e-12)
    rms = (5 / 32) ** 0.5
    bonus = sibling(policy, rollouts, Options()).bonus
    assert bonus[0].tolist() == pytest.approx([0.5 / rms, 0.25 / rms, 0.0], rel=1e-12)
    assert bonus[1].tolist() == [0, 0, 0]
    twice = sibling(policy, rollouts, Options(coefficient=2.0)).bonus
    torch.testing.assert_close(twice, 2 * bonus, rtol=1e-12, atol=0)


def test_a_likelier_text_is_no_more_than_alive():
    """After the failure's 1 the success's 0, 0 has 3/4 * 3/4, after its own 0 it has 1/4: the ratio 9/4 counts as 1."""
    phi = sibling_potentials(Policy(Sum()), pair([1, 1, 0], [0, 0, 0]), Options()).phi
    assert phi[0].tolist() == [1, 1, 1]


def test_what_is_alive_later_was_alive_before():
    """After the failure's 1 the rest (1, 0) has 1/4 * 9/10, after the success's own 0 it has 1/2 * 3/4: a ratio of 3/5.
    But after 1, 1 the answer 0 has 9/10 against 3/4 after 0, 1: it was alive all along.
    """
    phi = sibling_potentials(Policy(Sum()), pair([1, 1, 1], [0, 1, 0]), Options()).phi
    assert phi[0].tolist() == [1, 1, 1]


def test_the_same_beginning_is_alive_without_a_pass():
    """The failure says what the success says, and answers otherwise."""
    policy, calls = Policy(model := llama()), []
    rollouts = pair([5, 6, 7, 8], [5, 6, 7, 9])
    sibling_potentials(policy, rollouts, Options())
    model.get_input_embeddings().register_forward_hook(lambda *_: calls.append(1))
    assert sibling_potentials(policy, rollouts, Options()).phi[0].tolist() == [1, 1, 1, 1]
    assert not calls


@pytest.mark.parametrize(
    ("phi", "expected"),
    [
        # c = 1, -1, 0, of which the mean square is 2/3.
        ([1.0, 1.0, 0.0, 0.0], [1.5**0.5, -(1.5**0.5), 0.0]),
        # c = -1, then 19 times 0: a mean square of 1/20, and -sqrt(20) is beyond the clip.
        ([1.0] + [0.0] * 20, [-3.0] + [0.0] * 19),
        # Nothing but zeros has no scale.
        ([1.0, 0.5, 0.25], [0.0, 0.0]),
    ],
)
def test_the_step_that_dies_is_blamed(monkeypatch, phi, expected):
    count = len(expected)
    found = Potentials({0: torch.tensor(phi, dtype=torch.float64)}, {0: list(range(1, count + 1))})
    module = sys.modules["tokencredit.credit.sibling"]
    monkeypatch.setattr(module, "sibling_potentials", lambda *_: found)
    bonus = sibling(Policy(llama()), pair([*range(2, count + 2), 1], [*range(3, count + 4)]), Options()).bonus
    assert bonus[0].tolist() == pytest.approx([*expected, 0.0]) and (bonus[1] == 0).all()


def plain_potentials(model, rollouts: Rollouts, row: int, others: list[int]) -> torch.Tensor:
    """(siblings, 1 + n): one sequence at a time, with the steps that correspond given by their number."""

    def logp(row: int, cut: int, text: list[int]) -> float:
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
        ids = prompt + rollouts.completion_ids[row, :cut].tolist() + text
        with torch.no_grad():
            logps = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        start = len(ids) - len(text)
        return sum(float(logps[start + k - 1, token]) for k, token in enumerate(text))

    found = []
    for other in others:
        said = aligned(steps_of(rollouts, row).bags, steps_of(rollouts, other).bags)
        potentials = [1.0]
        for end, count in zip(steps_of(rollouts, row).ends, said, strict=True):
            place = [0, *steps_of(rollouts, other).ends][count]
            text = rollouts.completion_ids[other][rollouts.completion_mask[other]].tolist()[place:]
            ratio = math.exp(logp(row, end, text) - logp(other, place, text))
            potentials.append(min(1.0, ratio))
        found.append([max(potentials[k:]) for k in range(len(potentials))])
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("build", [llama, gpt2, bart])
def test_against_plain_forwards(build):
    """Packed and whole rows; both successes of the first group, the only one of the second."""
    model, rollouts = build(), family()
    for over in ("mean", "max"):
        found = sibling_potentials(Policy(model), rollouts, Options(siblings=2, sibling_over=over)).phi
        assert sorted(found) == [1, 2, 4, 6]
        for row, others in ((1, [0, 3]), (2, [0, 3]), (4, [5]), (6, [5])):
            each = plain_potentials(model, rollouts, row, others)
            expected = each.mean(0) if over == "mean" else each.amax(0)
            torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-12)


def test_the_sibling_most_like_it_is_asked(monkeypatch):
    """Row 1 begins as row 0 does; what they share is alive without a question."""
    asked = []
    module = sys.modules["tokencredit.credit.sibling"]
    monkeypatch.setattr(module, "_ratios", lambda *given: asked.extend(given[-1]) or [0.0] * len(given[-1]))
    phi = sibling_potentials(Policy(llama()), family(), Options()).phi
    assert {question.sibling for question in asked if question.row == 1} == {0}
    assert phi[1].tolist() == [1, 1, 0, 0] and phi[4].tolist() == [1, 0, 0]


def test_no_success_no_bonus():
    for advantages in ([-1.0, -0.5], [-1.0, 0.0], [1.0, 0.5]):
        rollouts = pair([2, 3, 4], [5, 6, 7], advantages=torch.tensor(advantages))
        assert (sibling(Policy(llama()), rollouts, Options()).bonus == 0).all()
    strangers = pair([2, 3, 4], [5, 6, 7], groups=torch.tensor([0, 1]))
    assert (sibling(Policy(llama()), strangers, Options()).bonus == 0).all()


def test_neighbouring_steps_count_as_one():
    rollouts, policy = family(), Policy(llama())
    every = sibling_potentials(policy, rollouts, Options())
    fewer = sibling_potentials(policy, rollouts, Options(most_steps=2))
    assert every.ends[1] == [3, 5, 7] and fewer.ends[1] == [3, 7]
    torch.testing.assert_close(fewer.phi[1], every.phi[1][[0, 1, 3]], rtol=1e-9, atol=1e-12)


def test_a_table_of_positions_is_not_left():
    """The failure of 100 tokens has no room for all that the success says: what fits is compared."""
    long, short = [*range(1, 33), *range(1, 33), *range(1, 33)], [7, 8, 9]
    ids = torch.zeros(2, 97, dtype=torch.long)
    ids[0], ids[1] = torch.tensor([*long, 5]), torch.tensor([*short, *([4] * 93), 6])
    rollouts = pair(ids[0].tolist(), ids[1].tolist(), steps=(torch.arange(97) >= 90).long().expand(2, -1))
    rollouts = dataclasses.replace(
        rollouts, prompt_ids=torch.zeros(2, 20).long(), prompt_mask=torch.ones(2, 20)
    )
    found = sibling_potentials(Policy(gpt2()), rollouts, Options())
    assert found.phi[0].isfinite().all() and found.ends[0] == [90, 97]


def test_a_row_that_is_not_finite_does_not_spread():
    rollouts = family()
    ids = rollouts.completion_ids.masked_fill(rollouts.completion_ids == 36, 35)
    ids[2, 3] = 36
    rollouts = dataclasses.replace(rollouts, completion_ids=ids)
    model = llama()
    expected = sibling(Policy(model), rollouts.select(torch.tensor([0, 1, 3, 4, 5, 6])), Options()).bonus
    model.get_input_embeddings().register_forward_hook(
        lambda _module, args, output: output.masked_fill((args[0] == 36)[..., None], torch.nan)
    )
    found = sibling(Policy(model), rollouts, Options()).bonus
    assert found[2].isnan().any()
    torch.testing.assert_close(found[[0, 1, 3, 4, 5, 6]], expected, rtol=1e-9, atol=1e-12)


def test_steps_of_a_row():
    rollouts = family()
    found = steps_of(rollouts, 3)
    assert found.ends == [4, 5, 8, 10]
    assert found.bags[1] == Counter(rollouts.completion_ids[3, 4:5].tolist())
    assert sum(found.bag.values()) == 10


def test_thinned():
    assert thinned(3, 8) == [0, 1, 2] and thinned(0, 8) == []
    assert thinned(5, 2) == [1, 4] and thinned(9, 4) == [1, 3, 5, 8] and thinned(7, 1) == [6]


def bags(*steps: str) -> list[Counter]:
    return [Counter(map(ord, step)) for step in steps]


def test_similarity():
    # Two of "aab" (3 tokens) are in "abcd" (4): 2 * 2 / 7.
    assert similarity(*bags("aab", "abcd")) == pytest.approx(4 / 7)
    assert similarity(*bags("", "")) == 0 and similarity(*bags("ab", "ba")) == 1


def test_alignment():
    same = bags("aa", "bb", "cc")
    assert aligned(same, same) == [1, 2, 3]
    assert aligned(bags("aa", "xx", "bb", "cc"), same) == [1, 1, 2, 3]  # a step that the other lacks
    assert aligned(bags("aa", "cc"), same) == [1, 3]  # and one that only the other has
    assert aligned(bags("aa", "bz", "cc"), same) == [1, 2, 3]  # said otherwise
    assert aligned(bags("aa", "zz", "cc"), same) == [1, 2, 3]  # something else said in its place
    assert aligned(same, []) == [0, 0, 0] and aligned([], same) == []


def test_values_on_tokens():
    rollouts = family()
    found = on_tokens(rollouts, {1: torch.tensor([2.0, 3.0])}, {1: [3, 5]})
    assert found[1, :7].tolist() == [2, 2, 2, 3, 3, 0, 0] and found.sum() == 12
