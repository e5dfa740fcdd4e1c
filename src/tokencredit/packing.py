"""Many suffixes in one row: each reads the clean keys and values of what precedes it.

A token's replacement changes nothing before it. So a perturbed sequence is run from that token on, and its attention
reads the keys and values that the clean pass left for the tokens before. The suffixes of many tokens, of many rows, lie
one after the other in a single row without padding: everything but attention treats tokens one by one, and attention
is a function registered with transformers' AttentionInterface that keeps the pieces apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "tokencredit_packed"
# What attention functions are passed without it changing the result of a pass like ours.
_HARMLESS = {
    "dropout",
    "scaling",
    "position_ids",
    "use_cache",
    "cache_position",
    "is_causal",
    "output_attentions",
}


class UnsupportedAttentionError(Exception):
    """The model's attention asks for more than queries, keys, values and a causal mask."""


@dataclass(eq=False)
class Segment:
    """A piece of a sequence: the tokens `ids` (n,) at positions start, start + 1, ...

    Attributes:
        prefix: the segment whose keys and values hold the tokens before `start`; None where start is 0.
        keep: whether its own keys and values are wanted afterwards.
        keys, values: by layer, (H_kv, n, D) each, once it has been run with `keep`.
    """

    ids: Tensor
    start: int = 0
    prefix: Segment | None = None
    keep: bool = False
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Alike:
    """Segments with equal start and size: their places in the packed row (m, n), and their mask (n, start + n)."""

    segments: list[Segment]
    places: Tensor
    mask: Tensor


_running: list[list[_Alike]] = []


def run_packed(model: nn.Module, segments: Sequence[Segment], reads: Tensor) -> Tensor:
    """One forward pass over all segments; logits (reads, V) at the given places of the packed row.

    Raises:
        UnsupportedAttentionError: the model's attention can't be taken over.
    """
    ids = torch.cat([segment.ids for segment in segments])
    positions = [torch.arange(s.start, s.start + s.ids.numel(), device=ids.device) for s in segments]
    with _attention_of(model, segments):
        output = model(
            input_ids=ids[None],
            position_ids=torch.cat(positions)[None],
            use_cache=False,
            logits_to_keep=reads,
        )
    return output.logits[0]


@contextmanager
def _attention_of(model: nn.Module, segments: Sequence[Segment]) -> Iterator[None]:
    """Packed attention in every module of the model, then what was there before."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []  # type: ignore[union-attr, operator]
    if set(kinds) - {"full_attention", "attention"}:
        raise UnsupportedAttentionError(f"its layers are {', '.join(sorted(set(kinds)))}")
    configs = {id(config): config for module in model.modules() if (config := _config(module)) is not None}
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    for config, _ in before:
        config._attn_implementation_internal = NAME
    _running.append(_sorted_by_shape(segments))
    try:
        yield
    finally:
        _running.pop()
        for config, name in before:
            config._attn_implementation_internal = name


def _config(module: nn.Module) -> Any:
    config = getattr(module, "config", None)
    return config if hasattr(config, "_attn_implementation_internal") else None


def _sorted_by_shape(segments: Sequence[Segment]) -> list[_Alike]:
    alike: dict[tuple[int, int], tuple[list[Segment], list[int]]] = defaultdict(lambda: ([], []))
    place = 0
    for segment in segments:
        size = segment.ids.numel()
        members, places = alike[segment.start, size]
        members.append(segment)
        places.append(place)
        place += size
    device = segments[0].ids.device
    groups = []
    for (start, size), (members, places) in alike.items():
        rows = torch.tensor(places, device=device)[:, None] + torch.arange(size, device=device)
        mask = torch.ones(size, start + size, dtype=torch.bool, device=device).tril(start)
        groups.append(_Alike(members, rows, mask))
    return groups


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of each segment to its prefix and, causally, to itself; (1, H, S, D) to (1, S, H, D)."""
    asked = [name for name, given in kwargs.items() if given is not None and name not in _HARMLESS]
    if asked or attention_mask is not None or not hasattr(module, "layer_idx"):
        raise UnsupportedAttentionError(f"its attention asks for {', '.join(asked) or 'a mask of its own'}")
    layer: Any = module.layer_idx
    heads, shared = query.shape[1], key.shape[1]
    output: Tensor | None = None
    for alike in _running[-1]:
        count, size = alike.places.shape
        q, k, v = (
            tensor[0][:, alike.places].transpose(0, 1) for tensor in (query, key, value)
        )  # (m, H, n, D)
        for index, segment in enumerate(alike.segments):
            if segment.keep:
                segment.keys[layer], segment.values[layer] = k[index], v[index]
        if alike.segments[0].prefix is not None:
            start = alike.mask.shape[1] - size
            before = [segment.prefix for segment in alike.segments if segment.prefix is not None]
            k = torch.cat([torch.stack([s.keys[layer][:, :start] for s in before]), k], dim=2)
            v = torch.cat([torch.stack([s.values[layer][:, :start] for s in before]), v], dim=2)
        # Heads that share keys are neighbours: they become further queries of the head that they share.
        q = q.reshape(count, shared, heads // shared * size, -1)
        mask = alike.mask.repeat(heads // shared, 1) if heads > shared else alike.mask
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        if output is None:  # autocast may attend in another type than the queries'
            output = attended.new_empty(1, query.shape[2], heads, value.shape[-1])
        output[0, alike.places] = attended.reshape(count, heads, size, -1).transpose(1, 2)
    assert output is not None
    return output, None
