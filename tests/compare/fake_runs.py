"""Run folders as `tokencredit train` and the measuring of held-out problems leave them, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.compare.runs import RunKey

SECONDS = {"rollout": 0.5, "attribution": 0.1, "training": 0.4, "total": 1.0}


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_accuracies(path: Path, curve: Mapping[int, tuple[float, float]]) -> None:
    """Accuracies (sampled, greedy) by step."""
    lines = [
        {"step": step, "way": way, "accuracy": share, "problems": 2560}
        for step, shares in curve.items()
        for way, share in zip(("sampled", "greedy"), shares, strict=True)
    ]
    write_lines(path, lines)


def write_run(
    directory: Path,
    key: RunKey,
    curve: Mapping[int, tuple[float, float]] | None,
    rewards: Sequence[float],
    *,
    step_time: float = 1.0,
    interrupted: bool = False,
    **metrics: float,
) -> Path:
    """A finished run of as many steps as there are rewards; the task is in its run.json."""
    folder = directory / key.name
    lines = [
        {"step": step, "reward": reward, "step_time": step_time, **metrics}
        for step, reward in enumerate(rewards, start=1)
    ]
    write_lines(folder / "metrics.jsonl", lines)
    info = {"credit": key.arm, "task": "query", "interrupted": interrupted}
    info["summary"] = {"seconds_per_step": {part: step_time * share for part, share in SECONDS.items()}}
    (folder / "run.json").write_text(json.dumps(info))
    if curve is not None:
        write_accuracies(folder / "held_out.jsonl", curve)
    return folder
