"""The run directory: claimed, continued or replaced; its checkpoints, run.json and summary."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokencredit.checkpoints import last_checkpoint, numbered
from tokencredit.cli import package_version
from tokencredit.errors import UsageError
from tokencredit.report import load_run, share_by_role, write_atomic
from tokencredit.report.files import plain_json
from tokencredit.report.records import METRICS, RECORDS, RUN

REPORT = "report.html"
UNFINISHED = ".model"  # what the model is written into, before it is moved to where it belongs
LOGS = (METRICS, RECORDS, REPORT, RUN)  # run.json last: a removal that was cut short can be taken up again
MODEL_CARD = "README.md"
SAVED = (
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "training_args.bin",
    "completions/completions_*.parquet",
)
"""Patterns of what a run saves beside its logs, its checkpoints and the model card."""

# A run can be continued with other logging or more steps, but not as another experiment.
_IDENTITY = ("credit", "task", "dataset", "model", "seed", "processes")
# Of some, the optimizer and scheduler in a checkpoint would keep the old values; the others change what is learned.
_FIXED = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "warmup_ratio",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "loss_type",
    "beta",
)
_FREE_CREDIT = ("credit_records", "credit_token_budget")


def check_directory(
    directory: Path,
    *,
    resume: bool,
    overwrite: bool,
    identity: dict[str, Any],
    max_steps: int = -1,
    tell: Callable[[str], None] = lambda line: None,
) -> Path | None:
    """The checkpoint to continue from, None for a new run; changes nothing.

    Args:
        identity: what run.json would hold, see `write_info`.
        max_steps: of the run, below 1 if its epochs say how many.
        tell: is told of checkpoints that were passed over, see `last_checkpoint`.

    Raises:
        UsageError: the directory holds a run and neither flag is given, or there is nothing to resume, or what is
            there is a run of something else or with other settings.
    """
    check_folder(directory)
    if not resume:
        if (directory / RUN).exists() and not overwrite:
            raise UsageError(
                f"{directory} already holds a run: give --resume to continue it, --overwrite to replace it, or "
                "another --output_dir"
            )
        return None
    checkpoint = last_checkpoint(directory, max_steps, tell)
    if checkpoint is None:
        raise UsageError(f"nothing to resume: {directory} has no whole checkpoint; start with --overwrite")
    if (directory / RUN).exists():
        _check_same(directory, load_run(directory).info, json.loads(_text(identity)))
    return checkpoint


def check_folder(directory: Path) -> None:
    """Raises UsageError where a file has the directory's name."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"output_dir {directory} is a file; name a folder")


def _check_same(directory: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses to go on with a run as another experiment, or with settings that its checkpoint would override."""
    fixed_now = dict(_fixed(now))
    for name, value in _fixed(before):
        if name in fixed_now and fixed_now[name] != value:
            old, new = ("not set" if item is None else item for item in (value, fixed_now[name]))
            raise UsageError(
                f"cannot resume {directory}: its {name} was {old}, but is {new} now; set it as it was or give "
                "another --output_dir"
            )


def _fixed(info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What must be the same in a resumed run, of one run.json."""
    training = info.get("settings", {}).get("training", {})
    credit = (name for name in training if name.startswith("credit_") and name not in _FREE_CREDIT)
    yield from ((name, info[name]) for name in _IDENTITY if name in info)
    yield from ((name, training[name]) for name in (*_FIXED, *credit) if name in training)


def clear_run(directory: Path) -> None:
    """Remove what an earlier run left, and nothing else; a model only where run.json tells that it is a run's."""
    if (directory / RUN).exists():
        for path in [path for pattern in SAVED for path in directory.glob(pattern)]:
            path.unlink()
            if path.parent != directory:
                with suppress(OSError):  # what else lies there stays
                    path.parent.rmdir()
        if _is_written_card(directory / MODEL_CARD):
            (directory / MODEL_CARD).unlink()
    for _, path in numbered(directory):
        shutil.rmtree(path)
    shutil.rmtree(directory / UNFINISHED, ignore_errors=True)
    clear_logs(directory)


def clear_logs(directory: Path) -> None:
    """Remove what a run leaves before its first step."""
    for name in LOGS:
        (directory / name).unlink(missing_ok=True)
        for path in directory.glob(f".{name}.*.tmp"):  # of a writer that was killed
            path.unlink()


def _is_written_card(path: Path) -> bool:
    """Whether the trainer or the adapter library wrote this README, rather than the user."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return text.startswith("---") and "library_name:" in text


def save_model(trainer: Any, directory: Path) -> None:
    """The trained model, whole or not at all: into a folder of its own, and from there to its place.

    All ranks call it. A model in pieces over ranks is put together, so that the folder loads as a plain one.

    Raises:
        OSError, or what safetensors or torch raise: it cannot be written.
    """
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin is not None:
        plugin.set_state_dict_type("FULL_STATE_DICT")
    part = directory / UNFINISHED
    writes = trainer.is_world_process_zero()
    if writes:
        shutil.rmtree(part, ignore_errors=True)
    try:
        trainer.save_model(str(part), _internal_call=True)
        trainer.accelerator.wait_for_everyone()
        if writes:
            for path in part.iterdir():
                if path.is_dir():
                    shutil.rmtree(directory / path.name, ignore_errors=True)
                os.replace(path, directory / path.name)
    finally:
        if writes:
            shutil.rmtree(part, ignore_errors=True)
    if trainer.args.push_to_hub:
        trainer.push_to_hub(commit_message="Model save", revision=trainer.args.hub_revision)


def write_info(directory: Path, info: dict[str, Any]) -> None:
    """run.json, whole or not at all."""
    write_atomic(directory / RUN, _text(info) + "\n")


def _text(info: Mapping[str, Any]) -> str:
    return json.dumps(plain_json(info), indent=2, default=str, allow_nan=False)


def versions() -> dict[str, str]:
    """Of everything that a run's numbers depend on."""
    packages = {name: version(name) for name in ("torch", "transformers", "trl")}
    return {"python": platform.python_version(), **packages, "tokencredit": package_version()}


def summarise(directory: Path, accuracy: dict[str, float], generations_per_step: float) -> dict[str, Any]:
    """Accuracy, seconds a step of each part and where the credit went, from what the run has logged.

    Args:
        accuracy: "before" and "after", as far as they were measured.
        generations_per_step: generation batches an optimiser step: below 1 where several steps train on one batch,
            above 1 where one step accumulates the gradients of several.
    """
    run = load_run(directory)
    summary: dict[str, Any] = {"accuracy": accuracy} if accuracy else {}
    seconds = seconds_per_step(run.metrics, generations_per_step)
    if seconds:
        summary["seconds_per_step"] = seconds
    shares = share_by_role(run.records)
    if shares:
        summary["share_by_role"] = shares
    return summary


def seconds_per_step(metrics: Any, generations_per_step: float) -> dict[str, float]:
    """Mean seconds of an optimiser step: in all, and for rollout, attribution and training; empty if unknown."""
    total = _mean(metrics, "step_time")
    rollout = _mean(metrics, "credit/rollout_seconds")
    attribution = _mean(metrics, "credit/seconds")
    if total is None or rollout is None or attribution is None:
        return {}
    parts = {"rollout": rollout * generations_per_step, "attribution": attribution * generations_per_step}
    return {**parts, "training": max(0.0, total - sum(parts.values())), "total": total}


def _mean(metrics: Any, name: str) -> float | None:
    values = [line[name] for line in metrics if line.get(name) is not None]
    return sum(values) / len(values) if values else None
