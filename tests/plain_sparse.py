"""Sparse OAR-P the plain way: a full forward in which every position but the chosen ones keeps its clean states."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import plain
from tokencredit import Rollouts


def layers_of(model: nn.Module) -> Any:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def influence(model: nn.Module, ids: list[int]) -> Tensor:
    """(L, L) attention of s to t times the norm of t's value, summed over heads and layers."""
    eager = copy.deepcopy(model).float()
    eager.set_attn_implementation("eager")
    values: list[Tensor] = []
    heads = eager.config.num_attention_heads
    for layer in layers_of(eager):
        if hasattr(layer, "attn"):
            layer.attn.c_attn.register_forward_hook(lambda _m, _a, out: values.append(out[0].chunk(3, -1)[2]))
        else:
            layer.self_attn.v_proj.register_forward_hook(lambda _m, _a, out: values.append(out[0]))
    with torch.no_grad():
        attentions = eager(torch.tensor([ids]), output_attentions=True).attentions
    total = torch.zeros(len(ids), len(ids))
    for attention, value in zip(attentions, values, strict=True):
        shared = getattr(eager.config, "num_key_value_heads", heads)
        norms = value.view(len(ids), shared, -1).norm(dim=-1)
        for head in range(heads):
            total += attention[0, head] * norms[:, head * shared // heads]
    return total


def changed_logits(model: nn.Module, ids: list[int], changed: list[int], anew: set[int]) -> Tensor:
    """Full logits of the changed ids, with the clean states at all positions but those computed anew."""
    clean: list[Tensor] = []
    layers = layers_of(model)
    handles = [layer.register_forward_hook(lambda _m, _a, out: clean.append(first(out))) for layer in layers]
    plain.full_logits(model, input_ids=torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    kept = [place for place in range(len(ids)) if place not in anew]
    states = iter(clean)

    def reset(_module: nn.Module, _args: Any, out: Any) -> Any:
        mixed = first(out).clone()
        mixed[:, kept] = next(states)[:, kept]
        return (mixed, *out[1:]) if isinstance(out, tuple) else mixed

    handles = [layer.register_forward_hook(reset) for layer in layers]
    logits = plain.full_logits(model, input_ids=torch.tensor([changed]))
    for handle in handles:
        handle.remove()
    return logits


def first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


@torch.no_grad()
def oar_p(model: nn.Module, rollouts: Rollouts, mode: str, pad: int, m: int) -> Tensor:
    importance = torch.zeros(rollouts.shape, dtype=torch.float64)
    for row in range(rollouts.shape[0]):
        ids, start, where, said = plain.row_parts(rollouts, row)
        tokens = rollouts.reasoning_mask[row].nonzero().squeeze(1).tolist()
        attends = influence(model, ids)
        tail = min(start + tokens[-1] + 1, where[0])
        clean = plain.representation(
            plain.full_logits(model, input_ids=torch.tensor([ids])), where, said, mode
        )
        for token in tokens:
            place = start + token
            later = sorted(range(place + 1, tail), key=lambda s: -attends[s, place].item())[:m]
            changed = list(ids)
            changed[place] = pad
            anew = {place, *later, *range(tail, len(ids))}
            moved = plain.representation(changed_logits(model, ids, changed, anew), where, said, mode)
            importance[row, token] = plain.distance(clean, moved, mode).abs()
    return importance
