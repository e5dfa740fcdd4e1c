"""The runs of a comparison: which there are, where they lie, and what is left to do for each.

DIR/plan.json                      the settings that all runs share, and what each call asked for
DIR/warm-starts/warm<k>.jsonl      accuracy of the policy that the runs of warm<k> start from
DIR/<arm>/warm<k>-seed<s>/         one run of `tokencredit train`, and beside what that leaves:
    command.txt                    its command line
    log.txt                        what its processes printed
    held_out.jsonl                 held-out accuracy of its checkpoints and of its model
"""

from __future__ import annotations

import fcntl
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.checkpoints import flaw, last_checkpoint, numbered
from tokencredit.errors import UsageError
from tokencredit.report.files import plain_json, read_lines, write_atomic
from tokencredit.report.records import RUN, load_info

PLAN, LOCK, COMMAND, LOG, HELD_OUT = "plan.json", ".lock", "command.txt", "log.txt", "held_out.jsonl"
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}
"""How held-out problems are answered: at temperature 1, or by the likeliest token each time."""

Point = tuple[int, Path]
"""A policy to measure: after so many steps, in this folder."""


@dataclass(frozen=True, order=True)
class RunKey:
    """One run: of which arm, from which warm start, with which seed."""

    arm: str
    warm: int
    seed: int

    @property
    def name(self) -> str:
        """Its folder below that of the comparison."""
        return f"{self.arm}/warm{self.warm}-seed{self.seed}"


def all_keys(arms: Sequence[str], warm_starts: int, seeds: int) -> list[RunKey]:
    """Every run, those that are compared with one another side by side; seeds count from 1."""
    return [
        RunKey(arm, warm, seed) for seed in range(1, seeds + 1) for warm in range(warm_starts) for arm in arms
    ]


@dataclass(frozen=True)
class TrainingRun:
    """A run and what is left to do for it, which is read off its folder.

    Attributes:
        key: which one.
        folder: where it lies.
        flags: of `tokencredit train`, all but --resume and --overwrite.
        steps: of the whole run.
        measure: the command that measures the given points into a file; None where there are no held-out problems.
    """

    key: RunKey
    folder: Path
    flags: tuple[str, ...]
    steps: int
    measure: Callable[[Sequence[Point], Path], list[str]] | None

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def next_command(self) -> list[str] | None:
        """What to start now: training, from a checkpoint where there is one, or measuring; None for a finished run.

        Checkpoints of a finished run are removed.
        """
        if not is_trained(self.folder):
            return self._train_command()
        if self.measure is not None:
            left = self._unmeasured()
            if left:
                return self.measure(left, self.folder / HELD_OUT)
        for _, path in numbered(self.folder):
            shutil.rmtree(path)
        return None

    def _train_command(self) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / COMMAND).write_text(shlex.join(["tokencredit", "train", *self.flags]) + "\n")
        command = [sys.executable, "-m", "tokencredit", "train", *self.flags]
        if last_checkpoint(self.folder, self.steps) is not None:
            return [*command, "--resume"]
        (self.folder / HELD_OUT).unlink(missing_ok=True)
        return [*command, "--overwrite"]

    def _unmeasured(self) -> list[Point]:
        done = measured(self.folder / HELD_OUT)
        saved = [(step, path) for step, path in numbered(self.folder) if flaw(path, step) is None]
        points = [point for point in sorted(saved) if point[0] < self.steps] + [(self.steps, self.folder)]
        return [point for point in points if any((point[0], way) not in done for way in TEMPERATURES)]


@dataclass(frozen=True)
class WarmStart:
    """A policy that runs start from: made where it is not there yet, and measured.

    Attributes:
        name: how it is spoken of.
        folder: where its log and accuracies go.
        make: the command that makes it, and the file that is there afterwards; None for one that the user has.
        measure: the command that measures it into a file; None where there are no held-out problems.
    """

    name: str
    folder: Path
    make: tuple[list[str], Path] | None
    measure: Callable[[Path], list[str]] | None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def accuracies(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def next_command(self) -> list[str] | None:
        """What to start now: making or measuring; None where both are done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.make is not None and not self.make[1].is_file():
            return self.make[0]
        if self.measure is None or {(0, way) for way in TEMPERATURES} <= set(measured(self.accuracies)):
            return None
        return self.measure(self.accuracies)


def is_trained(folder: Path) -> bool:
    """Whether the folder holds a run that went through to its end."""
    return (folder / RUN).is_file() and load_info(folder).get("interrupted") is False


def measured(path: Path) -> dict[tuple[int, str], float]:
    """Accuracies in a file of held-out measurements, by step and way of answering; see `TEMPERATURES`."""
    return {(line["step"], line["way"]): line["accuracy"] for _, line in read_lines(path)}


@contextmanager
def only_call(directory: Path) -> Iterator[int]:
    """Keeps the directory to one call; yields a file descriptor that the call's processes must inherit.

    The lock is held for as long as any of them lives, so that also those of a killed call are not joined by others.

    Raises:
        UsageError: it is in use, or cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / LOCK, "ab")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"{directory} is in use by another call, or by runs of an earlier one; wait for them or stop them"
            ) from error
        yield file.fileno()


def read_plan(directory: Path) -> dict[str, Any]:
    """What earlier calls have settled; empty for a new directory.

    Raises:
        UsageError: an unreadable plan, or a folder that holds something else.
    """
    path = directory / PLAN
    if not path.exists():
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{directory} is a file; name a folder")
        if directory.is_dir() and any(item.name != LOCK for item in directory.iterdir()):
            raise UsageError(f"{directory} holds something else than a comparison; name another folder")
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def next_plan(
    before: Mapping[str, Any],
    directory: Path,
    settings: Mapping[str, Any],
    warm_starts: Sequence[str],
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """The plan after this call: more arms, seeds and warm starts are welcome, other settings are not.

    Args:
        before: of the earlier calls.
        settings: flat, by name; what makes a run what it is, but for its arm, warm start and seed.
        warm_starts: in their order.
        asked: "arms" and "seeds" of this call.

    Raises:
        UsageError: a setting or a warm start that differs, by name.
    """
    settings = json.loads(json.dumps(plain_json(settings), default=str))
    there = before.get("settings", settings)
    hint = "set it as it was, or give another --out"
    for name in {**there, **settings}:
        old, new = there.get(name), settings.get(name)
        if old != new:
            raise UsageError(f"{directory} was begun with {name} {_shown(old)}, not {_shown(new)}; {hint}")
    known = list(before.get("warm_starts", []))
    for index, (old, new) in enumerate(zip(known, warm_starts, strict=False)):
        if old != new:
            raise UsageError(f"{directory} was begun with {old} as warm start {index}, not {new}; {hint}")
    calls = list(before.get("calls", []))
    entry = {"arms": list(asked["arms"]), "seeds": asked["seeds"], "warm_starts": len(warm_starts)}
    return {
        "settings": settings,
        "warm_starts": known if len(known) > len(warm_starts) else list(warm_starts),
        "calls": calls if calls[-1:] == [entry] else [*calls, entry],
    }


def write_plan(directory: Path, plan: Mapping[str, Any]) -> None:
    write_atomic(directory / PLAN, json.dumps(plan, indent=1) + "\n")


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
