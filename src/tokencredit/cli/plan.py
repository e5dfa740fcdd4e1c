"""`tokencredit plan`: memory, passes and time of a training step, from the model's config and the flags of `train`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.plan import Machine, ModelShape, Plan, Settings

GIGA = 1e9

_FLAGS: dict[str, dict[str, Any]] = {
    "model": {
        "help": "a config.json, a folder, a .gguf file, a hub id or a built-in policy (default: --model_name_or_path)",
        "metavar": "CONFIG|DIR|NAME",
    },
    "gpus": {"help": "devices to train on (default: 1)", "type": int, "default": 1},
    "memory": {
        "help": "of one device, in GB of 10^9 bytes; has to be given",
        "type": float,
        "required": True,
        "metavar": "GB",
    },
    "sharding": {
        "help": "what the devices share: ddp (nothing), zero2, fsdp, zero3 (default: ddp)",
        "default": "ddp",
    },
    "max_prompt_length": {
        "help": "tokens of the longest prompt (default: 512)",
        "type": int,
        "default": 512,
    },
    "answer_tokens": {
        "help": "tokens of a completion's answer (default: 8)",
        "type": int,
        "default": 8,
    },
    "credited": {
        "help": "share of completions with an answer and an advantage, which attribution runs on (default: 1)",
        "type": float,
        "default": 1.0,
    },
    "flops": {
        "help": "operations a second that a forward pass reaches on a device (default: 4e14)",
        "type": float,
        "default": 4e14,
    },
    "bandwidth": {
        "help": "bytes a second that memory is read and written at (default: 2e12)",
        "type": float,
        "default": 2e12,
    },
    "prefill_rate": {
        "help": "measured tokens a second of a forward pass over rows of full length; in place of --flops",
        "type": float,
    },
    "decode_rate": {
        "help": "measured tokens a second of generation, all rows of a device together; in place of a guess",
        "type": float,
    },
    "json": {"help": "write the numbers to this file", "metavar": "FILE.json"},
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command's own flags; the others are those of `train`."""
    parser = OneLineParser(
        prog="tokencredit plan",
        usage="tokencredit plan (--model NAME | --config NAME) --memory GB [--gpus N] [flags of train]",
        description=(
            "Say what a training step takes, from the model's config alone: memory and passes of each part, "
            "attribution's share, and what to change where it doesn't fit. Takes every flag of `tokencredit train`, "
            "--config too."
        ),
        allow_abbrev=False,
    )
    parser.add_flags(_FLAGS)
    return parser


def run(argv: list[str]) -> int:
    """Print the plan, and write it where that was asked; 0 whether it fits or not."""
    prepare_libraries()
    if "-h" in argv or "--help" in argv:
        build_parser().print_help()
        return 0
    own, flags = build_parser().parse_known_args(argv)
    from tokencredit.plan import advise, plan_step

    name, shape, settings, machine = _told(own, flags)
    plan = plan_step(shape, settings, machine)
    changes, better = advise(plan)
    from tokencredit.cli.plan_tables import show

    show(name, plan, changes, better)
    if own.json:
        from tokencredit.report.files import plain_json, write_atomic

        write_atomic(
            Path(own.json), json.dumps(plain_json(numbers(name, plan, changes, better)), indent=1) + "\n"
        )
    return 0


def _told(own: argparse.Namespace, flags: list[str]) -> tuple[str, ModelShape, Settings, Machine]:
    """The model's name and shape, the settings and the device.

    Raises:
        UsageError: no model, one that can't be planned for, or a flag that is out of range.
    """
    from tokencredit.cli.arguments import build_parser as build_train_parser
    from tokencredit.cli.arguments import read_settings
    from tokencredit.cli.models import load_config
    from tokencredit.plan import Machine, shape_of
    from tokencredit.tasks import get_task

    def preset(first: argparse.Namespace) -> dict[str, Any]:
        return {"bf16": False, **get_task(first.task).preset} if first.task else {}

    chosen, _ = read_settings(flags, build_train_parser(), preset)
    name = own.model or chosen.model_name_or_path or chosen.task
    if not name:
        raise UsageError(
            "no model: give --model CONFIG.json, DIRECTORY or HUB-ID, or a --config that names one"
        )
    if chosen.load_in_4bit or chosen.load_in_8bit:
        raise UsageError("a plan knows no quantised weights: leave out load_in_4bit and load_in_8bit")
    config = load_config(name, revision=chosen.model_revision, trust_remote_code=chosen.trust_remote_code)
    settings = settings_of_flags(own, chosen, config)
    shape = shape_of(config)
    flops = own.flops
    if own.prefill_rate is not None:
        flops = own.prefill_rate * flops_of_prefill(shape, settings)
    return name, shape, settings, Machine(own.memory * GIGA, flops, own.bandwidth, own.decode_rate)


def flops_of_prefill(shape: ModelShape, settings: Settings) -> float:
    """Operations a token of a forward pass over rows of full length, whose last position's logits are computed."""
    from tokencredit.plan.work import causal_keys, head_flops, layers_flops

    row = layers_flops(shape, settings.length, causal_keys(settings.length)) + head_flops(shape, 1)
    return row / settings.length


def settings_of_flags(own: argparse.Namespace, chosen: argparse.Namespace, config: Any) -> Settings:
    """What a plan reads of all flags, with TRL's rules for those that were left out."""
    from tokencredit.credit import get_strategy
    from tokencredit.plan import Settings

    told = {**vars(chosen), **{name: getattr(own, name) for name in _OWN_SETTINGS}}
    values = {field.name: told[field.name] for field in dataclasses.fields(Settings)}
    if chosen.credit_m is None:
        values["credit_m"] = get_strategy(chosen.credit).m
    values["credit_counterfactual"] = chosen.credit_counterfactual or "pad"
    if chosen.dtype == "auto":
        stored = getattr(config, "dtype", None) or "float32"
        values["dtype"] = str(stored).removeprefix("torch.")
    if chosen.bf16 is None:
        values["bf16"] = chosen.fp16 or not chosen.use_cpu
    if chosen.generation_batch_size is not None:
        each = chosen.per_device_train_batch_size * own.gpus
        values["steps_per_generation"] = max(1, chosen.generation_batch_size // each)
    if chosen.lora_target_modules is not None:
        values["lora_target_modules"] = tuple(chosen.lora_target_modules)
    return Settings(**values)


_OWN_SETTINGS = ("gpus", "sharding", "max_prompt_length", "answer_tokens", "credited")


def numbers(name: str, plan: Plan, changes: dict[str, Any], better: Plan) -> dict[str, Any]:
    """The plan as plain values, bytes and seconds."""
    from tokencredit.plan import strategies

    return {
        "command": "plan",
        "model": name,
        "shape": dataclasses.asdict(plan.shape),
        "settings": dataclasses.asdict(plan.settings),
        "machine": dataclasses.asdict(plan.machine),
        "usable": plan.usable,
        "held": dataclasses.asdict(plan.held),
        "parts": {part.name: dataclasses.asdict(part) for part in plan.parts},
        "seconds": plan.seconds,
        "optimizer_steps": plan.optimizer_steps,
        "credit_token_budget": plan.budget,
        "attribution_share": plan.attribution_share,
        "strategies": {
            label: dataclasses.asdict(other.part("attribution")) | {"share": other.attribution_share}
            for label, other in strategies(plan).items()
        },
        "fits": plan.fits,
        "too_large": [part.name for part in plan.too_large],
        "changes": changes,
        "fits_with_changes": better.fits,
    }
