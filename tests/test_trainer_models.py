"""Models that are adapted, quantised, compiled, checkpointed, or count their positions in a table."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from transformers import GPT2Config, GPT2LMHeadModel

from models import gpt2, llama, ragged, rows_of
from test_graph import check_equal, in_graph, options
from test_trainer_rows import given
from test_trl import advantages_of, parameters, prompts, train
from tokencredit import Rollouts, UsageError, token_importance, token_weights
from tokencredit.calling import Caller
from tokencredit.credit import assign, get_strategy
from tokencredit.policy import Policy
from tokencredit.tasks.policy import VOCABULARY, build_model

OAR = ["oar-p", "oar-g"]


# --- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modules_to_save", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
@pytest.mark.parametrize("strategy", OAR)
def test_lora_that_trains_embeddings_too(modules_to_save, strategy):
    """As the model that the adapter is merged into."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj"], modules_to_save=modules_to_save, init_lora_weights=False
    )
    model = peft.get_peft_model(llama(), config).double()
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    before = {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    found = token_importance(model, ragged(), strategy, pad_token_id=2)
    assert before == {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    expected = token_importance(copy.deepcopy(model).merge_and_unload(), ragged(), strategy, pad_token_id=2)
    plain = token_importance(llama(), ragged(), strategy, pad_token_id=2)
    assert not torch.allclose(expected, plain, rtol=1e-3)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("credit", OAR)
def test_training_with_embeddings_in_the_adapter(tmp_path, credit):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    run = train(tmp_path, model=peft.get_peft_model(build_model(0), config), credit=credit)
    saved = run.model.get_input_embeddings()
    moved = saved.modules_to_save["default"].weight - saved.original_module.weight
    assert moved.abs().max() > 0


# --- quantised bases --------------------------------------------------------------------------------------------------


class Quantised(nn.Module):
    """A linear layer of whole numbers. `gradient`: passed on, absent, or refused in the backward pass."""

    def __init__(self, linear: nn.Linear, gradient: str) -> None:
        super().__init__()
        self.in_features, self.out_features, self.gradient = (
            linear.in_features,
            linear.out_features,
            gradient,
        )
        self.scale = float(linear.weight.detach().abs().max()) / 127
        self.register_buffer("numbers", (linear.weight / self.scale).round().to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gradient == "passed":
            return x @ self.numbers.to(x).T * self.scale
        if self.gradient == "refused":
            return _Refusing.apply(x, self.numbers.to(x).T * self.scale)
        with torch.no_grad():
            return x @ self.numbers.to(x).T * self.scale


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("no backward kernel")


def quantised(gradient: str) -> nn.Module:
    model = llama()
    for layer in model.model.layers:
        layer.mlp.up_proj = Quantised(layer.mlp.up_proj, gradient)
    return model


@pytest.mark.parametrize(
    ("gradient", "reason"),
    [("absent", r"model.layers.0.mlp.up_proj \(Quantised\) gives none"), ("refused", "no backward kernel")],
)
def test_a_base_without_gradient_is_refused_by_name(gradient, reason):
    model = quantised(gradient)
    for strategy in ("oar-g", "inverted"):
        with pytest.raises(UsageError, match=f"LlamaForCausalLM passes no gradient.*{reason}.*use oar-p"):
            token_weights(model, ragged(), strategy)
    with pytest.raises(UsageError, match="quantised with gptq"):
        model.config.quantization_config = {"quant_method": "gptq"}
        token_weights(model, ragged(), "oar-g")


@pytest.mark.parametrize("gradient", ["passed", "absent", "refused"])
@pytest.mark.parametrize("strategy", OAR)
def test_a_quantised_base_is_read_as_it_is(gradient, strategy):
    if strategy == "oar-g" and gradient != "passed":
        return
    plain = llama()
    for layer in plain.model.layers:
        numbers = Quantised(layer.mlp.up_proj, "passed")
        layer.mlp.up_proj.weight.data = numbers.numbers.double() * numbers.scale
    found, expected = (
        token_importance(model, ragged(), strategy, pad_token_id=2) for model in (quantised(gradient), plain)
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


# --- checkpointed and compiled ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(CheckpointImpl))
@pytest.mark.parametrize("strategy", OAR)
def test_layers_in_checkpoint_wrappers(kind, strategy):
    """As accelerate wraps them where FSDP is to checkpoint activations."""
    model = llama()
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = checkpoint_wrapper(layer, checkpoint_impl=kind)
    functions = [layer.checkpoint_fn for layer in model.model.layers]
    found = token_importance(model, ragged(), strategy, pad_token_id=2)
    assert [layer.checkpoint_fn for layer in model.model.layers] == functions
    expected = token_importance(llama(), ragged(), strategy, pad_token_id=2)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"credit": "oar-p"}, {"credit": "oar-g", "credit_stage": "loss"}])
def test_a_compiled_policy(tmp_path, settings):
    plain = train(tmp_path / "a", steps=1, **settings)
    compiled = train(tmp_path / "b", steps=1, torch_compile=True, torch_compile_backend="eager", **settings)
    torch.testing.assert_close(parameters(compiled), parameters(plain), rtol=1e-4, atol=1e-5)


# --- positions in a table ---------------------------------------------------------------------------------------------


def small_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = dict(n_embd=32, n_layer=2, n_head=4, n_positions=24, vocab_size=len(VOCABULARY))
    tokens = dict(bos_token_id=2, eos_token_id=2, pad_token_id=0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **tokens, initializer_range=0.25))


