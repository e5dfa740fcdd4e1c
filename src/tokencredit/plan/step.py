"""The plan of a step: a generation and all training on it, on one device of several that do the same."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from tokencredit.plan.attribution import attribution_work, found_budget, in_loss
from tokencredit.plan.memory import (
    Held,
    attribution_bytes,
    generation_bytes,
    held,
    log_prob_bytes,
    sampler_lacks,
    training_bytes,
)
from tokencredit.plan.settings import Machine, Settings
from tokencredit.plan.shape import ModelShape
from tokencredit.plan.work import (
    Work,
    generation_work,
    log_prob_work,
    prompts_flops,
    step_bytes,
    training_work,
)

RESERVE = 1e9  # of a GPU's memory: the driver's context
USABLE = 0.92  # of the rest: the allocator leaves holes
LAUNCH = 1e-3  # seconds that a layer takes at least in each of transformers' decoding steps, on a GPU


@dataclass(frozen=True)
class Part:
    """One part of a step.

    Attributes:
        work: passes and operations.
        bytes: at its peak, with everything held at that time.
        seconds: expected.
    """

    name: str
    work: Work
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """A step on one device.

    Attributes:
        parts: generation, log-probabilities, attribution and training.
        held: bytes held throughout.
        usable: bytes of the device that parts may take.
        budget: tokens in one pass of attribution.
        optimizer_steps: how many the generation serves.
        sampler_lacks: bytes that vLLM's share is too small by for its weights and one row's cache.
    """

    shape: ModelShape
    settings: Settings
    machine: Machine
    parts: tuple[Part, ...]
    held: Held
    usable: float
    budget: int
    optimizer_steps: float
    sampler_lacks: float

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def attribution_share(self) -> float:
        """Attribution's share of the step's time."""
        return self.part("attribution").seconds / self.seconds

    @property
    def too_large(self) -> list[Part]:
        """The parts that run and don't fit, the largest first."""
        over = [part for part in self.parts if part.bytes > self.usable and part.work != Work()]
        return sorted(over, key=lambda part: -part.bytes)

    @property
    def fits(self) -> bool:
        return not self.too_large and not self.sampler_lacks

    @property
    def excess(self) -> float:
        """Bytes over what may be used, of all parts together."""
        return sum(part.bytes - self.usable for part in self.too_large) + self.sampler_lacks

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


def plan_step(shape: ModelShape, settings: Settings, machine: Machine) -> Plan:
    """What each part takes."""
    found = held(shape, settings, machine)
    usable = machine.memory if settings.use_cpu else (machine.memory - RESERVE) * USABLE
    budget = found_budget(shape, settings, max(0.0, usable - found.at_rest))
    generation, training = generation_work(shape, settings), training_work(shape, settings)
    log_probs, attribution = log_prob_work(shape, settings), attribution_work(shape, settings, budget)

    def part(name: str, work: Work, extra: float, seconds: float) -> Part:
        # A part that runs nothing takes nothing beyond what is held.
        return Part(name, work, found.at_rest + (extra if work != Work() else 0.0), seconds)

    parts = (
        part(
            "generation",
            generation,
            generation_bytes(shape, settings, machine),
            generation_seconds(shape, settings, machine),
        ),
        part(
            "log-probabilities", log_probs, log_prob_bytes(shape, settings), log_probs.flops / machine.flops
        ),
        part(
            "attribution",
            attribution,
            attribution_bytes(shape, settings, budget),
            machine.seconds(attribution.flops),
        ),
        part(
            "training",
            training,
            training_bytes(shape, settings, found),
            machine.seconds(training.flops, training.moved),
        ),
    )
    steps = settings.micro_batches * settings.num_iterations / settings.gradient_accumulation_steps
    return Plan(
        shape, settings, machine, parts, found, usable, budget, steps, sampler_lacks(shape, settings, machine)
    )


def generation_seconds(shape: ModelShape, settings: Settings, machine: Machine) -> float:
    """The prompts at the speed of a forward pass, then tokens at the given rate.

    Without a rate a decoding step takes as long as its operations or as reading weights and cache, whichever is more,
    and with transformers at least LAUNCH a layer.
    """
    rows, decoded = settings.rows, settings.max_completion_length - 1
    first = prompts_flops(shape, settings)
    if machine.decode_rate is not None:
        return first / machine.flops + rows * decoded / machine.decode_rate
    each = (generation_work(shape, settings).flops - first) / max(1, decoded)
    step = max(each / machine.flops, step_bytes(shape, settings) / machine.bandwidth)
    if not settings.use_vllm and not settings.use_cpu:
        step = max(step, LAUNCH * shape.layers)
    return first / machine.flops + step * decoded


def strategies(plan: Plan) -> dict[str, Plan]:
    """The plan with each form of credit in place of the chosen one, by its flags."""
    label: dict[str, Any] = {"credit": "oar-g", "credit_gradient": "labels", "credit_labels": 1}
    forms: dict[str, dict[str, Any]] = {
        "oar-g, 1 label, in the loss": {**label, "credit_stage": "loss"},
        "oar-g, 1 label": label,
        "oar-g, noise": {"credit": "oar-g", "credit_gradient": "noise", "credit_draws": 1},
        "oar-g, 8 labels": {**label, "credit_labels": 8},
        "oar-p, m = 8": {"credit": "oar-p", "credit_m": 8},
        "oar-p, exact": {"credit": "oar-p", "credit_m": 0},
    }
    found = {}
    for name, form in forms.items():
        settings = dataclasses.replace(
            plan.settings, **{"credit_outcome": None, "credit_stage": "rollout", **form}
        )
        if settings.credit_stage == "rollout" or in_loss(settings):
            found[name] = plan_step(plan.shape, settings, plan.machine)
    return found
