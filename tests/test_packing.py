"""Packed suffixes against whole rows, and models that packing does not fit."""

from __future__ import annotations

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import plain
import plain_sparse
from models import VOCABULARY, bart, gpt2, llama, ragged, with_probe
from tokencredit import token_importance
from tokencredit.credit import Options, get_strategy
from tokencredit.layout import parts
from tokencredit.policy import Policy, _packs, _pads

SMALL = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    initializer_range=0.25,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=1,
)


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**SMALL))


def sliding():
    return MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4))


def soft_capped():
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, attn_logit_softcapping=2.0, attn_implementation="eager"))


def mixed_windows():
    """A sliding layer and a full one."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            **SMALL,
            use_sliding_window=True,
            sliding_window=5,
            layer_types=["sliding_attention", "full_attention"],
        )
    )


def chunked():
    config = Llama4TextConfig(
        **{**SMALL, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 6}
    )
    return Llama4ForCausalLM(config)


def recurrent():
    config = FalconMambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4)
    return FalconMambaForCausalLM(config)


def build(make) -> torch.nn.Module:
    """In float64, but for soft caps: transformers' eager attention takes its softmax in float32."""
    torch.manual_seed(0)
    return make().to(torch.float32 if make is soft_capped else torch.float64).eval()


def importance(policy: Policy, rollouts) -> torch.Tensor:
    return (
        get_strategy("oar-p")
        .function(policy, rollouts, Options(outcome="answer_kl", pad_token_id=2))
        .importance
    )


@pytest.mark.parametrize("make", [llama, gpt2, qwen3, sliding, soft_capped, mixed_windows])
def test_packing_is_used_and_exact(make):
    model, rollouts = build(make), with_probe(ragged(), [1, 3])
    policy = Policy(model, token_budget=50)
    found = importance(policy, rollouts.select(rollouts.readable))
    assert _packs[model] is True
    _packs[model] = False
    expected = importance(policy, rollouts.select(rollouts.readable))
    tolerance = (1e-5 if make is soft_capped else 1e-9) * expected.max(dim=1).values
    assert ((found - expected).abs().max(dim=1).values <= tolerance).all()
    assert expected.max() > 1e-3


def sparse(policy: Policy, rollouts, m: int, outcome: str = "answer_kl") -> torch.Tensor:
    options = Options(outcome=outcome, pad_token_id=2, m=m)
    return get_strategy("oar-p").function(policy, rollouts, options).importance


@pytest.mark.parametrize("outcome", ["last", "answer_kl"])
@pytest.mark.parametrize("make", [llama, gpt2, qwen3, mixed_windows])
def test_sparse_by_a_plain_second_way(make, outcome):
    """Clean keys and values for all but the chosen positions, computed by freezing the others in a plain forward."""
    model, rollouts = build(make), with_probe(ragged(), [1, 3])
    rows = rollouts.select(rollouts.readable)
    for m in (1, 3):
        found = sparse(Policy(model, token_budget=50), rows, m, outcome)
        expected = plain_sparse.oar_p(model, rows, outcome, pad=2, m=m)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)


def test_sparse_with_all_later_tokens_is_exact():
    model, rollouts = build(llama), with_probe(ragged(), [1, 3])
    rows = rollouts.select(rollouts.readable)
    exact = sparse(Policy(model), rows, 0)
    torch.testing.assert_close(sparse(Policy(model), rows, 12), exact, rtol=1e-9, atol=1e-12)
    few = sparse(Policy(model), rows, 2)
    assert not torch.allclose(few, exact, rtol=1e-3)
    assert (few - exact).abs().max() < exact.max()


def test_the_largest_m_is_exact():
    model, rows = build(llama), ragged().select(ragged().readable)
    assert torch.equal(sparse(Policy(model), rows, 10**20), sparse(Policy(model), rows, 10**3))


