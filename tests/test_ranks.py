"""Ranks with unequal work run equal numbers of passes, and each gets what one process gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from credit.test_strategies import some_family
from families import with_lora
from models import bart, llama, ragged
from processes import run_ranks
from tokencredit import Options
from tokencredit.credit import STRATEGIES, Credit, Strategy, assign
from tokencredit.policy import Policy
from tokencredit.rollouts import Rollouts

SETTINGS = [
    ("oar-p", {}),
    ("oar-p", {"m": 2, "counterfactual": "alternative"}),
    ("oar-g", {"draws": 2}),
    ("oar-g", {"gradient": "labels", "labels": 2}),
    ("entropy", {}),
    ("inverted", {}),
    ("path", {}),
    ("path", {"m": 2}),
    ("bias", {}),
]
# Rows of each rank: several against one, all against none, zero advantage (the last row) against all others.
SHARES = [([0, 1, 2, 5], [3]), ([0, 1, 2, 3], []), ([6], [0, 2, 5])]


def credit(model, rollouts: Rollouts, name: str, options: dict, in_step: bool | None, budget: int = 64):
    policy = Policy(model, token_budget=budget, in_step=in_step)
    found = assign(STRATEGIES[name], policy, rollouts, Options(pad_token_id=2, **options))
    return found.importance, found.weights, found.bonus


def passes_of_rank(rank: int, folder: Path, make) -> None:
    model, calls = make(), []
    model.register_forward_pre_hook(lambda _module, _args: calls.append(torch.is_grad_enabled()))
    results = []
    for name, options in SETTINGS:
        for shares in SHARES:
            calls.clear()
            rollouts = ragged().select(torch.tensor(shares[rank], dtype=torch.long))
            results.append((credit(model, rollouts, name, options, in_step=True), tuple(calls)))
    torch.save(results, folder / f"{rank}.pt")


@pytest.mark.parametrize("make", [llama, bart])
def test_equal_passes_and_the_same_credit(make, tmp_path):
    first, second = run_ranks(passes_of_rank, 2, tmp_path, make)
    model = make()
    settings = [(name, options, shares) for name, options in SETTINGS for shares in SHARES]
    for (name, options, shares), one, other in zip(settings, first, second, strict=True):
        assert one[1] == other[1], f"{name}: the ranks' passes differ"
        for share, (found, _) in zip(shares, (one, other), strict=True):
            rollouts = ragged().select(torch.tensor(share, dtype=torch.long))
            expected = credit(model, rollouts, name, options, in_step=False)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def goes_on_with_less(rank: int, folder: Path) -> None:
    """The first rank's passes of more than 70 tokens fail."""
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
    torch.save((results, max(calls)), folder / f"{rank}.pt")


def test_a_rank_that_runs_out_of_memory_goes_on(tmp_path):
    for rank, (results, largest) in enumerate(run_ranks(goes_on_with_less, 2, tmp_path)):
        assert largest > 70 or rank == 1
        for found, expected in results:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def shards(rank: int, folder: Path) -> None:
    """Every setting on a model in pieces and on the whole one, and a training step of both."""
    mesh = init_device_mesh("cpu", (2,))
    results = []
    for kind in ("plain", "tied", "adapted"):
        whole, sharded = llama(), llama()
        for model in (whole, sharded):
            if kind == "tied":
                model.lm_head.weight = model.model.embed_tokens.weight
        if kind == "adapted":
            whole, sharded = (with_lora(model, lora_dropout=0.0).double() for model in (whole, sharded))
        in_units(sharded, mesh=mesh)
        for name, options in SETTINGS:
            rollouts = ragged().select(torch.tensor(SHARES[0][rank]))
            # A model in pieces is recognised.
            results.append(
                [
                    credit(sharded, rollouts, name, options, None),
                    credit(whole, rollouts, name, options, False),
                ]
            )
        ids = torch.arange(16).view(2, 8)
        losses = [model(input_ids=ids, labels=ids).loss for model in (sharded, whole)]
        for loss in losses:
            loss.backward()
        results.append([(loss.detach(),) for loss in losses])
        trained = [[p.grad for p in model.parameters() if p.requires_grad] for model in (sharded, whole)]
        results.append([[gradient.full_tensor() for gradient in trained[0]], trained[1]])
    torch.save(results, folder / f"{rank}.pt")