def padded(rollouts: Rollouts, count: int) -> Rollouts:
    """Further padding on the left of each prompt."""
    more = torch.zeros(rollouts.shape[0], count, dtype=torch.long)
    return dataclasses.replace(
        rollouts,
        prompt_ids=torch.cat([more, rollouts.prompt_ids], 1),
        prompt_mask=torch.cat([more.bool(), rollouts.prompt_mask], 1),
    )


@pytest.mark.parametrize("strategy", OAR)
def test_padding_moves_no_position(strategy):
    """Three pads on the left against none, in a pass of its own and in the loss's."""
    model, none = gpt2(dropout=0.0), rows_of(ragged(), [2])
    expected = token_importance(model, none, strategy)
    found = token_importance(model, padded(none, 3), strategy)
    assert expected.max() > 0
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if strategy == "oar-g":
        whole = assign(get_strategy("oar-g"), Policy(model), none, options())
        with Caller(model).counted_positions():
            check_equal(in_graph(model, padded(none, 3), options(), counted=False)[0], whole, 1e-9)
        assert not model._forward_pre_hooks


def test_the_losses_log_probabilities_do_not_see_padding(tmp_path):
    run = train(tmp_path, steps=1, model=small_gpt2(), max_completion_length=8, credit="uniform")
    run.model.eval()
    ids = torch.arange(3, 13)[None]
    ones = torch.ones_like(ids)
    pads = torch.zeros(1, 3, dtype=torch.long)
    none = run._get_per_token_logps_and_entropies(run.model, ids, ones, 4)[0]
    three = run._get_per_token_logps_and_entropies(
        run.model, torch.cat([pads, ids], 1), torch.cat([pads, ones], 1), 4
    )[0]
    torch.testing.assert_close(three, none, rtol=1e-5, atol=1e-6)


def test_both_stages_count_alike_in_training(tmp_path, monkeypatch):
    """Prompts of two lengths in a generation: one of them is padded."""
    given(monkeypatch)
    seen = advantages_of(monkeypatch)
    dataset = Dataset.from_list([{"prompt": "S1 3 ;"}, {"prompt": "S1 1 + 2 + 3 + 4 ;"}] * 4)
    settings = dict(steps=1, max_completion_length=14, credit_marker="ans", credit_gradient="labels")
    for stage in ("rollout", "loss"):
        model = small_gpt2()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        train(tmp_path / stage, model=model, dataset=dataset, credit_stage=stage, **settings)
    separate, in_the_loss = seen
    assert separate.shape == in_the_loss.shape and separate.dim() == 2 and separate.std(1).max() > 0.1
    torch.testing.assert_close(in_the_loss, separate, rtol=1e-5, atol=1e-5)


def test_rows_beyond_the_table_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"a row has 130 tokens.*table of positions ends at 128"):
        Policy(gpt2()).token_logps(padded_with_tokens(rows_of(ragged(), [0]), 130))
    assert Policy(llama()).token_logps(padded_with_tokens(rows_of(ragged(), [0]), 130)).isfinite().all()
    with pytest.raises(
        UsageError, match=r"max_completion_length is 20, but .* ends at 24; shorten the prompts"
    ):
        train(tmp_path, model=small_gpt2(), max_completion_length=20, dataset=prompts())


def padded_with_tokens(rollouts: Rollouts, length: int) -> Rollouts:
    """A longer prompt, so that what is read of the row has that many tokens: all but the last."""
    count = length + 1 - rollouts.prompt_ids.shape[1] - int(rollouts.completion_mask.sum())
    longer = padded(rollouts, count)
    return dataclasses.replace(longer, prompt_mask=torch.ones_like(longer.prompt_mask))
