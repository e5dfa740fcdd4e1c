"""Random numbers that depend on what they are for, and on nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tokencredit.credit.options import Options


def step_uniforms(numbers: Sequence[tuple[int, int]], draws: int, length: int, options: Options) -> Tensor:
    """(N, draws, length) float64 random numbers in [0, 1), of steps named by row key and number."""
    found = torch.empty(len(numbers), draws, length, dtype=torch.float64)
    for place, (key, number) in enumerate(numbers):
        generator = keyed_generator(options.seed, options.step, number, key)
        found[place] = torch.rand(draws, length, generator=generator, dtype=torch.float64)
    return found


def keyed_generator(seed: int, step: int, draw: int, row: int) -> torch.Generator:
    """A CPU generator for one row's draw in one generation step.

    The same key gives the same numbers whatever the batch, the device or the global random state.
    """
    key = hashlib.blake2b(f"{seed},{step},{draw},{row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
