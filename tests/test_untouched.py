"""Attribution leaves a model as it found it, also when a pass is broken off in its middle."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import plain
from families import build, with_lora
from models import ragged, with_probe
from tokencredit import UsageError, token_importance

ROLLOUTS = with_probe(ragged(), [1, 3])
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "oar-p": ("oar-p", {"pad_token_id": 2}),
    "sparse oar-p": ("oar-p", {"pad_token_id": 2, "m": 2}),
    "oar-g": ("oar-g", {"noise_std": 0.3}),
    "oar-g labels": ("oar-g", {"gradient": "labels"}),
    "path": ("path", {}),
    "asked path": ("path", {"m": 2}),
    "entropy": ("entropy", {}),
}
MODELS = {
    "llama": lambda: build("llama"),
    "llama eager": lambda: build("llama", "eager"),
    "gpt2": lambda: build("gpt2"),
    "gemma2": lambda: build("gemma2"),
    "mistral": lambda: build("mistral"),
    "mixtral": lambda: build("mixtral"),
    "qwen3-next": lambda: build("qwen3-next"),
    "llama bfloat16": lambda: build("llama", dtype=torch.bfloat16),
    "llama lora": lambda: with_lora(build("llama")),
}


class Interruption(BaseException):
    """Like KeyboardInterrupt: nothing may swallow it."""


class PassError(RuntimeError):
    """An error that a check of the model may catch and answer by another way to run it."""


def importance(model: nn.Module, form: str) -> Tensor:
    name, options = FORMS[form]
    return token_importance(model, ROLLOUTS, name, outcome="answer_kl", token_budget=120, **options)


def in_use(model: nn.Module) -> nn.Module:
    """A model in the middle of training: mixed modes, some parameters frozen, some with gradients."""
    model.train()
    for index, module in enumerate(model.modules()):
        if index % 5 == 4:
            module.training = False
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 3 != 1)
        parameter.grad = torch.full_like(parameter, 0.5 + index) if index % 3 == 0 else None
    return model


def outputs(model: nn.Module) -> list[Tensor]:
    """Logits in the model's present mode: of a padded batch, and of one more token after a cache; and a gradient."""
    ids = torch.arange(3, 19).reshape(2, 8)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with torch.random.fork_rng():
        torch.manual_seed(7)
        padded = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        cached = model(input_ids=ids[:1], use_cache=True)
        after = model(input_ids=ids[:1, :1], past_key_values=cached.past_key_values).logits
        chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(padded.float().pow(2).sum(), chosen, allow_unused=True)
    found = [padded, cached.logits, after, *(gradient for gradient in gradients if gradient is not None)]
    return [tensor.detach() for tensor in found]


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a pass might forget to put back."""
    from transformers import AttentionInterface

    found: dict[str, Any] = {
        "random of torch": torch.get_rng_state(),
        "random of python": repr(random.getstate()),
        "random of numpy": repr(numpy.random.get_state()[1].tolist()),
        "gradients on": torch.is_grad_enabled(),
        "attention functions": {name: AttentionInterface()[name] for name in ("sdpa", "flash_attention_2")},
    }
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[f"{name} value"] = tensor.detach().clone()
        found[f"{name} gradient"] = None if tensor.grad is None else tensor.grad.clone()
        found[f"{name} requires_grad"] = tensor.requires_grad
        found[f"{name} identity"] = id(tensor)
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        found[f"{name} attention"] = getattr(config, "_attn_implementation", None)
        found[f"{name} training"] = module.training
        found[f"{name} attributes"] = sorted(vars(module))
        found[f"{name} class"] = type(module)
        hooks = [value for key, value in vars(module).items() if key.endswith("hooks")]
        found[f"{name} hooks"] = [list(each.values() if isinstance(each, dict) else each) for each in hooks]
    return found


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name]
        assert same, f"{name} was {value} and is {after[name]}"


def assert_bit_equal(before: list[Tensor], after: list[Tensor]) -> None:
    assert len(before) == len(after)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_as_it_was(name, form):
    model = in_use(MODELS[name]())
    before, said = state(model), outputs(model)
    for _ in range(2):  # the first call also finds out how the model can be run
        importance(model, form)
        assert_same(before, state(model))
    assert_bit_equal(said, outputs(model))
    assert_same(before, state(model))


def layer_of(model: nn.Module) -> nn.Module:
    """The last of the model's layers."""
    layers = [
        module for module in model.modules() if type(module).__name__.endswith(("DecoderLayer", "Block"))
    ]
    return [module for module in layers if any(child.children() for child in module.children())][-1]


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ("oar-p", Interruption),
        ("oar-p", PassError),
        ("oar-g", Interruption),
        ("oar-g", PassError),
        # Without PassError: where a check of the model fails, rows are not packed and importances are exact.
        ("sparse oar-p", Interruption),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "llama lora"])
