"""Sizes of models from their configs."""

from __future__ import annotations

import pytest
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, MixtralConfig, Qwen2Config

from tokencredit.errors import UsageError
from tokencredit.plan import shape_of

SMALL = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_as_in_the_model_itself(tied):
    config = LlamaConfig(**SMALL, tie_word_embeddings=tied)
    shape = shape_of(config)
    model = LlamaForCausalLM(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.tied == tied
    # A layer: q and o 24 x 24, k and v 24 x 12, three matrices 24 x 40, two norms of 24; and the last norm.
    layer = 2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 40 + 2 * 24
    assert shape.layer == layer
    assert shape.body == 3 * layer + 24
    assert (shape.attention_width, shape.kv_width) == (24, 12)


def test_qwen_7b():
    """7,615,616,512 parameters, as its card's 7.61 B; without embedding and head 6.53 B."""
    config = Qwen2Config(
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    shape = shape_of(config)
    assert shape.parameters == 7_615_616_512
    assert shape.body == 7_615_616_512 - 2 * 152_064 * 3584
    assert (shape.head_dim, shape.kv_width) == (128, 512)


def test_a_token_passes_its_own_experts_alone():
    config = MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=2, tie_word_embeddings=False)
    shape = shape_of(config)
    expert = 3 * 24 * 40
    # Attention, router, two of eight experts, norms.
    layer = 2 * 24 * 24 + 2 * 24 * 12 + 8 * 24 + 2 * expert + 2 * 24
    assert shape.body == 3 * layer + 24
    assert shape.parameters == 3 * (layer + 6 * expert) + 24 + 2 * 101 * 24


def test_names_of_another_family():
    """GPT-2 says n_embd and n_head, and its feed-forward is four hidden sizes wide."""
    shape = shape_of(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.feed_forward, shape.layers) == (16, 2, 2, 64, 2)
    assert shape.tied


def test_lora_as_peft_makes_it():
    peft = pytest.importorskip("peft")
    config = LlamaConfig(**SMALL)
    shape = shape_of(config)
    for targets in (["q_proj", "v_proj"], "all-linear"):
        model = peft.get_peft_model(
            LlamaForCausalLM(config), peft.LoraConfig(r=5, target_modules=targets, task_type="CAUSAL_LM")
        )
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert shape.adapter(5, targets if isinstance(targets, list) else [targets]) == trained
    with pytest.raises(UsageError, match=r"'query' is none of .*q_proj"):
        shape.adapter(5, ["query"])


def test_no_language_model():
    from transformers import ViTConfig

    with pytest.raises(UsageError, match="vit"):
        shape_of(ViTConfig())
