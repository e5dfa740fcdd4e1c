"""Equal numbers of passes on every rank: a model sharded over ranks runs its passes on all of them, or on none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """The processes that run the same model together.

    Args:
        device: where the flags that they exchange live.
        together: whether they exchange any; without, this process goes its own way.
    """

    def __init__(self, device: torch.device, together: bool = False) -> None:
        self.together = together
        self._device = device

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on some rank."""
        if not self.together:
            return flag
        raised = torch.tensor(int(flag), device=self._device)
        torch.distributed.all_reduce(raised, op=torch.distributed.ReduceOp.MAX)
        return bool(raised)

    def total(self, values: Tensor) -> Tensor:
        """The sum of the ranks' tensors, all of one shape."""
        if self.together:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """The largest of the ranks' tensors, all of one shape, entry by entry."""
        if self.together:
            values = values.clone()
            torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
        return values

    def in_step(self, items: Iterable[T]) -> Iterator[T | None]:
        """The items, then None as long as another rank still has some."""
        iterator = iter(items)
        while True:
            item = next(iterator, None)
            if not self.any(item is not None):
                return
            yield item
