"""Changed tokens, and the segments that are run anew for them on top of the clean keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokencredit.layout import Batch
from tokencredit.packing import Segment


@dataclass(frozen=True)
class Edits:
    """Edit n puts new_ids[n] (N, L) in place of the L completion tokens from tokens[n] on, of the batch's row rows[n];
    where it is -1 the token stays. rows and tokens are (N,)."""

    rows: Tensor
    tokens: Tensor
    new_ids: Tensor


def exact_edits(edits: Edits, completions: Sequence[Segment]) -> list[Segment]:
    """For each edit the row from its token on."""
    segments = []
    for row, token, new_ids in zip(edits.rows.tolist(), edits.tokens.tolist(), edits.new_ids, strict=True):
        segments.append(_suffix(completions[row], token, new_ids))
    return segments


def _suffix(clean: Segment, token: int, new_ids: Tensor) -> Segment:
    ids = clean.ids[token:].clone()
    placed = (new_ids >= 0).nonzero().squeeze(1)
    ids[placed] = new_ids[placed]
    return Segment(ids, clean.start + token, prefix=clean)


def sparse_edits(batch: Batch, edits: Edits, completions: Sequence[Segment], m: int) -> list[Segment]:
    """For each edit its token, the m later reasoning tokens that it influences most, and what follows the reasoning."""
    segments: dict[int, Segment] = {}
    for row, clean in enumerate(completions):
        tail = _tail(batch, row, clean)
        of_row = (edits.rows == row).nonzero().squeeze(1)
        tokens, new_ids = edits.tokens[of_row], edits.new_ids[of_row]
        near = tail - tokens - 1 <= min(m, tail)
        for place in near.nonzero().squeeze(1).tolist():
            segments[int(of_row[place])] = _suffix(clean, int(tokens[place]), new_ids[place])
        tokens, new_ids, of_row = tokens[~near], new_ids[~near], of_row[~near]
        if not of_row.numel():
            continue
        assert clean.influence is not None
        later = torch.arange(tail, device=tokens.device)[:, None] > tokens
        most = clean.influence[:tail, tokens].masked_fill(~later, -1.0).topk(m, dim=0).indices
        rest = torch.arange(tail, clean.size, device=tokens.device).expand(tokens.numel(), -1)
        places = torch.cat([tokens[:, None], most.sort(dim=0).values.T, rest], dim=1)
        ids = clean.ids[places]
        ids[:, 0] = new_ids[:, 0]
        positions = clean.start + places
        for edit, token, *piece in zip(of_row.tolist(), tokens.tolist(), ids, positions, strict=True):
            segments[edit] = Segment(piece[0], clean.start + token, piece[1], prefix=clean)
    return [segments[edit] for edit in range(edits.rows.numel())]


def scattered_edits(
    batch: Batch, edits: Edits, completions: Sequence[Segment], anew: Tensor
) -> list[Segment]:
    """For each edit its token and the columns that are computed anew, (N, E) of those that are read, -1 for none."""
    beyond = batch.ids.shape[1]
    own = batch.columns[edits.rows, edits.tokens]
    columns = torch.cat([own[:, None], (anew + batch.read_from).masked_fill(anew < 0, beyond)], dim=1)
    columns = columns.sort(dim=1).values
    used = columns < beyond
    place = (edits.rows[:, None], columns.clamp(max=beyond - 1))
    ids, positions = batch.ids[place], batch.positions[place]
    ids[:, 0] = edits.new_ids[:, 0]
    sizes = used.sum(dim=1).tolist()
    pieces = zip(
        edits.rows.tolist(),
        positions[:, 0].tolist(),
        ids[used].split(sizes),
        positions[used].split(sizes),
        strict=True,
    )
    return [
        Segment(own_ids, start, places, prefix=completions[row]) for row, start, own_ids, places in pieces
    ]


def _tail(batch: Batch, row: int, clean: Segment) -> int:
    """The first token that is computed anew after every edit: what follows the reasoning, and all that is read."""
    reasoning = batch.reasoning[row]
    reads = batch.read_from + batch.read_mask[row].nonzero().squeeze(1)
    outcome = reads[~torch.isin(reads + 1, batch.columns[row, reasoning])]
    return min(int(outcome[0] - batch.columns[row, 0]), int(reasoning.nonzero().max()) + 1)


def shape(segment: Segment, row: int) -> tuple[bool, int, int, int]:
    """Scattered segments of one row side by side, the others by start and size."""
    if segment.scattered is None:
        return False, segment.start, segment.size, 0
    return True, row, segment.start, 0
