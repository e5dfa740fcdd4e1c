"""What a model can do, found out by trying: once a model, on a few random tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokencredit.calling import Caller
from tokencredit.edits import Edits
from tokencredit.errors import UsageError
from tokencredit.layout import Batch, align, outcome_row, unpadded
from tokencredit.memory import ran_out
from tokencredit.packing import UnsupportedAttentionError
from tokencredit.passes import Budget, PackedRows, Passes, WholeRows
from tokencredit.ranks import Ranks
from tokencredit.rollouts import Rollouts

logger = logging.getLogger("tokencredit.policy")


def packing_agrees(caller: Caller) -> bool:
    """Whether packed rows give the model's own logits."""
    if not {"position_ids", "logits_to_keep"} <= caller.accepts or caller.config is None:
        return False
    name, ranks = type(caller.model).__name__, Ranks(caller.device)
    if _rope_by_length(caller.config):
        logger.warning(
            "%s: attribution runs rows one by one, as its rotary embedding depends on a pass's length", name
        )
        return False
    # As long before the first position read, so that whole rows need no padding.
    batch = _example(caller, [(5, 14), (9, 10)])
    try:
        packed = _changed_logits(PackedRows(caller, ranks), batch)
    except (UnsupportedAttentionError, AttributeError, TypeError, LookupError, RuntimeError) as error:
        if ran_out(error):
            raise
        logger.warning("%s: attribution runs whole rows, as packing fails with it (%s)", name, error)
        return False
    if _agree(caller, packed, _changed_logits(WholeRows(caller, ranks), batch)):
        return True
    logger.warning("%s: attribution runs whole rows, as packed rows give it other logits", name)
    return False


def padding_agrees(caller: Caller) -> bool:
    """Whether the model reads a padded row as it reads the row alone."""
    if _rope_by_length(caller.config):
        return False
    batch, rows = _example(caller, [(3, 4), (9, 10)]), WholeRows(caller, Ranks(caller.device))
    alone = unpadded(batch, 0)
    padded = rows.clean(batch).outcome.logits[0][batch.read_mask[0]]
    if _agree(caller, padded, rows.clean(alone).outcome.logits[alone.read_mask]):
        return True
    name = type(caller.model).__name__
    logger.warning("%s: attribution runs rows one by one, as padding changes its logits", name)
    return False


def refuse_without_gradient(caller: Caller) -> None:
    """Tries one pass forward and back.

    Raises:
        UsageError: a layer takes what depends on the embeddings and gives what doesn't, or the backward pass fails.
    """
    deaf: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            asked = any(isinstance(value, Tensor) and value.requires_grad for value in args)
            if asked and isinstance(output, Tensor) and not output.requires_grad:
                deaf.append(f"{name} ({type(module).__name__})")

        return note

    batch = _example(caller, [(2, 3)])
    layers = [
        (name, module) for name, module in caller.model.named_modules() if hasattr(module, "in_features")
    ]
    handles = [module.register_forward_hook(watch(name)) for name, module in layers]
    try:
        outcome, leaf = WholeRows(caller, Ranks(caller.device)).differentiable(batch, None, None)
    finally:
        for handle in handles:
            handle.remove()
    try:
        if not deaf:
            torch.autograd.grad(outcome.logits.sum(), leaf.embeddings)
    except (RuntimeError, NotImplementedError) as error:
        if ran_out(error):
            raise
        deaf.append(f"a layer ({error})")
    if deaf:
        settings = getattr(caller.config, "quantization_config", None) or {}
        settings = settings if isinstance(settings, dict) else settings.to_dict()
        method = settings.get("quant_method")
        named = f" quantised with {getattr(method, 'value', method)}" if method else ""
        raise UsageError(
            f"{type(caller.model).__name__}{named} passes no gradient from its outcome to its embeddings, as {deaf[0]} "
            "gives none; use oar-p, which needs none, or a base that can be trained through"
        )


def _rope_by_length(config: Any) -> bool:
    """Whether frequencies change once the longest row of a pass goes beyond the length of pre-training."""
    stated = getattr(config, "rope_parameters", None) or {}
    kinds = [stated, *(value for value in stated.values() if isinstance(value, dict))]
    return any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds)


def _example(caller: Caller, shapes: list[tuple[int, int]]) -> Batch:
    """Random rows of (prompt, reasoning) tokens, each with an answer of two tokens."""
    random = torch.Generator().manual_seed(0)
    count, width = len(shapes), max(reasoning for _, reasoning in shapes) + 2
    tokens = torch.arange(width)
    reasoning = torch.stack([tokens < size for _, size in shapes])
    completion = torch.stack([tokens < size + 2 for _, size in shapes])
    prompt_width = max(prompt for prompt, _ in shapes)
    prompt = torch.stack([torch.arange(prompt_width) >= prompt_width - size for size, _ in shapes])
    rollouts = Rollouts(
        torch.randint(0, caller.vocabulary, prompt.shape, generator=random),
        prompt,
        torch.randint(0, caller.vocabulary, completion.shape, generator=random),
        completion,
        reasoning,
        completion & ~reasoning,
    )
    rows = list(range(count))
    rollouts = rollouts.to(caller.device)
    return align(rollouts, rows, [outcome_row(rollouts, row) for row in rows])


def _changed_logits(passes: Passes, batch: Batch) -> Tensor:
    """(4, K, V) after the first token of each row is replaced, and one in its middle."""
    device = batch.ids.device
    edits = Edits(
        torch.tensor([0, 0, 1, 1], device=device),
        torch.tensor([0, 6, 0, 6], device=device),
        batch.ids[[0, 0, 1, 1], [1, 2, 3, 4]][:, None],
    )
    found: dict[int, Tensor] = {}
    for part, _, changed in passes.changed(batch, edits, 0, Budget(1024, 1 << 30)):
        found |= dict(zip(part.tolist(), changed.logits, strict=True))
    return torch.stack([found[edit] for edit in sorted(found)])


def _agree(caller: Caller, found: Tensor, expected: Tensor) -> bool:
    """Equal up to a pass's rounding, relative to the largest logit; half precision has few digits to spare."""
    rounding = (6 if caller.half_precision else 256) * caller.eps
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())
