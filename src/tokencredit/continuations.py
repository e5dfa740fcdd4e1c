"""Given texts put after a row's first tokens: the log-probability of each of their tokens, without gradient.

Where rows are packed, a continuation is a segment that reads the clean keys and values of the tokens before it; these
are computed once a row, whatever number of continuations follows them. Else each continuation is a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokencredit.credit.outcome import Outcome
from tokencredit.layout import Batch, RowPlan, parts
from tokencredit.packing import Segment
from tokencredit.passes import Budget, PackedRows, distinct, row_segments
from tokencredit.rollouts import Rollouts


@dataclass(frozen=True)
class Continuations:
    """Texts after the first tokens of completions.

    Attributes:
        rows: (N,) of the rollouts, or of a batch.
        cuts: (N,) how many completion tokens come before.
        ids: (N, L) what comes after them, padded on the right with -1.
    """

    rows: Tensor
    cuts: Tensor
    ids: Tensor

    def select(self, index: Tensor) -> Continuations:
        """Those that the index names."""
        return Continuations(self.rows[index], self.cuts[index], self.ids[index])


def distinct_continuations(rollouts: Rollouts, asked: Continuations) -> tuple[Continuations, Tensor]:
    """Each text after each prefix once, and which of these each one asked for is, (N,)."""
    prompts: dict[int, tuple[int, ...]] = {}
    numbers: dict[tuple[tuple[int, ...], ...], int] = {}
    first: list[int] = []
    which: list[int] = []
    for place, (row, cut, ids) in enumerate(
        zip(asked.rows.tolist(), asked.cuts.tolist(), asked.ids.tolist(), strict=True)
    ):
        if row not in prompts:
            prompts[row] = tuple(rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist())
        key = (prompts[row], tuple(rollouts.completion_ids[row, :cut].tolist()), tuple(ids))
        if key not in numbers:
            numbers[key] = len(first)
            first.append(place)
        which.append(numbers[key])
    device = asked.rows.device
    index = torch.tensor(first, dtype=torch.long, device=device)
    return asked.select(index), torch.tensor(which, dtype=torch.long, device=device)


def whole_row(rollouts: Rollouts, row: int, cuts: list[int], texts: list[list[int]]) -> RowPlan:
    """Prompt, the completion's first cuts[row] tokens and texts[row], read wherever a token of that is predicted."""
    text = [token for token in texts[row] if token >= 0]
    before = clean_row(rollouts, row, cuts)
    first = before.reads[0]
    return RowPlan(
        [*before.ids, *text[:-1]], before.completion_start, list(range(first, first + len(text))), text
    )


def clean_row(rollouts: Rollouts, row: int, cuts: list[int]) -> RowPlan:
    """Prompt and the completion's first cuts[row] tokens; some position has to be read."""
    prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
    ids = [*prompt, *rollouts.completion_ids[row, : cuts[row]].tolist()]
    return RowPlan(ids, len(prompt), [len(ids) - 1], [-1])


def target_logps(outcome: Outcome) -> Tensor:
    """(B, K) float64 log-probability of each target, nats; 0 where nothing is read."""
    targets = outcome.targets.clamp(min=0)[..., None]
    logps = outcome.logits.gather(-1, targets).squeeze(-1) - outcome.logits.logsumexp(-1)
    return torch.where(outcome.mask, logps.double(), 0.0)


def packed_logps(passes: PackedRows, batch: Batch, asked: Continuations, budget: Budget) -> Tensor:
    """(N, L) float64, see `Policy.continued`; `asked.rows` are the batch's."""
    caller, device = passes.caller, batch.ids.device
    prompts, completions = row_segments(batch, keep=True)
    clean = [*distinct(prompts), *distinct(completions)]
    with torch.no_grad():
        caller.packed(clean, torch.zeros(1, dtype=torch.long, device=device))
    sizes = [size - 1 for size in (asked.ids >= 0).sum(1).tolist()]
    segments = heads(asked, sizes, prompts, completions)
    # What reads the same row shares one attention call, so it goes side by side.
    for segment in segments:
        segment.scattered = segment.positions
    rows = asked.rows.tolist()
    order = sorted(range(len(segments)), key=lambda n: (rows[n], segments[n].start))
    kept = sum(segment.size for segment in clean)
    most = max(budget.tokens - kept, budget.tokens // 2)
    most = min(most, max(1, budget.logits // caller.vocabulary))
    found = torch.zeros(asked.ids.shape, dtype=torch.float64, device=device)
    for run in passes.ranks.in_step(parts([segments[n].size for n in order], most, budget.rows)):
        if run is None:
            caller.empty()
            continue
        chosen = [order[place] for place in run]
        part = torch.tensor(chosen, device=device)
        mask = asked.ids[part] >= 0
        reads = torch.arange(int(mask.sum()), device=device)
        with torch.no_grad():
            logits = caller.packed([segments[n] for n in chosen], reads)
        flat = Outcome(logits, torch.ones_like(reads, dtype=torch.bool), asked.ids[part][mask])
        values = torch.zeros(mask.shape, dtype=torch.float64, device=device)
        values[mask] = target_logps(flat)
        found[part] = values
    return found


def heads(
    asked: Continuations,
    sizes: list[int],
    prompts: list[Segment],
    completions: list[Segment],
    keep: bool = False,
) -> list[Segment]:
    """A segment for the first sizes[n] tokens of each text, after the last token before it, so that what this predicts
    is read in the same pass."""
    segments = []
    for row, cut, size, ids in zip(asked.rows.tolist(), asked.cuts.tolist(), sizes, asked.ids, strict=True):
        own = completions[row]
        last = own.ids[cut - 1 : cut] if cut else prompts[row].ids[-1:]
        reads_from = own if own.size else prompts[row]
        segments.append(
            Segment(torch.cat([last, ids[:size]]), prompts[row].size + cut - 1, prefix=reads_from, keep=keep)
        )
    return segments
