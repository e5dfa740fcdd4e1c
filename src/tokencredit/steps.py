"""Where one reasoning step ends and the next begins, in indices of the ids as sampled."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from tokencredit.spans import token_offsets

# A sentence's end or a semicolon before white space, with the line breaks after it; or line breaks.
_END = re.compile(r"[.!?;](?=\s|$)\n*|\n+")
# No step by itself: punctuation, with one number at most, as in "2." before the item of a list.
_NO_STEP = re.compile(r"\W*\d*\W*")


def step_ends(text: str) -> list[int]:
    """Where the steps of a text end, in characters, ascending; what follows the last end is a step too."""
    ends: list[int] = []
    start = 0
    for match in _END.finditer(text):
        if not _NO_STEP.fullmatch(text, start, match.end()):
            ends.append(match.end())
            start = match.end()
    return ends


def step_numbers(
    tokenizer: Any, completion_ids: Tensor, completion_mask: Tensor, reasoning_mask: Tensor
) -> Tensor:
    """(B, T) the step of each reasoning token, counted from 0, -1 elsewhere. A token belongs to the step it begins in.

    Steps end with a sentence, a semicolon or a line.
    """
    steps = torch.full_like(completion_ids, -1)
    for row in range(completion_ids.shape[0]):
        text, offsets = token_offsets(completion_ids[row][completion_mask[row]].tolist(), tokenizer)
        starts = torch.tensor([start for start, _ in offsets], dtype=torch.long)
        found = torch.searchsorted(torch.tensor(step_ends(text), dtype=torch.long), starts, right=True)
        steps[row, : found.numel()] = found.to(steps)
    return torch.where(reasoning_mask, _counted(steps, reasoning_mask), -1)


def _counted(steps: Tensor, mask: Tensor) -> Tensor:
    """The steps renumbered so that those of the masked tokens have no gaps."""
    counted = torch.zeros_like(steps)
    for row, own in enumerate(mask):
        counted[row, own] = torch.unique(steps[row, own], return_inverse=True)[1]
    return counted
