"""What to change where a step doesn't fit: flags and the values that make it fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tokencredit.memory import LEAST_TOKENS
from tokencredit.plan.attribution import GRADIENT
from tokencredit.plan.settings import Settings
from tokencredit.plan.step import Plan, plan_step

MOST_CHANGES = 40  # of one flag at a time, a flag may change several times
COUPLED = {"gpus", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"}
"""Flags that change together, so that as many completions are generated."""


def advise(plan: Plan) -> tuple[dict[str, Any], Plan]:
    """The fewest changes found that make the plan fit, by their flags, and the plan with them.

    One change is made at a time: the first of `_changes` after which all fits, else the one that helps most. Nothing
    is changed where all fits; where nothing helps any more the plan that comes out doesn't fit either.
    """
    best = plan
    for _ in range(MOST_CHANGES):
        if best.fits:
            break
        tried = [_changed(best, change) for change in _changes(best)]
        fitting = next((each for each in tried if each.fits), None)
        better = min(tried, key=lambda each: each.excess, default=best)
        if fitting is None and better.excess >= best.excess:
            break
        best = fitting or better
    changes = _differences(plan, best)
    if best.fits:
        for name in sorted(changes.keys() - COUPLED):  # what a later change has made needless
            without = _changed(best, {name: getattr(plan.settings, name)})
            best = without if without.fits else best
        changes = _differences(plan, best)
    return changes, best


def _differences(before: Plan, after: Plan) -> dict[str, Any]:
    old = dataclasses.asdict(before.settings)
    return {name: value for name, value in dataclasses.asdict(after.settings).items() if value != old[name]}


def _changed(plan: Plan, change: dict[str, Any]) -> Plan:
    return plan_step(plan.shape, dataclasses.replace(plan.settings, **change), plan.machine)


def _changes(plan: Plan) -> Iterator[dict[str, Any]]:
    """Single changes, those that cost least first: none alters what is learned but the last three."""
    settings = plan.settings
    if settings.use_vllm and settings.vllm_mode == "colocate":
        yield from _vllm_changes(plan)
    if not settings.gradient_checkpointing:
        yield {"gradient_checkpointing": True}
    if settings.gpus > 1 and settings.sharding == "ddp":
        yield {"sharding": "zero2"}
    if settings.gpus > 1 and settings.sharding in ("ddp", "zero2"):
        yield {"sharding": "fsdp"}
    if plan.budget > LEAST_TOKENS:
        yield {"credit_token_budget": max(LEAST_TOKENS, plan.budget // 2)}
    yield from _smaller_batch(settings)
    yield from _more_devices(settings)
    if settings.dtype == "float32" and not settings.use_cpu:
        yield {"dtype": "bfloat16"}
    if not settings.use_peft:
        yield {"use_peft": True}
    if settings.credit in GRADIENT and plan.part("attribution") in plan.too_large:
        # Its graph holds a whole row, however small the budget; replacing tokens needs no graph.
        yield {"credit": "oar-p", "credit_m": 8}


def _smaller_batch(settings: Settings) -> Iterator[dict[str, Any]]:
    """Half as many rows at a time, twice as often."""
    rows = settings.per_device_train_batch_size
    if rows % 2:
        return
    change = {
        "per_device_train_batch_size": rows // 2,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps * 2,
    }
    if settings.steps_per_generation is not None:
        change["steps_per_generation"] = settings.steps_per_generation * 2
    yield change


def _more_devices(settings: Settings) -> Iterator[dict[str, Any]]:
    """Twice as many, each with half as many batches, or with half as many rows in a batch."""
    batches, rows = settings.gradient_accumulation_steps, settings.per_device_train_batch_size
    if settings.steps_per_generation is not None:
        return
    if batches % 2 == 0:
        yield {"gpus": settings.gpus * 2, "gradient_accumulation_steps": batches // 2}
    elif rows % 2 == 0:
        yield {"gpus": settings.gpus * 2, "per_device_train_batch_size": rows // 2}


def _vllm_changes(plan: Plan) -> Iterator[dict[str, Any]]:
    settings = plan.settings
    if plan.sampler_lacks:
        needed = settings.vllm_gpu_memory_utilization + plan.sampler_lacks / plan.machine.memory
        share = math.ceil(needed * 20) / 20
        if share <= 0.9:
            yield {"vllm_gpu_memory_utilization": share}
        if settings.gpus % (settings.vllm_tensor_parallel_size * 2) == 0:
            yield {"vllm_tensor_parallel_size": settings.vllm_tensor_parallel_size * 2}
    if not settings.vllm_enable_sleep_mode:
        yield {"vllm_enable_sleep_mode": True}
