"""Random numbers that depend on what they are for, and on nothing else."""

from __future__ import annotations

import hashlib

import torch


def keyed_generator(seed: int, step: int, draw: int, row: int) -> torch.Generator:
    """A CPU generator for one row's draw in one generation step.

    The same key gives the same numbers whatever the batch, the device or the global random state.
    """
    key = hashlib.blake2b(f"{seed},{step},{draw},{row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
