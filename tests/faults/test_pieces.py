"""A model in pieces over two ranks (FSDP2): what is saved in the end is a plain model, a stopped run goes on, and
pieces that wait on the CPU are no hindrance."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_helpers import STEPS, left
from test_signals import on_rank
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from models import llama, ragged
from processes import run_ranks
from test_ranks import SHARES, credit
from test_trainer_ranks import use_fsdp
from tokencredit.calling import Caller
from tokencredit.checkpoints import numbered


def in_pieces(rank: int, folder: Path, arguments: tuple[Any, ...], then: tuple[Any, ...] | None) -> None:
    """The command; what its weights are when they are to be saved goes beside the run."""
    from tokencredit.cli import run_directory

    use_fsdp()
    save = run_directory.save_model

    def noted(trainer: Any, directory: Path) -> None:
        assert all(isinstance(p, DTensor) for p in trainer.model.parameters())
        whole = {name: p.detach().full_tensor() for name, p in trainer.model.named_parameters()}
        torch.save(whole, folder / f"weights{rank}.pt")
        save(trainer, directory)

    run_directory.save_model = noted
    on_rank(rank, folder, arguments, then)


@pytest.mark.slow
def test_the_model_is_put_together(given, tmp_path):
    flags = (*given, "--max_steps", 2, "--per_device_train_batch_size", 6)
    assert run_ranks(in_pieces, 2, tmp_path, flags, None) == [0, 0]
    trained = torch.load(tmp_path / "weights0.pt")
    start = AutoModelForCausalLM.from_pretrained(given[given.index("--model_name_or_path") + 1]).state_dict()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run").state_dict()
    for name, values in trained.items():
        assert torch.equal(saved[name], values), name
    assert any(not torch.equal(start[name], values) for name, values in trained.items())


@pytest.mark.slow
def test_a_stopped_run_goes_on(given, tmp_path):
    flags = (*given, *STEPS, "--per_device_train_batch_size", 6)
    whole, run = tmp_path / "whole", tmp_path / "stopped"
    assert run_ranks(in_pieces, 2, whole, flags, None) == [0, 0]
    assert run_ranks(in_pieces, 2, run, flags, (3, signal.SIGTERM, 1)) == [130, 130]
    assert sorted(step for step, _ in numbered(run / "run")) == [2, 3]
    (run / "meet").unlink()
    assert run_ranks(in_pieces, 2, run, (*flags, "--resume"), None) == [0, 0]
    assert left(run / "run") == left(whole / "run")


def offloaded(rank: int, folder: Path) -> None:
    """The same credit as the whole model's, and the device of the mesh where the pieces lie elsewhere."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    mesh = init_device_mesh("cpu", (2,))
    whole, model = llama(), llama()
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    rollouts = ragged().select(torch.tensor(SHARES[0][rank]))
    found = [
        (credit(model, rollouts, name, {}, None), credit(whole, rollouts, name, {}, False))
        for name in ("oar-p", "oar-g")
    ]
    computes_on_cpu = Caller(model).device
    mesh._device_type = "cuda"  # as it is where they are offloaded from a GPU
    torch.save((found, computes_on_cpu.type, Caller(model).device.type), folder / f"{rank}.pt")


def test_pieces_that_wait_on_the_cpu(tmp_path):
    for found, device, elsewhere in run_ranks(offloaded, 2, tmp_path):
        for pieces, whole in found:
            torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-12)
        assert (device, elsewhere) == ("cpu", "cuda")
