"""Rows of rollouts laid out for a forward pass: which ids, where they stand, and which positions are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokencredit.errors import UsageError
from tokencredit.rollouts import Rollouts


@dataclass(frozen=True)
class Batch:
    """Some rows of the rollouts, laid out for the model.

    Attributes:
        rows: (b,) which rows of the rollouts.
        ids, mask, positions: (b, L) token ids, real tokens, and position ids counted from each row's first token.
        columns: (b, T) the column that holds completion token t; meaningless for tokens that were left out.
        reasoning: (b, T) bool, the tokens to attribute to.
        read_from, read_mask, targets: first column that is read, (b, K) which of the K columns from there count,
            (b, K) the token that follows each, -1 for none.
    """

    rows: Tensor
    ids: Tensor
    mask: Tensor
    positions: Tensor
    columns: Tensor
    reasoning: Tensor
    read_from: int
    read_mask: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True)
class RowPlan:
    """One row as lists: its ids, where the completion starts among them, and which positions are read."""

    ids: list[int]
    completion_start: int
    reads: list[int]
    targets: list[int]


def first_read_row(rollouts: Rollouts, row: int) -> RowPlan:
    """As `outcome_row`, but only the position that predicts the answer's first token is read."""
    plan = outcome_row(rollouts, row)
    first = plan.reads[0]
    return RowPlan(plan.ids[: first + 1], plan.completion_start, [first], plan.targets[:1])


def outcome_row(rollouts: Rollouts, row: int) -> RowPlan:
    """Prompt, reasoning, probe if any, answer if any: up to the last position that is read, nothing after it."""
    prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
    completion = rollouts.completion_ids[row].tolist()
    answer = rollouts.answer_mask[row].nonzero().squeeze(1).tolist()
    probe: list[int] = []
    if rollouts.probe_mask is not None and rollouts.probe_ids is not None:
        probe = rollouts.probe_ids[row][rollouts.probe_mask[row]].tolist()
    if probe:
        end = int(rollouts.reasoning_mask[row].nonzero().max()) + 1
        ids = prompt + completion[:end] + probe
        first = len(ids)
        ids += [completion[token] for token in answer]
        reads = list(range(first - 1, first - 1 + max(1, len(answer))))
        targets = [completion[token] for token in answer] or [-1]
    else:
        ids = prompt + completion
        reads = [len(prompt) + token - 1 for token in answer]
        targets = [completion[token] for token in answer]
    return RowPlan(ids[: reads[-1] + 1], len(prompt), reads, targets)


def reasoning_row(rollouts: Rollouts, row: int) -> RowPlan:
    """As `outcome_row`, but the positions that predict reasoning tokens are read as well."""
    plan = outcome_row(rollouts, row)
    read = dict(zip(plan.reads, plan.targets, strict=True))
    for token in rollouts.reasoning_mask[row].nonzero().squeeze(1).tolist():
        read.setdefault(plan.completion_start + token - 1, int(rollouts.completion_ids[row, token]))
    reads = sorted(position for position in read if position < len(plan.ids))
    return RowPlan(plan.ids, plan.completion_start, reads, [read[position] for position in reads])


def completion_row(rollouts: Rollouts, row: int) -> RowPlan:
    """Prompt and completion, read wherever a completion token is predicted."""
    prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
    tokens = rollouts.completion_mask[row].nonzero().squeeze(1).tolist()
    ids = prompt + rollouts.completion_ids[row].tolist()
    reads = [len(prompt) + token - 1 for token in tokens]
    targets = [ids[len(prompt) + token] for token in tokens]
    return RowPlan(ids[: reads[-1] + 1], len(prompt), reads, targets)


def align(rollouts: Rollouts, rows: list[int], built: list[RowPlan]) -> Batch:
    """Pads so that the first position read is in the same column of every row."""
    device = rollouts.completion_ids.device
    count, length = rollouts.shape[1], len(built)
    before = max(row.reads[0] for row in built)
    width = max(row.reads[-1] - row.reads[0] + 1 for row in built)
    if min(row.reads[0] for row in built) < 0:
        raise UsageError("a row has an empty prompt, so nothing predicts its first token")
    ids = torch.zeros(length, before + width, dtype=torch.long)
    mask = torch.zeros(length, before + width, dtype=torch.bool)
    columns = torch.zeros(length, count, dtype=torch.long)
    read_mask = torch.zeros(length, width, dtype=torch.bool)
    targets = torch.full((length, width), -1, dtype=torch.long)
    for index, row in enumerate(built):
        shift = before - row.reads[0]
        ids[index, shift : shift + len(row.ids)] = torch.tensor(row.ids)
        mask[index, shift : shift + len(row.ids)] = True
        columns[index] = shift + row.completion_start + torch.arange(count)
        offsets = torch.tensor(row.reads) - row.reads[0]
        read_mask[index, offsets] = True
        targets[index, offsets] = torch.tensor(row.targets)
    chosen = torch.tensor(rows, device=device)
    return Batch(
        rows=chosen,
        ids=ids.to(device),
        mask=mask.to(device),
        positions=(mask.long().cumsum(1) - 1).clamp(min=0).to(device),
        columns=columns.to(device),
        reasoning=rollouts.reasoning_mask[chosen],
        read_from=before,
        read_mask=read_mask.to(device),
        targets=targets.to(device),
    )


def empty_batch(rollouts: Rollouts) -> Batch:
    """A batch without rows."""
    none = torch.zeros(0, 1, dtype=torch.long, device=rollouts.completion_ids.device)
    columns = none.expand(0, rollouts.shape[1])
    return Batch(none[:, 0], none, none.bool(), none, columns, columns.bool(), 0, none.bool(), none)


def take(batch: Batch, index: Tensor) -> Batch:
    """The batch's rows `index`, repeated as often as they are named."""
    names = ("rows", "ids", "mask", "positions", "columns", "reasoning", "read_mask", "targets")
    return Batch(read_from=batch.read_from, **{name: getattr(batch, name)[index] for name in names})


def unpadded(batch: Batch, row: int) -> Batch:
    """One row of the batch without its padding."""
    filled = batch.mask[row].nonzero().squeeze(1)
    columns = slice(int(filled[0]), int(filled[-1]) + 1)
    reads = slice(0, columns.stop - batch.read_from)
    alone = take(batch, torch.tensor([row], device=batch.ids.device))
    return replace(
        alone,
        ids=alone.ids[:, columns],
        mask=alone.mask[:, columns],
        positions=alone.positions[:, columns],
        columns=alone.columns - columns.start,
        read_from=batch.read_from - columns.start,
        read_mask=alone.read_mask[:, reads],
        targets=alone.targets[:, reads],
    )


def parts(sizes: Sequence[int], budget: int, most: int | None = None) -> list[list[int]]:
    """Indices in order, cut into runs whose sizes sum to the budget at most, of `most` members at most.

    A size over the budget is a run of its own.
    """
    runs: list[list[int]] = []
    total = 0
    for index, size in enumerate(sizes):
        if not runs or total + size > budget or len(runs[-1]) == most:
            runs.append([])
            total = 0
        runs[-1].append(index)
        total += size
    return runs
