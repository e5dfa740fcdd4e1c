"""Many pieces of sequences in one row: each reads the clean keys and values of what precedes it.

A token's replacement changes nothing before it. So a perturbed sequence is run from that token on, and its attention
reads the keys and values that the clean pass left for the tokens before. The pieces, of many tokens and many rows, lie
one after the other in a single row without padding: everything but attention treats tokens one by one, and attention
is a function registered with transformers' AttentionInterface that keeps the pieces apart.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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
# Attention probabilities held at once while influence is summed: 64 MB in float32.
_SCORES = 1 << 24


class UnsupportedAttentionError(Exception):
    """The model's attention asks for more than queries, keys, values, a causal mask, a window and a soft cap."""


@dataclass(eq=False)
class Segment:
    """A piece of a sequence.

    Attributes:
        ids: (n,) its tokens.
        start: position of the first in its sequence.
        scattered: (n,) their positions, ascending, where these don't follow one another from `start`.
        prefix: the segment, run before or in the same pass, that holds the clean tokens of the other positions.
        keep: whether its own keys and values are wanted afterwards.
        influence: if given, (n, n) to which a pass adds how much token s attends to token t: attention probability
            times the norm of t's value, summed over heads and layers.
        watch: if given, called by a pass with each layer, places (m,) of some of its tokens and their attention to its
            own tokens, (H, m, n).
        keys, values: by layer, (H_kv, n, D) each, once it has been run with `keep`.
    """

    ids: Tensor
    start: int = 0
    scattered: Tensor | None = None
    prefix: Segment | None = None
    keep: bool = False
    influence: Tensor | None = None
    watch: Callable[[int, Tensor, Tensor], None] | None = None
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.ids.numel()

    @property
    def end(self) -> int:
        """The position after its last token, where its tokens follow one another."""
        return self.start + self.size

    @property
    def positions(self) -> Tensor:
        if self.scattered is not None:
            return self.scattered
        return torch.arange(self.start, self.end, device=self.ids.device)

    def append(self, later: Segment) -> None:
        """Takes over the tokens, keys and values of a kept segment that follows this one."""
        self.ids = torch.cat([self.ids, later.ids])
        for layer, keys in later.keys.items():
            self.keys[layer] = torch.cat([self.keys[layer], keys], dim=1)
            self.values[layer] = torch.cat([self.values[layer], later.values[layer]], dim=1)

    def clean(self, layer: int, end: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of the positions before `end`, in pieces, of this kept segment and those before it."""
        own = max(0, end - self.start)
        keys, values = self.prefix.clean(layer, min(end, self.start)) if self.prefix else ([], [])
        return [*keys, self.keys[layer][:, :own]], [*values, self.values[layer][:, :own]]


@dataclass(frozen=True)
class _Mask:
    """Which keys each query reads, (n, n') bool, and the positions of queries (n,) and keys (n',)."""

    seen: Tensor
    queries: Tensor
    keys: Tensor

    def within(self, window: int | None) -> Tensor:
        """What is left of it when queries read the last `window` positions alone."""
        if window is None:
            return self.seen
        return self.seen & (self.queries[:, None] - self.keys < window)


@dataclass(frozen=True)
class _Form:
    """How a layer turns scores into attention: its scale, its window and its soft cap, None where it has none.

    `eager` follows the model's own arithmetic, which in half precision rounds scores and probabilities.
    """

    scaling: float | None
    window: int | None
    cap: float | None
    eager: bool


@dataclass(frozen=True)
class _Alike:
    """Segments without gaps, of equal start and size: where each begins in the row, and their mask (n, start + n)."""

    segments: list[Segment]
    begins: list[int]
    mask: _Mask


@dataclass(frozen=True)
class _Scattered:
    """Neighbours in the row with the same prefix and with gaps between their positions.

    Attributes:
        begin, size: their place in the row.
        reach: how many positions of the prefix they read.
        mask: (size, reach + size) which of the prefix's and of their own tokens each reads.
    """

    prefix: Segment
    begin: int
    size: int
    reach: int
    mask: _Mask


class _Running(threading.local):
    """The pass that is running, in each thread."""

    segments: tuple[list[_Alike], list[_Scattered], bool] | None = None


_running = _Running()


def run_packed(model: nn.Module, segments: Sequence[Segment], reads: Tensor) -> Tensor:
    """One forward pass over all segments; logits (reads, V) at the given places of the packed row.

    Raises:
        UnsupportedAttentionError: the model's attention can't be taken over.
    """
    ids = torch.cat([segment.ids for segment in segments])
    positions = torch.cat([segment.positions for segment in segments])
    with _attention_of(model, segments):
        output = model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=reads
        )
    return output.logits[0]


@contextmanager
def _attention_of(model: nn.Module, segments: Sequence[Segment]) -> Iterator[None]:
    """Packed attention in every module of the model, then what was there before."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []  # type: ignore[union-attr, operator]
    if set(kinds) - {"full_attention", "sliding_attention", "attention"}:
        raise UnsupportedAttentionError(f"its layers are {', '.join(sorted(set(kinds)))}")
    configs = {id(config): config for module in model.modules() if (config := _config(module)) is not None}
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    eager = any(name == "eager" for _, name in before)
    outer = _running.segments
    try:
        for config, _ in before:
            config._attn_implementation_internal = NAME
        _running.segments = (_alike(segments), _scattered(segments), eager)
        yield
    finally:
        _running.segments = outer
        for config, name in before:
            config._attn_implementation_internal = name


def _config(module: nn.Module) -> Any:
    config = getattr(module, "config", None)
    return config if hasattr(config, "_attn_implementation_internal") else None


def _begins(segments: Sequence[Segment]) -> list[int]:
    begins = [0]
    for segment in segments:
        begins.append(begins[-1] + segment.size)
    return begins


def _alike(segments: Sequence[Segment]) -> list[_Alike]:
    """Segments without gaps by shape; those that others may read in the same pass, the ones without a prefix, first."""
    groups: dict[tuple[bool, int, int], tuple[list[Segment], list[int]]] = defaultdict(lambda: ([], []))
    for segment, begin in zip(segments, _begins(segments), strict=False):
        if segment.scattered is None:
            members, begins = groups[segment.prefix is not None, segment.start, segment.size]
            members.append(segment)
            begins.append(begin)
    device = segments[0].ids.device
    alike = []
    for (_, start, size), (members, begins) in sorted(groups.items(), key=lambda item: item[0][0]):
        places = torch.arange(start + size, device=device)
        seen = torch.ones(size, start + size, dtype=torch.bool, device=device).tril(start)
        alike.append(_Alike(members, begins, _Mask(seen, places[start:], places)))
    return alike


def _scattered(segments: Sequence[Segment]) -> list[_Scattered]:
    """Blocks of about as many tokens as their prefix has: longer ones would mostly mask each other out."""
    blocks: list[_Scattered] = []
    begins = _begins(segments)
    start = 0
    while start < len(segments):
        prefix, stop = segments[start].prefix, start
        if segments[start].scattered is None or prefix is None:
            start += 1
            continue
        reach = prefix.end
        while stop < len(segments) and segments[stop].prefix is prefix:
            if segments[stop].scattered is None:
                break
            if stop > start and begins[stop + 1] - begins[start] > max(reach, 128):
                break
            stop += 1
        members = segments[start:stop]
        positions = torch.cat([member.positions for member in members])
        owner = torch.repeat_interleave(
            torch.arange(len(members), device=positions.device),
            torch.tensor([member.size for member in members], device=positions.device),
        )
        replaced = torch.zeros(len(members), reach, dtype=torch.bool, device=positions.device)
        inside = positions < reach  # a continuation may be longer than what it takes the place of
        replaced[owner[inside], positions[inside]] = True
        before = torch.arange(reach, device=positions.device)
        clean = before < positions[:, None]
        own = (owner[:, None] == owner) & (positions[:, None] >= positions)
        seen = torch.cat([clean & ~replaced[owner], own], dim=1)
        mask = _Mask(seen, positions, torch.cat([before, positions]))
        blocks.append(_Scattered(prefix, begins[start], positions.numel(), reach, mask))
        start = stop
    return blocks


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of each segment to its prefix and, causally, to itself; (1, H, S, D) to (1, S, H, D)."""
    asked = [name for name, given in kwargs.items() if given is not None and name not in _HARMLESS]
    if asked or attention_mask is not None or not hasattr(module, "layer_idx"):
        raise UnsupportedAttentionError(f"its attention asks for {', '.join(asked) or 'a mask of its own'}")
    layer: Any = module.layer_idx
    assert _running.segments is not None
    alike, scattered, eager = _running.segments
    form = _Form(scaling, sliding_window, softcap, eager)
    found: list[tuple[int, Tensor]] = []
    for group in alike:
        found += _attend_alike(group, layer, query[0], key[0], value[0], form)
    for block in scattered:
        place = slice(block.begin, block.begin + block.size)
        keys, values = block.prefix.clean(layer, block.reach)
        k, v = torch.cat([*keys, key[0, :, place]], 1), torch.cat([*values, value[0, :, place]], 1)
        attended = _grouped_attention(query[:, :, place], k[None], v[None], block.mask, form)
        found.append((block.begin, attended[0]))
    in_order = [piece for _, piece in sorted(found, key=lambda place: place[0])]
    return torch.cat(in_order, dim=1).transpose(0, 1)[None], None


def _attend_alike(
    group: _Alike, layer: int, query: Tensor, key: Tensor, value: Tensor, form: _Form
) -> list[tuple[int, Tensor]]:
    """(begin, (H, n, D)) of each segment of the group."""
    size = group.segments[0].size
    places = [slice(begin, begin + size) for begin in group.begins]
    keys, values = [], []
    for segment, place in zip(group.segments, places, strict=True):
        own_keys, own_values = key[:, place], value[:, place]
        before: tuple[list[Tensor], list[Tensor]] = ([], [])
        if segment.prefix is not None:
            before = segment.prefix.clean(layer, segment.start)
        keys.append(torch.cat([*before[0], own_keys], dim=1))
        values.append(torch.cat([*before[1], own_values], dim=1))
        if segment.keep:
            # Clones, or each layer's views would keep the whole pass alive.
            segment.keys[layer], segment.values[layer] = own_keys.clone(), own_values.clone()
    q = torch.stack([query[:, place] for place in places])
    k, v = torch.stack(keys), torch.stack(values)
    noted = [member for member, segment in enumerate(group.segments) if segment.influence is not None]
    if noted:
        found = [segment.influence for segment in group.segments if segment.influence is not None]
        _add_influence(found, q[noted], k[noted], v[noted, :, -size:], group.mask, form)
    for member, segment in enumerate(group.segments):
        if segment.watch is not None:
            alone = slice(member, member + 1)
            for part, attention in _own_attention(q[alone], k[alone], group.mask, form):
                segment.watch(layer, part, attention[0])
    attended = _grouped_attention(q, k, v, group.mask, form)
    return list(zip(group.begins, attended, strict=True))


def _grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: _Mask, form: _Form) -> Tensor:
    """(m, H, n, D) queries, (m, H_kv, n', D) keys and values, mask (n, n'): (m, H, n, D).

    Heads that share keys are neighbours: they become further queries of the head that they share.
    """
    count, heads, size, _ = q.shape
    shared = k.shape[1]
    q = q.reshape(count, shared, heads // shared * size, -1)
    seen = mask.within(form.window)
    seen = seen.repeat(heads // shared, 1) if heads > shared else seen
    if form.cap is None and not form.eager:
        attended = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=form.scaling)
    else:
        attended = _probabilities(q, k, seen, form).to(v.dtype) @ v
    return attended.reshape(count, heads, size, -1)


def _probabilities(q: Tensor, k: Tensor, seen: Tensor, form: _Form) -> Tensor:
    """(..., n, n') attention of the queries to the keys, float32 or better."""
    scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5 if form.scaling is None else form.scaling)
    if form.cap is not None:
        scores = form.cap * torch.tanh(scores / form.cap)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1, dtype=dtype)


