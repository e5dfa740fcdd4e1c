"""Bytes of a plan: against tensors that a real pass keeps, and by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import LlamaConfig, LlamaForCausalLM

from tokencredit.plan import Machine, ModelShape, Settings, advise, plan_step, shape_of, strategies
from tokencredit.plan.memory import (
    attribution_bytes,
    frozen_layer_bytes,
    generation_bytes,
    held,
    layer_bytes,
    ready_bytes,
    sampler_lacks,
    training_bytes,
)
from tokencredit.plan.work import cache_bytes

BILLION = 10**9
CPU = Settings(use_cpu=True, bf16=False, gradient_checkpointing=False)
LARGE = ModelShape(  # round numbers in place of a real model's
    parameters=7 * BILLION,
    body=6 * BILLION,
    layers=30,
    hidden=4000,
    heads=40,
    kv_heads=4,
    head_dim=100,
    feed_forward=16_000,
    vocabulary=125_000,
    tied=False,
    layer=200_000_000,
    linears={"q_proj": 240_000, "up_proj": 600_000},
)
GPU = Machine(memory=80 * BILLION)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_what_a_layer_keeps(frozen, kv_heads):
    """Bytes of the distinct tensors that autograd saves, by the difference of three layers to one."""
    saved = []
    for layers in (1, 3):
        config = LlamaConfig(
            vocab_size=50,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
        )
        model = LlamaForCausalLM(config)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        if frozen:
            model.requires_grad_(False)
        found: dict[int, int] = {}

        def keep(tensor: torch.Tensor, found: dict[int, int] = found, own: set[int] = own) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        embeddings = model.model.embed_tokens(torch.randint(0, 50, (2, 40))).detach().requires_grad_()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(inputs_embeds=embeddings, use_cache=False, logits_to_keep=1)
        saved.append(sum(found.values()))
        del output
    measured = (saved[1] - saved[0]) / 2 / 80
    formula = frozen_layer_bytes if frozen else layer_bytes
    assert formula(shape_of(config), CPU) == pytest.approx(measured, rel=0.1)


def test_held_by_hand():
    """7e9 float32 weights, gradients and two moments, on one device and shared by eight."""

    def bytes_of(**flags) -> tuple[float, ...]:
        found = held(LARGE, Settings(**flags), GPU)
        return tuple(round(size / BILLION, 2) for size in (found.weights, found.gradients, found.optimizer))

    assert bytes_of() == (28, 28, 56)
    assert bytes_of(dtype="bfloat16") == (14, 14, 28)
    assert bytes_of(gpus=8, per_device_train_batch_size=1) == (28, 56, 56)
    assert bytes_of(gpus=8, per_device_train_batch_size=1, sharding="fsdp") == (3.5, 3.5, 7)
    # Half precision, and 12 bytes of float32 weights and moments.
    assert bytes_of(gpus=8, per_device_train_batch_size=1, sharding="zero2") == (14, 1.75, 10.5)
    assert bytes_of(gpus=8, per_device_train_batch_size=1, sharding="zero3") == (1.75, 1.75, 10.5)
    # An adapter of rank 10: 8.4e6 parameters in float32.
    assert bytes_of(use_peft=True, lora_r=10, dtype="bfloat16") == (14.03, 0.03, 0.07)
    assert held(LARGE, Settings(beta=0.1), GPU).reference == 28 * BILLION
    assert held(LARGE, Settings(beta=0.1, use_peft=True), GPU).reference == 0
    assert held(LARGE, Settings(use_vllm=True), GPU).sampler == pytest.approx(24 * BILLION)
    assert held(LARGE, Settings(use_vllm=True, vllm_mode="server"), GPU).sampler == 0


def test_parts_by_hand():
    """Keys and values of a token: 2 x 30 layers x 400 x 2 bytes; 64 completions of 1,000 tokens at the end."""
    settings = Settings(
        per_device_train_batch_size=8,
        gradient_accumulation_steps=8,
        max_prompt_length=200,
        max_completion_length=800,
        dtype="bfloat16",
    )
    assert cache_bytes(LARGE, settings) == 48_000
    cache = 64 * 1000 * 48_000 * 31 / 30
    assert generation_bytes(LARGE, settings, GPU) == pytest.approx(cache + 16 * 64 * 125_000)
    # Recomputed: each layer's input, 8,000 tokens x 30 x 4,000 x 2 bytes, and one layer whole.
    whole = training_bytes(LARGE, settings, held(LARGE, settings, GPU))
    less = training_bytes(dataclasses.replace(LARGE, layers=20), settings, held(LARGE, settings, GPU))
    assert whole - less == 8000 * 10 * 4000 * 2
    assert ready_bytes(LARGE, settings) == 0
    assert ready_bytes(LARGE, dataclasses.replace(settings, dtype="float32")) == 14 * BILLION
    sharded = dataclasses.replace(settings, gpus=8, sharding="fsdp")
    assert ready_bytes(LARGE, sharded) == 2 * (2 * 200_000_000 + 2 * 500_000_000)


def test_strategies_that_never_call_the_model_take_nothing():
    for name in ("uniform", "random", "position", "bias"):
        settings = Settings(credit=name)
        assert attribution_bytes(LARGE, settings, 1024) == 0
        part = plan_step(LARGE, settings, GPU).part("attribution")
        assert part.seconds == 0 and part.work.forwards == 0


def test_every_form_of_credit_is_planned():
    """The loss's own graph is none with gradient checkpointing, nor where a generation serves several steps."""
    forms = ["oar-g, 1 label", "oar-g, noise", "oar-g, 8 labels", "oar-p, m = 8", "oar-p, exact"]
    for flags in ({}, {"gradient_checkpointing": False, "num_iterations": 2}):
        assert list(strategies(plan_step(LARGE, Settings(**flags), GPU))) == forms
    found = strategies(plan_step(LARGE, Settings(gradient_checkpointing=False, credit="uniform"), GPU))
    assert list(found) == ["oar-g, 1 label, in the loss", *forms]
    seconds = {name: plan.part("attribution").seconds for name, plan in found.items()}
    assert 0 < seconds["oar-g, 1 label"] < seconds["oar-g, noise"] < seconds["oar-g, 8 labels"]
    assert seconds["oar-p, m = 8"] < seconds["oar-p, exact"]


