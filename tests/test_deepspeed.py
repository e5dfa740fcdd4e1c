"""ZeRO-2 and ZeRO-3 on two CPU ranks, where DeepSpeed is installed: the same credit, and steps as without."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models import llama, ragged
from processes import run_ranks
from test_ranks import SHARES, credit

SETTINGS = [("oar-p", {}), ("oar-p", {"m": 2}), ("oar-g", {}), ("oar-g", {"gradient": "labels", "labels": 2})]


def engine(model: torch.nn.Module, stage: int) -> Any:
    import deepspeed

    # Its shared-memory collectives would be compiled first; gloo has them all.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def in_stage(rank: int, folder: Path, stage: int) -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    rollouts, ids = ragged().select(torch.tensor(SHARES[0][rank])), torch.arange(16).view(2, 8)
    pairs, losses = [], []
    for attributes in (True, False):
        whole, model = llama(torch.float32), llama(torch.float32)
        running = engine(model, stage)
        losses.append([])
        for step in range(3):
            for name, options in SETTINGS if attributes else ():
                found = credit(model, rollouts, name, options, in_step=True)
                if step == 0:
                    pairs.append((found, credit(whole, rollouts, name, options, in_step=False)))
            loss = running(input_ids=ids, labels=ids).loss
            running.backward(loss)
            running.step()
            losses[-1].append(float(loss))
    torch.save((pairs, losses), folder / f"{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_the_same_credit_and_the_same_steps(stage, tmp_path):
    pytest.importorskip("deepspeed")
    for pairs, (with_credit, without) in run_ranks(in_stage, 2, tmp_path, stage):
        for found, expected in pairs:
            for one, other in zip(found, expected, strict=True):
                largest = other.abs().amax(1, keepdim=True).clamp(min=1e-30)
                assert ((one - other) / largest).abs().max() < 1e-4  # in float32
        assert with_credit == without and with_credit[2] < with_credit[0]