def _add_influence(
    influences: Sequence[Tensor], q: Tensor, k: Tensor, own_values: Tensor, mask: _Mask, form: _Form
) -> None:
    """Adds sum_h A_h[s, t] |v_{h,t}| for the own tokens s and t of m segments.

    q is (m, H, n, D), k (m, H_kv, start + n, D).
    """
    norms = own_values.float().norm(dim=-1).repeat_interleave(q.shape[1] // k.shape[1], 1)  # (m, H, n)
    for part, attention in _own_attention(q, k, mask, form):
        for influence, found in zip(
            influences, torch.einsum("mhst,mht->mst", attention, norms.to(attention)), strict=True
        ):
            influence[part] += found


def _own_attention(q: Tensor, k: Tensor, mask: _Mask, form: _Form) -> Iterator[tuple[Tensor, Tensor]]:
    """Places (p,) of some of the own tokens of m segments, and their attention (m, H, p, n) to the own tokens.

    q is (m, H, n, D), k (m, H_kv, start + n, D).
    """
    count, heads, size, _ = q.shape
    keys = k.repeat_interleave(heads // k.shape[1], 1)
    seen = mask.within(form.window)
    rows = max(1, _SCORES // (count * heads * k.shape[2]))
    for part in torch.arange(size, device=q.device).split(rows):
        yield part, _probabilities(q[:, :, part], keys, seen[part], form)[..., -size:]
