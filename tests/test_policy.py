"""A model whose outcomes can be computed by hand, and how the policy calls a model."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models import VOCABULARY, gpt2, llama, ragged, rows_of
from tokencredit import Rollouts, UsageError, token_importance
from tokencredit.calling import Caller
from tokencredit.policy import Policy


class Sum(nn.Module):
    """Logits are the sum of the embeddings so far; two tokens, H = V = 2.

    Token 0 adds (0, 0), token 1 adds (log 3, 0).
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(
            torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64)
        )
        self.table.weight.requires_grad_(True)
        self.calls: list[tuple[int, int]] = []

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids, attention_mask, use_cache=False):
        self.calls.append(tuple(input_ids.shape))
        hidden = self.table(input_ids) * attention_mask[..., None]
        return SimpleNamespace(logits=hidden.cumsum(1))


def one_row() -> Rollouts:
    """Prompt 0; reasoning 1, 0, 1; answer 0: the outcome has logits (2 log 3, 0), so p0 = (9/10, 1/10)."""
    completion = torch.tensor([[1, 0, 1, 0]])
    return Rollouts(
        prompt_ids=torch.tensor([[0]]),
        prompt_mask=torch.ones(1, 1, dtype=torch.bool),
        completion_ids=completion,
        completion_mask=torch.ones_like(completion, dtype=torch.bool),
        reasoning_mask=torch.tensor([[True, True, True, False]]),
        answer_mask=torch.tensor([[False, False, False, True]]),
    )


def test_perturbation_by_hand():
    # Replacing a 1 by the pad 0 leaves logits (log 3, 0), p = (3/4, 1/4);
    # KL = 9/10 log(36/30) + 1/10 log(4/10). Replacing the 0 by 0 changes nothing.
    expected = 0.9 * math.log(1.2) + 0.1 * math.log(0.4)
    found = token_importance(Sum(), one_row(), "oar-p", outcome="last", pad_token_id=0)
    assert found.tolist() == [pytest.approx([expected, 0.0, expected, 0.0], rel=1e-12, abs=1e-15)]


def test_joint_outcome_by_hand():
    # log p0(0) - log p(0) = log 9/10 - log 3/4.
    found = token_importance(Sum(), one_row(), "oar-p", outcome="answer_joint", pad_token_id=0)
    assert found[0, 0].item() == pytest.approx(math.log(0.9 / 0.75), rel=1e-12)


def test_alternative_by_hand():
    # Tokens 1, 0, 1 become 0, 1, 0: the middle one leaves logits (3 log 3, 0), p = (27/28, 1/28).
    found = token_importance(Sum(), one_row(), "oar-p", counterfactual="alternative")
    assert found[0, 1].item() == pytest.approx(0.9 * math.log(0.9 * 28 / 27) + 0.1 * math.log(2.8), rel=1e-12)


def test_gradient_of_labels_by_hand():
    # d log p(y) / d logits = onehot(y) - p. For y = 0 it is (1/10, -1/10), weighted by p0 = 9/10; for y = 1 it is
    # (-9/10, 9/10), weighted by 1/10. A token 1 has e = (log 3, 0): both give 9/100 log 3, in sum 18/100 log 3.
    found = token_importance(Sum(), one_row(), "oar-g", gradient="labels", labels=2)
    expected = 0.18 * math.log(3)
    assert found.tolist() == [pytest.approx([expected, 0.0, expected, 0.0], rel=1e-12, abs=1e-15)]
    # The norms are sqrt 2 / 10 and 9 sqrt 2 / 10, whatever the token: 9/10 * .1 sqrt 2 + 1/10 * .9 sqrt 2.
    norms = token_importance(Sum(), one_row(), "oar-g", gradient="labels", labels=2, saliency="norm")
    assert norms[0, :3].tolist() == pytest.approx([0.18 * 2**0.5] * 3, rel=1e-12)


def test_a_pass_ends_where_nothing_more_is_read():
    """Tokens after the answer are not run, and 3 edits of 4 tokens fit a budget of 12 in one pass."""
    model = Sum()
    token_importance(model, one_row(), "oar-p", token_budget=12)
    assert model.calls == [(1, 4), (3, 4)]


def test_the_budget_bounds_every_pass():
    model = Sum()
    rollouts = one_row().select(torch.tensor([0] * 7))
    token_importance(model, rollouts, "oar-p", token_budget=9)
    assert max(rows * length for rows, length in model.calls) <= 9
    assert sum(rows for rows, _ in model.calls) == 7 + 21


