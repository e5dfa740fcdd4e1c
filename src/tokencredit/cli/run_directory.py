"""The run directory: claimed, continued or replaced; its checkpoints, run.json and summary."""

from __future__ import annotations

import json
import platform
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokencredit.cli import package_version
from tokencredit.errors import UsageError
from tokencredit.report import drop_after, load_run, share_by_role, write_atomic
from tokencredit.report.files import plain_json
from tokencredit.report.records import METRICS, RECORDS, RUN

REPORT = "report.html"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# A run can be continued with other logging or more steps, but not as another experiment.
_IDENTITY = ("credit", "task", "dataset", "model", "seed")


def check_directory(
    directory: Path, *, resume: bool, overwrite: bool, identity: dict[str, Any]
) -> Path | None:
    """The checkpoint to continue from, None for a new run; changes nothing.

    Raises:
        UsageError: the directory holds a run and neither flag is given, or there is nothing to resume, or what is
            there is a run of something else.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"output_dir {directory} is a file; name a folder")
    if not resume:
        if (directory / RUN).exists() and not overwrite:
            raise UsageError(
                f"{directory} already holds a run: give --resume to continue it, --overwrite to replace it, or "
                "another --output_dir"
            )
        return None
    checkpoint = last_checkpoint(directory)
    if checkpoint is None:
        raise UsageError(f"nothing to resume: {directory} has no complete checkpoint; start without --resume")
    before = dict(load_run(directory).info) if (directory / RUN).exists() else {}
    for name in _IDENTITY:
        if name in before and before[name] != identity[name]:
            raise UsageError(
                f"cannot resume {directory}: its {name} was {before[name]}, not {identity[name]}; set it so or "
                "give another --output_dir"
            )
    return checkpoint


def last_checkpoint(directory: Path) -> Path | None:
    """The furthest checkpoint that was written to its end; the trainer writes its state last."""
    found = [
        (int(match[1]), path)
        for path in directory.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(path.name)) and _trained_steps(path) is not None
    ]
    return max(found)[1] if found else None


def _trained_steps(checkpoint: Path) -> int | None:
    try:
        return int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, KeyError):
        return None


def clear_run(directory: Path) -> None:
    """Remove what an earlier run left, and nothing else."""
    for name in (RUN, METRICS, RECORDS, REPORT):
        (directory / name).unlink(missing_ok=True)
    for path in directory.glob("checkpoint-*"):
        if _CHECKPOINT.fullmatch(path.name):
            shutil.rmtree(path)


def rewind(directory: Path, checkpoint: Path) -> None:
    """Drop what was logged after the checkpoint: the resumed run will log these steps again."""
    step = _trained_steps(checkpoint)
    assert step is not None
    for name in (METRICS, RECORDS):
        if (directory / name).exists():
            drop_after(directory / name, step)


def write_info(directory: Path, info: dict[str, Any]) -> None:
    """run.json, whole or not at all."""
    text = json.dumps(plain_json(info), indent=2, default=str, allow_nan=False)
    write_atomic(directory / RUN, text + "\n")


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
