"""Attention influence by hand, and against the attention that transformers gives."""

from __future__ import annotations

import math

import pytest
import torch

from models import bart, gpt2, llama, ragged, with_probe
from tokencredit import UsageError, token_importance, token_weights
from tokencredit.credit.attention_influence import _Heads, _largest


def test_by_hand():
    """Three tokens, two heads: the first looks back two tokens from the last one, the second one token at most."""
    heads = _Heads()
    far = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.8, 0.1, 0.1]])
    near = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0], [0.0, 0.9, 0.1]])
    # Distances: 0.5 + 2 * 0.8 + 0.1 = 2.2 and 0.9 + 0.9 = 1.8, each over three tokens.
    for part in (torch.tensor([0, 1]), torch.tensor([2])):
        heads.add(0, part, torch.stack([far, near])[:, part])
    # Of the far head: token 0 receives 0.5 and 0.8, token 1 receives 0.1.
    assert heads.influence(0.5).tolist() == pytest.approx([0.65, 0.1, 0])
    both = heads.influence(1.0).tolist()
    assert both == pytest.approx([(1.3 + 0.9) / 4, (0.1 + 0.9) / 2, 0])


def test_the_largest_by_hand():
    values = torch.tensor([[3.0, 1, 2, 9], [1, 1, 1, 0], [5, 4, 3, 2]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]]).bool()
    # 40% of three are two, rounded up; equals go together.
    assert _largest(values, mask, 0.4).tolist() == [
        [True, False, True, False],
        [True] * 3 + [False],
        [False] * 4,
    ]


@pytest.mark.parametrize("build", [llama, gpt2])
def test_against_the_models_own_attention(build):
    model, rollouts = build(), with_probe(ragged(), [3])
    found = token_importance(model, rollouts, "attention-influence")
    model.set_attn_implementation("eager")
    for row, probe in ((2, []), (3, [8, 9, 10])):
        prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]]
        reasoning = int(rollouts.reasoning_mask[row].sum())
        # The answer's last token is predicted by the one before it, and not run itself.
        own = (
            [*rollouts.completion_ids[row, :6].tolist(), *probe]
            if probe
            else rollouts.completion_ids[row, :16]
        )
        ids = torch.cat([prompt, torch.as_tensor(own)])[None]
        with torch.no_grad():
            layers = model(input_ids=ids, output_attentions=True).attentions
        a = torch.cat(layers, 1)[0][:, prompt.numel() :, prompt.numel() :]
        n = a.shape[1]
        back = torch.arange(n)[:, None] - torch.arange(n)
        distances = [(float((head * back).sum()), number) for number, head in enumerate(a.tril())]
        chosen = [number for _, number in sorted(distances, reverse=True)[: math.ceil(0.3 * len(distances))]]
        expected = [
            float(sum(a[h, t + 1 :, t].mean() for h in chosen)) / len(chosen) for t in range(reasoning)
        ]
        assert found[row, :reasoning].tolist() == pytest.approx(expected, rel=1e-6)  # softmax in float32
        assert (found[row, reasoning:] == 0).all()


def test_weights():
    """Two of row 1's four tokens are amplified: 1.5 and 1 over their mean of 1.25."""
    weights = token_weights(llama(), ragged(), "attention-influence")[1]
    assert sorted(weights[:4].tolist()) == pytest.approx([0.8, 0.8, 1.2, 1.2]) and (weights[4:] == 1).all()


def test_attention_that_cannot_be_read_is_named():
    with pytest.raises(UsageError, match="the attention of BartForCausalLM can't be read"):
        token_weights(bart(), ragged(), "attention-influence")