def test_after_an_exception_in_a_pass(name, form, error):
    """Raised once in the n-th pass, for every n: afterwards all is as it was, and the next call is right."""
    expected = importance(MODELS[name](), form)
    for count in range(1, 100):
        model = in_use(MODELS[name]())
        said, calls = outputs(model), []

        def fail_once(_module: nn.Module, _args: Any, count: int = count, calls: list = calls) -> None:
            calls.append(None)
            if len(calls) == count:
                raise error(f"in pass {count}")

        handle = layer_of(model).register_forward_pre_hook(fail_once)
        before, raised = state(model), False
        try:
            importance(model, form)
        except error:
            raised = True
        assert_same(before, state(model))
        handle.remove()
        if len(calls) < count:
            break
        assert raised or error is PassError, "an interruption must not be swallowed"
        assert_bit_equal(said, outputs(model))
        torch.testing.assert_close(importance(model, form), expected, rtol=1e-3, atol=1e-5)
    assert count > 2, "there must have been passes to break off"


def test_after_an_interruption_of_what_precedes_a_pass(monkeypatch):
    """Between the first module that is put into evaluation mode and the last one."""
    model = in_use(build("llama", dtype=torch.bfloat16))
    before = state(model)
    with monkeypatch.context() as patch:
        patch.setattr(type(model.lm_head), "train", interrupted_if(model.lm_head))
        with pytest.raises(Interruption):
            importance(model, "oar-p")
    assert_same(before, state(model))
    importance(model, "oar-p")


def interrupted_if(target: nn.Module) -> Any:
    def train(module: nn.Module, mode: bool = True) -> nn.Module:
        if module is target:
            raise Interruption
        return nn.Module.train(module, mode)

    return train


def test_a_pass_within_a_pass_is_refused():
    """What the inner one would put back is the outer one's state, not the model's."""
    model = in_use(build("llama"))
    handle = layer_of(model).register_forward_pre_hook(lambda *_: importance(model, "oar-p") and None)
    before = state(model)
    with pytest.raises(UsageError, match="in a pass of attribution already"):
        importance(model, "oar-p")
    assert_same(before, state(model))
    handle.remove()
    torch.testing.assert_close(importance(model, "oar-p"), importance(build("llama"), "oar-p"))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("form", ["oar-p", "oar-g"])
def test_gradient_checkpointing_stays_on(form, reentrant):
    model = in_use(build("llama"))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    before = state(model)
    found = importance(model, form)
    assert_same(before, state(model))
    assert model.is_gradient_checkpointing
    plain_form = {
        "oar-p": lambda bare: plain.oar_p(bare, ROLLOUTS, "answer_kl", "pad", 2),
        "oar-g": lambda bare: plain.oar_g(bare, ROLLOUTS, "answer_kl", noise_std=0.3),
    }
    torch.testing.assert_close(found.double(), plain_form[form](build("llama")), rtol=1e-3, atol=1e-5)
