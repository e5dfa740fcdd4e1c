"""Span masking against plain forwards of the masked completions."""

from __future__ import annotations

import pytest
import torch

from models import bart, gpt2, llama, ragged
from tokencredit import token_importance, token_weights

PAD = 2


def probability(model, prompt, completion, first, last) -> float:
    """Of completion[first:last], by one forward."""
    ids = torch.cat([prompt, completion])[None]
    with torch.no_grad():
        logps = model(ids).logits[0].log_softmax(-1)
    places = torch.arange(first, last) + prompt.numel()
    return float(logps[places - 1, ids[0, places]].sum().exp())


@pytest.mark.parametrize("build", [llama, gpt2, bart])
def test_drops_of_the_answers_probability(build):
    model, rollouts = build(), ragged()
    found = token_importance(model, rollouts, "span-masking", pad_token_id=PAD)[2]
    prompt = rollouts.prompt_ids[2][rollouts.prompt_mask[2]]
    # Row 2 has 12 tokens of reasoning in steps of three, a marker, and an answer of four tokens.
    completion = rollouts.completion_ids[2]
    clean = probability(model, prompt, completion, 13, 17)
    for start in range(0, 12, 3):
        masked = completion.clone()
        masked[start : start + 3] = PAD
        drop = max(0.0, clean - probability(model, prompt, masked, 13, 17))
        assert found[start : start + 3].tolist() == pytest.approx([drop] * 3, rel=1e-7, abs=1e-15)
    assert (found[12:] == 0).all() and found.max() > 0


def test_weights_by_hand():
    """Three steps of three tokens: w is 0.1 + 0.9 of each drop over the largest, then its mean is 1."""
    model, rollouts = llama(), ragged()
    drops = token_importance(model, rollouts, "span-masking")[0, :9]
    raw = 0.1 + 0.9 * drops / drops.max()
    weights = token_weights(model, rollouts, "span-masking")[0]
    torch.testing.assert_close(weights[:9], raw * 9 / raw.sum(), rtol=1e-12, atol=0)
    assert (weights[9:] == 1).all()


def test_neighbouring_steps_count_as_one():
    model, rollouts = llama(), ragged()
    found = token_importance(model, rollouts, "span-masking", most_steps=2)[2]
    assert len(found[:12].unique()) <= 2 and (found[:6] == found[0]).all() and (found[6:12] == found[6]).all()
