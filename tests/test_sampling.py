"""Texts that the policy writes, against plain forwards of one sequence, token by token."""

from __future__ import annotations

import pytest
import torch

from models import bart, gpt2, llama, ragged
from tokencredit import UsageError
from tokencredit.calling import Caller
from tokencredit.policy import Policy
from tokencredit.sampling import drawn, end_ids

# (row, how many completion tokens come before, text)
ASKED = [(0, 9, [4, 5]), (2, 3, [7]), (2, 12, []), (1, 0, [9, 2]), (1, 0, []), (3, 6, [30, 31])]
ROWS, CUTS = (torch.tensor([asked[part] for asked in ASKED]) for part in (0, 1))
TEXTS = torch.full((len(ASKED), 2), -1)
for place, (_, _, text) in enumerate(ASKED):
    TEXTS[place, : len(text)] = torch.tensor(text, dtype=torch.long)
UNIFORMS = torch.rand(len(ASKED), 3, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def plain(model, rollouts, ends: set[int], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.full(UNIFORMS.shape, -1)
    entropies = torch.zeros_like(UNIFORMS)
    for place, (row, cut, text) in enumerate(ASKED):
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
        for draw in range(UNIFORMS.shape[1]):
            written = [*prompt, *rollouts.completion_ids[row, :cut].tolist(), *text]
            for step in range(UNIFORMS.shape[2]):
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([written])).logits[0, -1]
                p = logits.softmax(-1)
                entropies[place, draw, step] = -(p * p.log()).sum()
                cumulative = (logits / temperature).softmax(-1).cumsum(-1)
                token = int((cumulative <= UNIFORMS[place, draw, step] * cumulative[-1]).sum())
                ids[place, draw, step] = token
                written.append(token)
                if token in ends:
                    break
    return ids, entropies


@pytest.mark.parametrize("build", [llama, gpt2, bart])
@pytest.mark.parametrize("limits", [{}, {"max_rows": 2}, {"token_budget": 9}])
def test_against_plain_forwards(build, limits):
    """Packed (llama, gpt2) and whole rows (bart). Some ids are made ends, so that texts end at different places."""
    model, rollouts = build(), ragged()
    model.generation_config.eos_token_id = [1, 3, 8, 15, 20, 31]
    found = Policy(model, **limits).sampled(rollouts, ROWS, CUTS, TEXTS, UNIFORMS, 0.6)
    ids, entropies = plain(model, rollouts, {1, 3, 8, 15, 20, 31}, 0.6)
    assert torch.equal(found.ids, ids) and (ids == -1).any() and (ids[..., -1] >= 0).any()
    torch.testing.assert_close(found.entropies, entropies, rtol=1e-9, atol=1e-11)


def test_a_table_of_positions_ends_texts():
    model, rollouts = gpt2(), ragged()
    model.config.max_position_embeddings = 128  # of which a prompt of 5 and 9 tokens leave 114
    uniforms = UNIFORMS[:1, :1].repeat(1, 1, 20)
    found = Policy(model).sampled(rollouts, ROWS[:1], CUTS[:1], TEXTS[:1].repeat(1, 56), uniforms)
    # 5 + 9 + 112 tokens, so that two positions are left to read: three tokens can be predicted.
    assert (found.ids >= 0).sum() <= 3


def test_draws_by_hand():
    logits = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float64).log().repeat(4, 1)
    tokens, entropies = drawn(logits, torch.tensor([0.0, 0.099, 0.1001, 0.999], dtype=torch.float64), 1.0)
    assert tokens.tolist() == [0, 0, 1, 2]
    assert float(entropies[0]) == pytest.approx(0.8018185525433373)
    # Squared and normalised: 1 / 54, 4 / 54, 49 / 54.
    tokens, _ = drawn(logits, torch.tensor([0.018, 0.019, 0.092, 0.093], dtype=torch.float64), 0.5)
    assert tokens.tolist() == [0, 1, 1, 2]


def test_nothing_asked_and_ends():
    model, rollouts = llama(), ragged()
    found = Policy(model).sampled(rollouts, ROWS[:0], CUTS[:0], TEXTS[:0], UNIFORMS[:0])
    assert found.ids.shape == (0, 3, 8)
    assert end_ids(Caller(model)) == [1]


def test_a_model_in_pieces_is_refused(monkeypatch):
    monkeypatch.setattr(Caller, "sharded", True)
    policy = Policy(llama(), in_step=False)
    with pytest.raises(UsageError, match=r"samples from the policy.*LlamaForCausalLM is in pieces"):
        policy.sampled(ragged(), ROWS, CUTS, TEXTS, UNIFORMS)
