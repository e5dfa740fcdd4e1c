"""Reasoning steps: where they end, how alike two are, and which step of one completion corresponds to which of another.

Steps are those of `Rollouts.steps`; places are counted in completion tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


@dataclass(frozen=True)
class Steps:
    """The n steps of a completion: the place after each, ascending, and the tokens of each with their number."""

    ends: list[int]
    bags: list[Counter[int]]

    @property
    def bag(self) -> Counter[int]:
        """The tokens of all steps with their number."""
        found: Counter[int] = Counter()
        for bag in self.bags:
            found.update(bag)
        return found


def steps_of(rollouts: Rollouts, row: int) -> Steps:
    """The steps of a row. Tokens between two steps belong to the later one."""
    assert rollouts.steps is not None
    ids, numbers = rollouts.completion_ids[row].tolist(), rollouts.steps[row].tolist()
    ends = {number: place + 1 for place, number in enumerate(numbers) if number >= 0}
    places = sorted(ends.values())
    bags = [Counter(ids[start:end]) for start, end in zip([0, *places], places, strict=False)]
    return Steps(places, bags)


def thinned(count: int, most: int) -> list[int]:
    """Which of `count` steps keep their end where neighbours are put together to leave `most`; the last does."""
    left = min(count, most)
    return [count * (place + 1) // left - 1 for place in range(left)]


def ends_of(rollouts: Rollouts, row: int, most: int) -> list[int]:
    """The places after a row's steps, ascending; of more than `most` steps neighbours count as one."""
    own = steps_of(rollouts, row).ends
    return [own[step] for step in thinned(len(own), most)]


def similarity(one: Counter[int], other: Counter[int]) -> float:
    """Dice's coefficient of two bags of tokens: twice what they share over what both have, in [0, 1]."""
    shared = sum(min(number, other[token]) for token, number in one.items() if token in other)
    both = one.total() + other.total()
    return 2 * shared / both if both else 0.0


def aligned(steps: Sequence[Counter[int]], others: Sequence[Counter[int]]) -> list[int]:
    """After each of the n steps, how many of the other completion's steps have been said in the same order, (n,).

    The alignment is that of the largest summed similarity. A step without a counterpart says nothing of the other's.
    """
    alike = [[similarity(one, other) for other in others] for one in steps]
    best = [[0.0] * (len(others) + 1) for _ in range(len(steps) + 1)]
    for i, row in enumerate(alike):
        for j, value in enumerate(row):
            best[i + 1][j + 1] = max(best[i][j] + value, best[i][j + 1], best[i + 1][j])
    said = [0] * len(steps)
    i, j = len(steps), len(others)
    while i and j:
        if best[i][j] == best[i - 1][j - 1] + alike[i - 1][j - 1]:
            said[i - 1] = j
            i, j = i - 1, j - 1
        elif best[i][j] == best[i - 1][j]:
            i -= 1
        else:
            j -= 1
    for i in range(1, len(said)):
        said[i] = max(said[i], said[i - 1])
    return said


def on_tokens(rollouts: Rollouts, values: Mapping[int, Tensor], ends: Mapping[int, Sequence[int]]) -> Tensor:
    """(B, T) float64: values (n,) of some rows, each on the reasoning tokens up to its end; 0 after the last end."""
    found = torch.zeros(rollouts.shape, dtype=torch.float64)
    for row, own in values.items():
        start = 0
        for value, end in zip(own.tolist(), ends[row], strict=True):
            found[row, start:end] = value
            start = end
    return found.to(rollouts.completion_ids.device) * rollouts.reasoning_mask


def root_mean_square(policy: Policy, rollouts: Rollouts, values: list[Tensor]) -> float:
    """Over all values that are finite, of all ranks; 1 without any but zeros."""
    every = torch.cat(values) if values else torch.zeros(0, dtype=torch.float64)
    every = every[every.isfinite()]
    sums = torch.stack([every.square().sum(), torch.tensor(float(every.numel()), dtype=torch.float64)])
    squares, count = policy.total(sums.to(rollouts.completion_ids.device)).tolist()
    return (squares / count) ** 0.5 if squares else 1.0
