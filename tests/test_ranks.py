"""Ranks with unequal work run equal numbers of passes, and each gets what one process gets."""

from __future__ import annotations

import os

import pytest
import torch
import torch.multiprocessing as mp

from models import bart, llama, ragged
from tokencredit import Options
from tokencredit.credit import STRATEGIES, assign
from tokencredit.policy import Policy
from tokencredit.rollouts import Rollouts

SETTINGS = [
    ("oar-p", {}),
    ("oar-p", {"m": 2, "counterfactual": "alternative"}),
    ("oar-g", {"draws": 2}),
    ("oar-g", {"gradient": "labels", "labels": 2}),
    ("entropy", {}),
    ("inverted", {}),
    ("bias", {}),
]
# Rows of each rank: several against one, all against none, zero advantage (the last row) against all others.
SHARES = [([0, 1, 2, 5], [3]), ([0, 1, 2, 3], []), ([6], [0, 2, 5])]


def credit(model, rollouts: Rollouts, name: str, options: dict, in_step: bool, budget: int = 64):
    policy = Policy(model, token_budget=budget, in_step=in_step)
    found = assign(STRATEGIES[name], policy, rollouts, Options(pad_token_id=2, **options))
    return found.importance, found.weights, found.bonus


def join(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)


def passes_of_rank(rank: int, folder: str, make) -> None:
    join(rank, folder)
    model, calls = make(), []
    model.register_forward_pre_hook(lambda _module, _args: calls.append(torch.is_grad_enabled()))
    results = []
    for name, options in SETTINGS:
        for shares in SHARES:
            calls.clear()
            rollouts = ragged().select(torch.tensor(shares[rank], dtype=torch.long))
            results.append((credit(model, rollouts, name, options, in_step=True), tuple(calls)))
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("make", [llama, bart])
def test_equal_passes_and_the_same_credit(make, tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(passes_of_rank, (str(tmp_path), make), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    model = make()
    settings = [(name, options, shares) for name, options in SETTINGS for shares in SHARES]
    for (name, options, shares), one, other in zip(settings, first, second, strict=True):
        assert one[1] == other[1], f"{name}: the ranks' passes differ"
        for share, (found, _) in zip(shares, (one, other), strict=True):
            rollouts = ragged().select(torch.tensor(share, dtype=torch.long))
            expected = credit(model, rollouts, name, options, in_step=False)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def goes_on_with_less(rank: int, folder: str) -> None:
    """The first rank's passes of more than 70 tokens fail."""
    join(rank, folder)
    model, calls = llama(), []

    def limit(_module, _args, inputs) -> None:
        calls.append(inputs["input_ids"].numel())
        if rank == 0 and calls[-1] > 70:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    results = []
    for name, options in SETTINGS[:4]:
        rollouts = ragged().select(torch.tensor([0, 1, 2, 5] * 3 if rank == 0 else [0]))
        expected = credit(model, rollouts, name, options, in_step=False)
        handle = model.register_forward_pre_hook(limit, with_kwargs=True)
        found = credit(model, rollouts, name, options, in_step=True, budget=300)
        handle.remove()
        results.append((found, expected))
    torch.save((results, max(calls)), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_a_rank_that_runs_out_of_memory_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(goes_on_with_less, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        results, largest = torch.load(tmp_path / f"{rank}.pt")
        assert largest > 70 or rank == 1
        for found, expected in results:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def shards(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join(rank, folder)
    mesh = init_device_mesh("cpu", (2,))
    results = []
    for tied in (False, True):
        whole, sharded = llama(), llama()
        for model in (whole, sharded):
            if tied:
                model.lm_head.weight = model.model.embed_tokens.weight
        for layer in sharded.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        for name, options in SETTINGS:
            rollouts = ragged().select(torch.tensor(SHARES[0][rank]))
            results.append(
                [
                    credit(model, rollouts, name, options, in_step=model is sharded)
                    for model in (sharded, whole)
                ]
            )
        ids = torch.arange(16).view(2, 8)
        losses = [model(input_ids=ids, labels=ids).loss for model in (sharded, whole)]
        losses[0].backward()
        assert all(parameter.grad is not None for parameter in sharded.parameters())
        results.append([(loss.detach(),) for loss in losses])
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_a_model_in_shards_gives_the_same_credit(tmp_path, monkeypatch):
    """FSDP2 with one block a unit; a training step afterwards finds nothing amiss."""
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(shards, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        for found, expected in torch.load(tmp_path / f"{rank}.pt"):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_some_settings_run_passes_at_all(tmp_path):
    """Against a test that compares nothing with nothing."""
    model, calls = llama(), []
    model.register_forward_pre_hook(lambda _module, _args: calls.append(1))
    credit(model, ragged(), "oar-p", {}, in_step=False)
    assert len(calls) > 3
