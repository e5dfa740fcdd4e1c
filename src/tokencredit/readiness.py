"""What a pass of attribution changes in a model while it runs, and puts back: nothing trains, drops out, is compiled or
is computed twice, and logits are float32 or better."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

_HEAD_ROWS = 8192  # of a half-precision head that are float32 at once


@contextmanager
def made_ready(model: nn.Module, half_precision: bool) -> Iterator[None]:
    """The model ready for one pass; what each of its modules and parameters was before comes back afterwards.

    Args:
        half_precision: whether it computes in bfloat16 or float16, so that its logits need care.
    """
    with _evaluating(model), _uncompiled(model), _frozen(model), _computed_once(model):
        if not half_precision:
            yield
            return
        with _outputs_as_computed(model), float32_head(model):
            yield


@contextmanager
def float32_head(model: nn.Module) -> Iterator[None]:
    """The head computes in float32, where it is a plain matrix of numbers."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    # A subclass that keeps the forward is FSDP's; any other forward is there for a reason.
    plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    if not plain or "forward" in vars(head) or not head.weight.is_floating_point():
        yield
        return

    def compute(hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return _in_float32(hidden, head.weight, head.bias)

    # In place of its forward, where a sharded weight is whole, and not in a hook, where it may be in pieces again.
    with forward_replaced(head, compute):
        yield


@contextmanager
def forward_replaced(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """The module runs another function, between its hooks."""
    before = vars(module).get("forward")
    module.forward = function
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _uncompiled(model: nn.Module) -> Iterator[None]:
    compiled = [(m, m._compiled_call_impl) for m in model.modules() if m._compiled_call_impl is not None]
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Parameters ask for no gradient; without gradient nothing does."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    try:
        if torch.is_grad_enabled():
            for parameter in trained.values():
                parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained.values():
            parameter.requires_grad_(True)
        for name, parameter in model.named_parameters():  # others by now, where FSDP has put shards together
            if name in trained:
                parameter.requires_grad_(True)


@contextmanager
def _computed_once(model: nn.Module) -> Iterator[None]:
    """Checkpointed layers keep their activations: by the backward pass, packed attention is gone from the model.

    transformers' own checkpointing is off in evaluation mode anyway.
    """
    wrappers = [module for module in model.modules() if isinstance(module, CheckpointWrapper)]
    before = [(wrapper, wrapper.checkpoint_fn) for wrapper in wrappers]
    try:
        for wrapper in wrappers:
            wrapper.checkpoint_fn = partial(_call)
        yield
    finally:
        for wrapper, function in before:
            wrapper.checkpoint_fn = function


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


@contextmanager
def _outputs_as_computed(model: nn.Module) -> Iterator[None]:
    """FSDP2's mixed precision leaves float32 logits as they are."""
    states: list[Any] = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    before = [(state, state._mp_policy) for state in states]
    try:
        for state, policy in before:
            state._mp_policy = dataclasses.replace(policy, output_dtype=None)
        yield
    finally:
        for state, policy in before:
            state._mp_policy = policy


def _in_float32(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """hidden @ weight^T + bias, (..., V) float32, with a slice of a half-precision weight in float32 at a time."""

    def piece(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear(hidden.float(), weight.float())

    # Checkpointed, or the graph would keep every slice.
    slices = [
        checkpoint(piece, hidden, part, use_reentrant=False, preserve_rng_state=False)
        for part in weight.split(_HEAD_ROWS)
    ]
    logits = torch.cat(slices, dim=-1)
    return logits if bias is None else logits + bias.float()