def half_precision(rank: int, folder: Path) -> None:
    """Mixed precision as accelerate sets it, which rounds what each unit gives."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    whole, sharded = llama(torch.float32), llama(torch.float32)
    for parameter in whole.parameters():  # but no buffer
        parameter.data = parameter.data.bfloat16()
    in_units(sharded, mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
    rollouts = ragged().select(torch.tensor(SHARES[0][rank]))
    results = []
    for strategy in ("oar-p", "oar-g", "entropy"):
        policies = [Policy(sharded, half_precision=True), Policy(whole)]
        found = [
            assign(STRATEGIES[strategy], policy, rollouts, Options(pad_token_id=2)) for policy in policies
        ]
        results.append([credit.importance for credit in found])
    torch.save(results, folder / f"{rank}.pt")


def in_units(model, **settings) -> None:
    """FSDP2 with one block a unit, and embedding, last norm and head as accelerate groups them."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in base.model.layers:
        fully_shard(layer, **settings)
    tied = base.lm_head.weight is base.model.embed_tokens.weight
    if not tied:
        fully_shard(base.model.embed_tokens, **settings)
    last = [base.model.norm, *([base.model.embed_tokens] if tied else []), base.lm_head]
    fully_shard(last, reshard_after_forward=False, **settings)
    fully_shard(model, **settings)


def test_a_model_in_shards_gives_the_same_credit(tmp_path):
    """A training step afterwards finds nothing amiss."""
    for results in run_ranks(shards, 2, tmp_path):
        for found, expected in results:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_mixed_precision_keeps_float32_logits(tmp_path):
    for results in run_ranks(half_precision, 2, tmp_path):
        for found, expected in results:
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


RISING = Strategy(
    lambda policy, rollouts, options: Credit(
        bonus=rollouts.reasoning_mask * (rollouts.row_keys[:, None] + rollouts.reasoning_mask.cumsum(1))
    ),
    "more for later tokens and for later rows",
    additive=True,
)


def centred(rank: int, folder: Path, shares: tuple[list[int], list[int]]) -> None:
    rollouts = ragged().select(torch.tensor(shares[rank], dtype=torch.long))
    torch.save(
        assign(RISING, Policy(llama(), in_step=True), rollouts, Options()).bonus, folder / f"{rank}.pt"
    )


@pytest.mark.parametrize("shares", [([0, 1, 2, 3], [4, 5, 6]), ([4], [0, 1, 2, 3, 5, 6])])
def test_a_bonus_is_centred_over_all_ranks(shares, tmp_path):
    """A rank may have no reasoning token at all."""
    found = run_ranks(centred, 2, tmp_path, shares)
    expected = assign(RISING, Policy(llama()), ragged(), Options()).bonus
    assert expected.abs().max() > 1 and abs(expected.sum()) < 1e-9
    for share, bonus in zip(shares, found, strict=True):
        torch.testing.assert_close(bonus, expected[share], rtol=1e-12, atol=1e-12)


FAMILIES = [([0, 1, 2, 3], [4, 5, 6, 7, 8]), ([0, 1, 2, 3, 4, 5, 6], [7, 8]), ([], list(range(9)))]


def families(rank: int, folder: Path, make) -> None:
    model, calls, results = make(), [], []
    model.register_forward_pre_hook(lambda _module, _args: calls.append(1))
    for name in ("sibling", "early-answer"):
        for shares in FAMILIES:
            calls.clear()
            rollouts = some_family(name).select(torch.tensor(shares[rank], dtype=torch.long))
            results.append((credit(model, rollouts, name, {}, in_step=True)[2], len(calls)))
    torch.save(results, folder / f"{rank}.pt")


@pytest.mark.parametrize("make", [llama, bart])
def test_groups_on_several_ranks(make, tmp_path):
    """What is measured over the batch is measured over all ranks, and a rank may have no group of its own."""
    first, second = run_ranks(families, 2, tmp_path, make)
    settings = [(name, shares) for name in ("sibling", "early-answer") for shares in FAMILIES]
    for (name, shares), one, other in zip(settings, first, second, strict=True):
        assert one[1] == other[1] > 0, f"{name}: the ranks' passes differ"
        expected = credit(make(), some_family(name), name, {}, in_step=False)[2]
        assert expected.abs().max() > 0.1
        for share, (found, _) in zip(shares, (one, other), strict=True):
            torch.testing.assert_close(found, expected[share], rtol=1e-9, atol=1e-12)


def test_some_settings_run_passes_at_all(tmp_path):
    """Against a test that compares nothing with nothing."""
    model, calls = llama(), []
    model.register_forward_pre_hook(lambda _module, _args: calls.append(1))
    credit(model, ragged(), "oar-p", {}, in_step=False)
    assert len(calls) > 3
