"""The budget found from free memory, and going on when memory runs out all the same."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models import llama, ragged
from tokencredit import memory, token_importance
from tokencredit.calling import Caller
from tokencredit.credit import Options, get_strategy
from tokencredit.policy import Policy, _packs

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
]


def limited(model, tokens: int, error: Exception) -> list[int]:
    """Makes passes of more tokens fail; returns the list of the sizes asked for."""
    sizes: list[int] = []

    def refuse(_module, _args, inputs):
        sizes.append(inputs["input_ids"].numel())
        if sizes[-1] > tokens:
            raise error

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    return sizes


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [("oar-p", {}), ("oar-p", {"m": 2}), ("oar-g", {}), ("path", {}), ("path", {"m": 2}), ("entropy", {})],
)
def test_out_of_memory_halves_the_budget_and_goes_on(packs, error, strategy, options, caplog):
    rollouts = ragged().select(torch.tensor([0, 1, 2, 5, 6] * 3))
    model = llama()
    _packs[model] = packs
    expected = token_importance(model, rollouts, strategy, **options)
    policy = Policy(model, token_budget=512)
    sizes = limited(model, 70, error)
    with caplog.at_level(logging.WARNING, logger="tokencredit.policy"):
        found = get_strategy(strategy).function(policy, rollouts, Options(**options)).importance
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert max(sizes) > 70 and policy.token_budget < 512
    assert len([r for r in caplog.records if "memory ran out" in r.message]) == 1


def test_out_of_memory_at_the_least_budget_is_an_error():
    model = llama()
    rollouts = ragged().select(ragged().readable)
    token_importance(model, rollouts, "oar-p")
    limited(model, 3, ERRORS[0])
    with pytest.raises(torch.OutOfMemoryError):
        token_importance(model, rollouts, "oar-p", token_budget=64)


def test_other_errors_are_not_taken_for_it():
    model = llama()
    rollouts = ragged().select(ragged().readable)
    token_importance(model, rollouts, "oar-p")
    sizes = limited(model, 3, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        token_importance(model, rollouts, "oar-p", token_budget=512)
    assert len(sizes) == 1


def test_the_budget_fits_half_of_the_free_memory(monkeypatch):
    model = llama(torch.float32)
    caller = Caller(model)
    # Two layers of float32: 8 x 32 + 4 x 48 numbers each.
    assert memory.bytes_per_token(caller) == 2 * 4 * (8 * 32 + 4 * 48)
    monkeypatch.setattr(memory, "_free_bytes", lambda device: 2 * 200 * memory.bytes_per_token(caller))
    assert Policy(model).token_budget == 200
    monkeypatch.setattr(memory, "_free_bytes", lambda device: 0)
    assert Policy(model).token_budget == memory.LEAST_TOKENS
    for plenty in (1 << 40, None):
        monkeypatch.setattr(memory, "_free_bytes", lambda device, plenty=plenty: plenty)
        assert Policy(model).token_budget == memory.CPU_TOKENS[1]
    # 1 << 25 bytes hold 195 tokens of a layer that is so much wider: not fewer than the least.
    model.config.intermediate_size = 10_666
    assert Policy(model).token_budget == memory.CPU_TOKENS[0]


def test_a_graph_keeps_about_the_bytes_per_token():
    """What autograd saves for the backward pass is between half of the estimate and all of it."""
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).requires_grad_(False)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept, saved = [], {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept.append(tensor)
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    embeddings = torch.randn(1, 512, 256, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(inputs_embeds=embeddings, logits_to_keep=1)
    estimate = 512 * memory.bytes_per_token(Caller(model))
    assert estimate / 2 < sum(saved.values()) < estimate
