"""Two ways to run rows and their edits, with the same results: packed, or whole rows with padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tokencredit.calling import Caller
from tokencredit.credit.outcome import Outcome
from tokencredit.edits import Edits, exact_edits, scattered_edits, shape, sparse_edits
from tokencredit.layout import Batch, RowPlan, parts, take
from tokencredit.packing import Segment
from tokencredit.ranks import Ranks


@dataclass(frozen=True)
class Budget:
    """What one pass may hold: tokens, numbers among its logits, and rows (None: no limit)."""

    tokens: int
    logits: int
    rows: int | None = None

    def reads(self, positions: int, vocabulary: int) -> int:
        """Rows, at least one, that read `positions` each."""
        limit = max(1, self.logits // (positions * vocabulary))
        return limit if self.rows is None else min(limit, self.rows)


@dataclass(frozen=True)
class Clean:
    """The clean outcome of a batch, with the segments that keep its keys and values where rows are packed."""

    outcome: Outcome
    prompts: list[Segment] = field(default_factory=list)
    completions: list[Segment] = field(default_factory=list)


@dataclass(frozen=True)
class Predictions:
    """What some edits' rows predict where they are computed anew.

    Attributes:
        edits: (n,) which edits.
        places: (r,) which of these n each of the r predictions belongs to.
        columns: (r,) which of the batch's columns that are read it is.
        logits: (r, V).
    """

    edits: Tensor
    places: Tensor
    columns: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Leaf:
    """The input embeddings (N, H) to differentiate with respect to, and which of them is each completion token's,
    (b, T); meaningless for tokens that were left out."""

    embeddings: Tensor
    places: Tensor


class Passes(Protocol):
    """What the two ways have in common."""

    def size(self, plans: Sequence[RowPlan]) -> int:
        """Tokens that a pass over these rows computes."""

    def clean(self, batch: Batch) -> Clean:
        """The clean outcome, without gradient: one pass."""

    def kept(self, batch: Batch, influence: bool) -> Clean:
        """As `clean`, with what edits build on, and who attends to whom."""

    def changed(
        self, batch: Batch, edits: Edits, m: int, budget: Budget
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        """As `Policy.perturbed`."""

    def predictions(
        self, batch: Batch, clean: Clean, edits: Edits, anew: Tensor | None, budget: Budget
    ) -> Iterator[Predictions]:
        """As `Policy.predictions`."""

    def differentiable(self, batch: Batch, clean: Clean | None, noise: Tensor | None) -> tuple[Outcome, Leaf]:
        """As `Policy.differentiable_outcome`."""


class WholeRows:
    """Rows side by side with padding, each edit a row of its own; works with every model that padding leaves alone."""

    def __init__(self, caller: Caller, ranks: Ranks) -> None:
        self.caller = caller
        self.ranks = ranks

    def size(self, plans: Sequence[RowPlan]) -> int:
        before = max(plan.reads[0] for plan in plans)
        return len(plans) * (before + max(plan.reads[-1] - plan.reads[0] + 1 for plan in plans))

    def clean(self, batch: Batch) -> Clean:
        with torch.no_grad():
            return Clean(self.caller.rows(batch, batch.ids))

    def kept(self, batch: Batch, influence: bool) -> Clean:
        return self.clean(batch)

    def changed(
        self, batch: Batch, edits: Edits, m: int, budget: Budget
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        clean = self.clean(batch).outcome
        for part, changed in self._edited(batch, edits, budget):
            yield part, clean.select(edits.rows[part]), changed

    def predictions(
        self, batch: Batch, clean: Clean, edits: Edits, anew: Tensor | None, budget: Budget
    ) -> Iterator[Predictions]:
        first = batch.columns[edits.rows, edits.tokens] - batch.read_from
        for part, changed in self._edited(batch, edits, budget):
            columns = torch.arange(changed.mask.shape[1], device=first.device)
            places, columns = (changed.mask & (columns >= first[part, None])).nonzero(as_tuple=True)
            yield Predictions(part, places, columns, changed.logits[places, columns])

    def _edited(self, batch: Batch, edits: Edits, budget: Budget) -> Iterator[tuple[Tensor, Outcome]]:
        """Which edits (n,), and the outcome of their rows, in parts within the budget."""
        columns = batch.columns[edits.rows, edits.tokens]
        limit = budget.reads(batch.read_mask.shape[1], self.caller.vocabulary)
        limit = max(1, min(limit, budget.tokens // batch.ids.shape[1]))
        chunks = torch.arange(columns.numel(), device=columns.device).split(limit) if columns.numel() else ()
        for part in self.ranks.in_step(chunks):
            if part is None:
                self.caller.empty()
                continue
            edited = take(batch, edits.rows[part])
            ids = edited.ids.clone()
            row, offset = (edits.new_ids[part] >= 0).nonzero(as_tuple=True)
            ids[row, columns[part][row] + offset] = edits.new_ids[part][row, offset]
            with torch.no_grad():
                changed = self.caller.rows(edited, ids)
            yield part, changed

    def differentiable(self, batch: Batch, clean: Clean | None, noise: Tensor | None) -> tuple[Outcome, Leaf]:
        columns = batch.columns.clamp(max=batch.ids.shape[1] - 1)
        starts = torch.arange(batch.size, device=columns.device) * batch.ids.shape[1]
        places = starts[:, None] + columns
        with self.caller.leaf(places[batch.reasoning], noise) as embeddings:
            outcome = self.caller.rows(batch, batch.ids)
        return outcome, Leaf(embeddings[0], places)


class PackedRows:
    """All rows, without padding, one after the other in a single row (see `packing`).

    Equal prompts are run once. Edits run the part of a row that they can move, on top of the clean keys and values;
    gradients flow through completions alone, on top of the prompts' keys and values.
    """

    def __init__(self, caller: Caller, ranks: Ranks) -> None:
        self.caller = caller
        self.ranks = ranks

    def size(self, plans: Sequence[RowPlan]) -> int:
        return sum(len(plan.ids) for plan in plans)

    def clean(self, batch: Batch) -> Clean:
        prompts, completions = row_segments(batch)
        return self._clean(batch, prompts, completions)

    def kept(self, batch: Batch, influence: bool) -> Clean:
        prompts, completions = row_segments(batch, keep=True, influence=influence)
        return self._clean(batch, prompts, completions)

    def changed(
        self, batch: Batch, edits: Edits, m: int, budget: Budget
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        clean = self.kept(batch, m > 0)
        own = clean.completions
        edited = sparse_edits(batch, edits, own, m) if m else exact_edits(edits, own)
        limit = budget.reads(batch.read_mask.shape[1], self.caller.vocabulary)
        for part, segments in self._runs(clean, edits, edited, replace(budget, rows=limit)):
            rows = edits.rows[part]
            with torch.no_grad():
                changed = self._read(batch, rows, segments)
            yield part, clean.outcome.select(rows), changed

    def predictions(
        self, batch: Batch, clean: Clean, edits: Edits, anew: Tensor | None, budget: Budget
    ) -> Iterator[Predictions]:
        own = clean.completions
        edited = exact_edits(edits, own) if anew is None else scattered_edits(batch, edits, own, anew)
        # Nearly every token that is run is read, too.
        readable = max(1, budget.logits // self.caller.vocabulary)
        first_read = batch.read_from - batch.mask.long().argmax(dim=1) if batch.size else batch.rows
        width = batch.read_mask.shape[1]
        within = replace(budget, tokens=min(budget.tokens, readable))
        for part, segments in self._runs(clean, edits, edited, within):
            places = torch.repeat_interleave(
                torch.arange(len(segments), device=part.device),
                _whole_numbers([segment.size for segment in segments], part.device),
            )
            rows = edits.rows[part][places]
            columns = torch.cat([segment.positions for segment in segments]) - first_read[rows]
            read = (columns >= 0) & (columns < width)
            read = read & batch.read_mask[rows, columns.clamp(0, width - 1)]
            with torch.no_grad():
                logits = self.caller.packed(segments, read.nonzero().squeeze(1))
            yield Predictions(part, places[read], columns[read], logits)

    def _runs(
        self, clean: Clean, edits: Edits, segments: list[Segment], budget: Budget
    ) -> Iterator[tuple[Tensor, list[Segment]]]:
        """Which edits (n,) a pass runs and their segments, in parts within the budget."""
        # Suffixes of equal shape share one attention call, so they go into the same pass.
        row_of = edits.rows.tolist()
        order = sorted(range(len(segments)), key=lambda n: shape(segments[n], row_of[n]))
        # Kept keys and values take their part of the budget, so that longer rows don't take more memory.
        kept = sum(segment.size for segment in [*distinct(clean.prompts), *clean.completions])
        tokens = max(budget.tokens - kept, budget.tokens // 2)
        for run in self.ranks.in_step(parts([segments[n].size for n in order], tokens, budget.rows)):
            if run is None:
                self.caller.empty()
                continue
            chosen = [order[place] for place in run]
            yield torch.tensor(chosen, device=edits.rows.device), [segments[n] for n in chosen]

    def differentiable(self, batch: Batch, clean: Clean | None, noise: Tensor | None) -> tuple[Outcome, Leaf]:
        if clean is None:
            prompts, completions = row_segments(batch)
            with torch.no_grad():
                self.caller.packed(
                    distinct(prompts),
                    torch.zeros(1, dtype=torch.long, device=batch.ids.device),
                )
        else:
            prompts = clean.prompts
            completions = [replace(segment, keep=False) for segment in clean.completions]
        sizes = _whole_numbers([0] + [segment.size for segment in completions], batch.ids.device)
        starts = sizes.cumsum(0)[:-1]
        places = starts[:, None] + torch.arange(batch.columns.shape[1], device=starts.device)
        places = places.clamp(max=max(int(sizes.sum()) - 1, 0))
        everything = torch.arange(batch.size, device=starts.device)
        with self.caller.leaf(places[batch.reasoning], noise) as embeddings:
            outcome = self._read(batch, everything, completions)
        return outcome, Leaf(embeddings[0], places)

    def watched(self, batch: Batch, function: Callable[[int, int, Tensor, Tensor], None]) -> None:
        """As `Policy.watch`."""
        prompts, completions = row_segments(batch)
        for row, segment in enumerate(completions):
            segment.watch = partial(function, row)
        self._clean(batch, prompts, completions)

    def _clean(self, batch: Batch, prompts: list[Segment], completions: list[Segment]) -> Clean:
        """One pass over prompts and completions; positions read may lie in either."""
        run = [*distinct(prompts), *distinct(completions)]
        begins, place = {}, 0
        for segment in run:
            begins[id(segment)] = place
            place += segment.size
        device = batch.ids.device
        prompt_begins = _whole_numbers([begins.get(id(segment), 0) for segment in prompts], device)
        sizes = _whole_numbers([segment.size for segment in prompts], device)
        own_begins = _whole_numbers([begins.get(id(segment), 0) for segment in completions], device)
        first = batch.read_from - batch.mask.long().argmax(dim=1) if batch.size else sizes
        reads = first[:, None] + torch.arange(batch.read_mask.shape[1], device=device)
        inside = reads < sizes[:, None]
        reads = torch.where(
            inside,
            prompt_begins[:, None] + reads,
            own_begins[:, None] + reads - sizes[:, None],
        )
        with torch.no_grad():
            found = self.caller.packed(run, reads[batch.read_mask])
        return Clean(_outcome(found, batch.read_mask, batch.targets), prompts, completions)

    def _read(self, batch: Batch, rows: Tensor, segments: Sequence[Segment]) -> Outcome:
        """One pass; the outcome of each segment, whose last token is the last that its row reads."""
        mask, targets = batch.read_mask[rows], batch.targets[rows]
        sizes = _whole_numbers([segment.size for segment in segments], mask.device)
        last_read = (mask * torch.arange(mask.shape[1], device=mask.device)).amax(1)
        reads = (sizes.cumsum(0) - 1 - last_read)[:, None] + torch.arange(mask.shape[1], device=mask.device)
        return _outcome(self.caller.packed(segments, reads[mask]), mask, targets)


def _whole_numbers(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)


def _outcome(found: Tensor, mask: Tensor, targets: Tensor) -> Outcome:
    """Logits (reads, V) in the rows and columns that were read."""
    if mask.all():
        return Outcome(found.view(*mask.shape, found.shape[-1]), mask, targets)
    logits = found.new_zeros(*mask.shape, found.shape[-1])
    logits[mask] = found
    return Outcome(logits, mask, targets)


def row_segments(
    batch: Batch, keep: bool = False, influence: bool = False
) -> tuple[list[Segment], list[Segment]]:
    """The prompt and the completion of each row; rows with equal prompts share theirs, which keep keys and values."""
    prompts: dict[tuple[int, ...], Segment] = {}
    of_rows, completions = [], []
    starts = batch.mask.long().argmax(dim=1).tolist() if batch.size else []
    for row, start in enumerate(starts):
        ids = batch.ids[row][batch.mask[row]]
        size = int(batch.columns[row, 0]) - start
        prompt = prompts.setdefault(tuple(ids[:size].tolist()), Segment(ids[:size], keep=True))
        own = ids[size:]
        noted = torch.zeros(own.numel(), own.numel(), device=own.device) if influence else None
        of_rows.append(prompt)
        completions.append(Segment(own, size, prefix=prompt if size else None, keep=keep, influence=noted))
    return of_rows, completions


def distinct(segments: Sequence[Segment]) -> list[Segment]:
    """Each segment once, without empty ones: attention takes none, and nothing reads them."""
    return list({id(segment): segment for segment in segments if segment.size}.values())
