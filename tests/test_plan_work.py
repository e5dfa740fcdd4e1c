"""Operations and passes of a plan, against those that the real passes make."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from tokencredit import Options, Rollouts
from tokencredit.calling import Caller
from tokencredit.credit import assign, get_strategy
from tokencredit.memory import found_budget as budget_of_model
from tokencredit.plan import Settings, shape_of
from tokencredit.plan.attribution import attribution_work, found_budget
from tokencredit.plan.work import (
    causal_keys,
    generation_work,
    head_flops,
    layers_flops,
    log_prob_work,
    training_work,
)
from tokencredit.policy import Policy

CONFIG = LlamaConfig(
    vocab_size=211,
    hidden_size=32,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    attn_implementation="eager",  # whose products are counted, masked ones too
)
PROMPT, COMPLETION, ANSWER, ROWS = 12, 20, 3, 6
SETTINGS = Settings(
    per_device_train_batch_size=ROWS,
    num_generations=3,
    max_prompt_length=PROMPT,
    max_completion_length=COMPLETION,
    answer_tokens=ANSWER,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


@pytest.fixture(scope="module")
def shape():
    return shape_of(CONFIG)


def flops_of(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def rollouts() -> Rollouts:
    """Two prompts with three completions each, all of the planned lengths."""
    random = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, 211, (2, PROMPT), generator=random).repeat_interleave(3, 0)
    completions = torch.randint(1, 211, (ROWS, COMPLETION), generator=random)
    places = torch.arange(COMPLETION).expand(ROWS, -1)
    reasoning = places < COMPLETION - ANSWER
    everything = torch.ones_like(completions, dtype=torch.bool)
    return Rollouts(
        prompts,
        torch.ones_like(prompts, dtype=torch.bool),
        completions,
        everything,
        reasoning,
        ~reasoning,
        advantages=torch.ones(ROWS),
    )


def test_a_forward_pass(model, shape):
    """Norms aside, which are no products, 2 P a token, and 4 L A a key."""
    ids = torch.randint(1, 211, (3, 30))
    with torch.no_grad():
        counted = flops_of(lambda: model(ids, use_cache=False))
    norms = 2 * (2 * 2 + 1) * 32 * 90  # parameters of the body that no product is made with
    assert layers_flops(shape, 90, 3 * 30 * 30) + head_flops(shape, 90) - norms == pytest.approx(
        counted, rel=0.01
    )


def test_back_costs_twice_a_forward_pass(model, shape):
    ids = torch.randint(1, 211, (3, 30))
    forward = flops_of(lambda: model(ids, use_cache=False))
    both = flops_of(lambda: model(ids, use_cache=False).logits.sum().backward())
    model.zero_grad()
    assert both == pytest.approx(3 * forward, rel=0.01)
    work = training_work(shape, SETTINGS)
    row = SETTINGS.length
    # TRL's head computes its logits once more on the way back.
    once = layers_flops(shape, ROWS * row, ROWS * causal_keys(row))
    head = head_flops(shape, ROWS * row)
    assert work.flops == 3 * once + 4 * head
    assert (work.forwards, work.backwards, work.tokens) == (1, 1, ROWS * row)


FORMS = {
    "one label": ("oar-g", {"gradient": "labels", "labels": 1}, {"credit_gradient": "labels"}),
    "four labels": (
        "oar-g",
        {"gradient": "labels", "labels": 4},
        {"credit_gradient": "labels", "credit_labels": 4},
    ),
    "noise": ("oar-g", {"gradient": "noise", "draws": 2}, {"credit_gradient": "noise", "credit_draws": 2}),
    "exact": ("oar-p", {}, {"credit": "oar-p", "credit_m": 0}),
    "exact, every position read": (
        "oar-p",
        {"outcome": "answer_kl"},
        {"credit": "oar-p", "credit_m": 0, "credit_outcome": "answer_kl"},
    ),
    "sparse": ("oar-p", {"m": 4}, {"credit": "oar-p", "credit_m": 4}),
    "entropy": ("entropy", {}, {"credit": "entropy"}),
    "uniform": ("uniform", {}, {"credit": "uniform"}),
}


@pytest.mark.parametrize("budget", [4096, 80])
@pytest.mark.parametrize("form", FORMS)
def test_attribution(model, shape, form, budget):
    """Operations within a tenth, and the very number of passes; with few rows a pass about as many.

    A plan takes each row of a small pass to have a prompt of its own, and passes to be full.
    """
    name, options, flags = FORMS[form]
    policy = Policy(model, token_budget=budget)
    # What is found out once a model doesn't count.
    assign(get_strategy(name), policy, rollouts(), Options(**options))
    calls = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        counted = flops_of(lambda: assign(get_strategy(name), policy, rollouts(), Options(**options)))
    finally:
        handle.remove()
    work = attribution_work(shape, dataclasses.replace(SETTINGS, **flags), budget)
    assert work.flops == pytest.approx(counted, rel=0.1 if budget == 4096 else 0.2)
    assert work.forwards == pytest.approx(len(calls), rel=0 if budget == 4096 else 0.35)


def test_the_budget_is_the_one_that_attribution_finds(model, shape):
    """On a CPU it depends on the model alone where memory is plenty."""
    assert found_budget(shape, SETTINGS, free=1e12) == budget_of_model(Caller(model))
    assert found_budget(shape, dataclasses.replace(SETTINGS, credit_token_budget=99), free=1e12) == 99
    gpu = dataclasses.replace(SETTINGS, use_cpu=False)
    # A token keeps 2 layers of 4 bytes x (8 x 32 + 4 x 80); half of what is free may be taken.
    assert found_budget(shape, gpu, free=2 * 1000 * 2 * 4 * 576) == 1000
    assert found_budget(shape, gpu, free=0) == 64


def test_credit_in_the_loss_adds_ways_back_alone(shape):
    loss = dataclasses.replace(SETTINGS, credit_stage="loss", credit_labels=2, gradient_accumulation_steps=3)
    work = attribution_work(shape, loss, 512)
    assert (work.forwards, work.backwards) == (0, 6)
    # With gradient checkpointing a pass of its own assigns the credit.
    assert attribution_work(shape, dataclasses.replace(loss, gradient_checkpointing=True), 512).forwards > 0


def test_bytes_moved_by_hand(shape):
    """161 a logit of all positions on a CPU, three times two of the completions' on a GPU; 28 a parameter."""
    logits = ROWS * SETTINGS.length * 211
    assert training_work(shape, SETTINGS).moved == 161 * logits + 28 * shape.parameters
    gpu = dataclasses.replace(
        SETTINGS, use_cpu=False, bf16=True, num_iterations=4, gradient_accumulation_steps=2
    )
    logits = 8 * ROWS * COMPLETION * 211
    assert training_work(shape, gpu).moved == 6 * logits + 4 * 28 * shape.parameters
    shared = dataclasses.replace(gpu, gpus=2, sharding="fsdp")
    assert training_work(shape, shared).moved == 6 * logits + 2 * 28 * shape.parameters