def test_logps_against_a_plain_forward():
    rollouts = ragged()
    for model in (llama(), gpt2()):
        found = Policy(model, token_budget=60).token_logps(rollouts)
        for row in range(rollouts.shape[0]):
            prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]]
            completion = rollouts.completion_ids[row][rollouts.completion_mask[row]]
            with torch.no_grad():
                logits = model(torch.cat([prompt, completion])[None]).logits[0]
            log_p = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            expected = log_p.gather(-1, completion[:, None]).squeeze(-1)
            torch.testing.assert_close(found[row, : len(completion)], expected, rtol=1e-9, atol=1e-12)
        assert (found[~rollouts.completion_mask] == 0).all()


def test_models_without_embeddings_are_refused():
    with pytest.raises(UsageError, match="Linear has no input embedding module"):
        Policy(nn.Linear(2, 2))


def test_compiled_models_keep_their_positions():
    """torch.compile hides the signature of forward; left pads then need their position ids all the same."""
    model = gpt2()
    assert Caller(torch.compile(model)).accepts == Caller(model).accepts >= {"position_ids"}


def test_virtual_prompt_tokens_are_refused():
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(UsageError, match="virtual tokens before the prompt"):
        Policy(peft.get_peft_model(llama(torch.float32), config))


def test_an_empty_prompt_is_refused():
    """Nothing predicts the first token then, so it has no probability and no entropy."""
    rollouts = rows_of(ragged(), [0])
    bare = dataclasses.replace(rollouts, prompt_mask=torch.zeros_like(rollouts.prompt_mask))
    with pytest.raises(UsageError, match="empty prompt"):
        token_importance(llama(), bare, "entropy")


def test_ids_that_the_model_does_not_know_are_refused():
    """On a GPU an index out of range would end the process."""
    for bad in (VOCABULARY, -1):
        with pytest.raises(UsageError, match=f"the token id {bad} is none of the 37"):
            token_importance(llama(), ragged(), "oar-p", pad_token_id=bad)
    strange = dataclasses.replace(ragged(), prompt_ids=ragged().prompt_ids + VOCABULARY)
    with pytest.raises(UsageError, match="tokenizer and pad token must be the model's own"):
        token_importance(llama(), strange, "oar-g")


@pytest.mark.parametrize("limit", ["token_budget", "max_rows"])
@pytest.mark.parametrize("bad", [0, -1, 1.5, "9"])
def test_limits_that_are_no_numbers_are_refused(limit, bad):
    with pytest.raises(UsageError, match=f"{limit} must be a whole number, at least 1"):
        token_importance(llama(), ragged(), **{limit: bad})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("gradient", ["noise", "labels"])
def test_gradients_whatever_mode_the_caller_is_in(mode, gradient):
    model = llama()
    expected = token_importance(model, ragged(), "oar-g", gradient=gradient)
    with mode():
        found = token_importance(model, ragged(), "oar-g", gradient=gradient)
    assert expected.max() > 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_models_made_in_inference_mode_are_refused():
    with torch.inference_mode():
        model = llama()
    with pytest.raises(UsageError, match="made under torch"):
        Policy(model)


def test_half_precision_is_that_of_the_weights_or_of_autocast():
    model = llama(torch.float32)
    assert not Policy(model).half_precision
    assert Policy(llama(torch.bfloat16)).half_precision
    with torch.autocast("cpu", torch.bfloat16):
        assert Policy(model).half_precision
        assert not Policy(model, half_precision=False).half_precision


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models_are_not_compiled_for_each_pass(in_place):
    """And stay compiled for their owner."""
    calls = []

    def backend(graph, _inputs):
        calls.append(graph)
        return graph.forward

    model = llama(torch.float32)
    compiled = model
    if in_place:
        model.compile(backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
    found = token_importance(compiled, ragged(), "oar-p", pad_token_id=2)
    assert not calls
    torch.testing.assert_close(
        found, token_importance(llama(torch.float32), ragged(), "oar-p", pad_token_id=2)
    )
    if in_place:
        assert model._compiled_call_impl is not None


def test_nothing_to_do_is_no_call():
    model = Sum()
    rollouts = one_row()
    no_answer = dataclasses.replace(rollouts, answer_mask=torch.zeros_like(rollouts.answer_mask))
    assert (token_importance(model, no_answer, "oar-p") == 0).all()
    assert model.calls == []
