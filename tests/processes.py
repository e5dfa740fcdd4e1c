"""Ranks for the tests: processes that have torch and the trainer imported, joined by gloo."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# Processes are forked from one that has these imported and has run nothing.
PRELOADED = ["torch", "peft", "torch.distributed.fsdp", "tokencredit.trl", "models"]


def run_ranks(function: Callable[..., None], count: int, folder: Path, *args: Any) -> list[Any]:
    """Runs function(rank, folder, *args) on ranks that know each other, and gives what each of them saved.

    The function saves by `torch.save(..., folder / f"{rank}.pt")`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.set_forkserver_preload(PRELOADED)
    torch.multiprocessing.start_processes(
        _joined, (function, count, folder, args), nprocs=count, start_method="forkserver"
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


def _joined(
    rank: int, function: Callable[..., None], count: int, folder: Path, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # named for accelerate; ranks meet in a file
    }
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=count)
    function(rank, folder, *args)
    torch.distributed.destroy_process_group()