def test_attribution_keeps_to_its_budget():
    small, large = (attribution_bytes(LARGE, Settings(credit="oar-p"), budget) for budget in (2048, 8192))
    assert small < large < 8 * small


def test_what_fits_is_left_alone():
    plan = plan_step(LARGE, Settings(), Machine(memory=800 * BILLION))
    assert plan.fits
    assert advise(plan) == ({}, plan)


@pytest.mark.parametrize(
    "flags",
    [
        {"gpus": 8},
        {"gpus": 8, "per_device_train_batch_size": 64, "max_completion_length": 4096, "sharding": "fsdp"},
        {"gpus": 8, "use_vllm": True, "sharding": "zero2", "vllm_gpu_memory_utilization": 0.1},
        {"dtype": "bfloat16", "per_device_train_batch_size": 32, "max_completion_length": 2048},
        {
            "gpus": 2,
            "sharding": "fsdp",
            "use_peft": True,
            "per_device_train_batch_size": 16,
            "max_completion_length": 8192,
        },
    ],
)
def test_advice_makes_it_fit(flags):
    plan = plan_step(LARGE, Settings(**flags), GPU)
    assert not plan.fits
    changes, better = advise(plan)
    assert changes and better.fits
    assert better == plan_step(LARGE, dataclasses.replace(plan.settings, **changes), GPU)
    assert better.settings.rows * better.settings.gpus == plan.settings.rows * plan.settings.gpus


def test_the_cheapest_change_comes_first():
    """Recomputing activations is enough here, so nothing else is changed."""
    settings = Settings(gpus=8, sharding="fsdp", gradient_checkpointing=False, max_completion_length=2048)
    changes, better = advise(plan_step(LARGE, settings, GPU))
    assert changes == {"gradient_checkpointing": True}
    assert better.fits


def test_a_graph_that_no_budget_makes_smaller():
    """16,384 tokens of 30 layers keep 71 GB, and a pass has one row at least; OAR-P keeps no graph."""
    settings = Settings(gpus=8, sharding="fsdp", max_completion_length=16_384)
    changes, better = advise(plan_step(LARGE, settings, GPU))
    assert better.fits and changes["credit"] == "oar-p"


def test_nothing_helps():
    plan = plan_step(LARGE, Settings(use_cpu=True, bf16=False), Machine(memory=BILLION))
    _, better = advise(plan)
    assert not better.fits


def test_vllm_needs_room_for_its_weights():
    """14 GB of weights and a cache of 768 x 48,000 bytes, beside 10% of 80 GB."""
    settings = Settings(use_vllm=True, vllm_gpu_memory_utilization=0.1)
    assert sampler_lacks(LARGE, settings, GPU) == pytest.approx(14 * BILLION + 768 * 48_000 - 8 * BILLION)
    assert sampler_lacks(LARGE, dataclasses.replace(settings, vllm_gpu_memory_utilization=0.2), GPU) == 0
