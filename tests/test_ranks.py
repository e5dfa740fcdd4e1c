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


def credit(model, rollouts: Rollouts, name: str, options: dict, in_step: bool):
    policy = Policy(model, token_budget=64, in_step=in_step)
    found = assign(STRATEGIES[name], policy, rollouts, Options(pad_token_id=2, **options))
    return found.importance, found.weights, found.bonus


def passes_of_rank(rank: int, folder: str, make) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
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


def test_some_settings_run_passes_at_all(tmp_path):
    """Against a test that compares nothing with nothing."""
    model, calls = llama(), []
    model.register_forward_pre_hook(lambda _module, _args: calls.append(1))
    credit(model, ragged(), "oar-p", {}, in_step=False)
    assert len(calls) > 3