def test_rows_without_a_prompt():
    """The first reasoning token then predicts the rest; rows with a prompt may stand beside them."""
    model, rollouts = build(llama), ragged()
    mask = rollouts.prompt_mask.clone()
    mask[[0, 2]] = False
    for some in (mask, torch.zeros_like(mask)):
        bare = dataclasses.replace(rollouts, prompt_mask=some)
        rows = bare.readable
        found = importance(Policy(model, token_budget=50), bare.select(rows))
        expected = plain.oar_p(model, bare, "answer_kl", "pad", pad=2)[rows]
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-11)
        found = token_importance(model, bare, "oar-g", noise_std=0.3)
        torch.testing.assert_close(
            found, plain.oar_g(model, bare, "answer_mean", noise_std=0.3), rtol=1e-7, atol=1e-11
        )
    assert _packs[model] is True


def test_models_in_threads_of_their_own():
    rollouts = ragged().select(ragged().readable)
    expected = importance(Policy(build(llama)), rollouts)
    models = [build(llama) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda model: importance(Policy(model), rollouts), models))
    for one in found:
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [chunked, recurrent])
def test_other_attention_runs_whole_rows(make, caplog):
    model, rollouts = build(make), ragged()
    policy = Policy(model, token_budget=50)
    rows = rollouts.readable
    with caplog.at_level(logging.WARNING, logger="tokencredit.policy"):
        found = importance(policy, rollouts.select(rows))
        importance(policy, rollouts.select(rows))
    assert _packs[model] is False
    assert len([r for r in caplog.records if r.name == "tokencredit.policy"]) <= 1
    expected = plain.oar_p(model, rollouts, "answer_kl", "pad", pad=2)[rows]
    # Llama 4 turns its queries in float32.
    tolerance = (1e-6 if make is chunked else 1e-9) * expected.max(dim=1).values
    assert ((found - expected).abs().max(dim=1).values <= tolerance).all()


def test_models_that_padding_disturbs_run_row_by_row(caplog):
    """Bart's decoder counts positions from the first column, pads included, and takes no position ids."""
    model, rollouts = build(bart), ragged()
    with caplog.at_level(logging.WARNING, logger="tokencredit.policy"):
        found = importance(Policy(model), rollouts.select(rollouts.readable))
    assert _pads[model] is False
    assert any("rows one by one" in record.message for record in caplog.records)
    expected = plain.oar_p(model, rollouts, "answer_kl", "pad", pad=2)[rollouts.readable]
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("make", [llama, gpt2, qwen3, sliding, recurrent])
def test_most_models_are_not_disturbed(make):
    model, rollouts = build(make), ragged()
    _packs[model] = False
    importance(Policy(model), rollouts.select(rollouts.readable))
    assert _pads[model] is True


def test_half_precision_packs_and_mixing_layers_do_not():
    """Rounding in bfloat16 is no reason to refuse; layers that mix neighbours are, at any length."""
    rollouts = ragged().select(ragged().readable)
    model = build(llama).to(torch.bfloat16)
    importance(Policy(model), rollouts)
    assert _packs[model] is True
    config = Lfm2Config(**{**SMALL, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3})
    mixing = Lfm2ForCausalLM(config).to(torch.bfloat16).eval()
    importance(Policy(mixing), rollouts)
    assert _packs[mixing] is False


def test_packing_works_under_autocast():
    rollouts = ragged().select(ragged().readable)
    model = llama(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        importance(Policy(model, half_precision=True), rollouts)
    assert _packs[model] is True


def test_the_models_attention_is_its_own_again():
    model = build(llama)
    before = model.config._attn_implementation
    importance(Policy(model), ragged().select(ragged().readable))
    assert model.config._attn_implementation == before


def test_parts_by_hand():
    assert parts([3, 3, 3, 9, 1], 6) == [[0, 1], [2], [3], [4]]
    assert parts([1, 1, 1, 1], 10, most=3) == [[0, 1, 2], [3]]
    assert parts([], 10) == []