def test_rows_without_credit_cost_nothing(shape):
    half = dataclasses.replace(SETTINGS, credited=0.5, credit_gradient="labels")
    one = dataclasses.replace(SETTINGS, credit_gradient="labels", per_device_train_batch_size=3)
    assert attribution_work(shape, half, 4096).tokens == attribution_work(shape, one, 4096).tokens + PROMPT


def test_log_probabilities_where_trl_runs_them(shape):
    assert log_prob_work(shape, SETTINGS).forwards == 0
    again = dataclasses.replace(SETTINGS, num_iterations=2)
    assert log_prob_work(shape, again).forwards == 1
    assert log_prob_work(shape, dataclasses.replace(again, beta=0.1)).forwards == 2
    vllm = dataclasses.replace(SETTINGS, use_vllm=True, gradient_accumulation_steps=4)
    assert log_prob_work(shape, vllm).forwards == 4


def test_generation(shape):
    """A pass for the prompts and one for each token but the first; as many keys as the sequences are long."""
    work = generation_work(shape, SETTINGS)
    assert work.forwards == COMPLETION
    assert work.tokens == ROWS * (PROMPT + COMPLETION - 1)
    keys = ROWS * sum(length for length in range(1, PROMPT + COMPLETION))
    assert math.isclose(
        work.flops,
        layers_flops(shape, work.tokens, keys) + head_flops(shape, ROWS * COMPLETION),
        rel_tol=1e-9,
    )
