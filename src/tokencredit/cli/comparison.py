"""What `tokencredit compare` was told, checked, and the processes that it comes to."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.cli.arguments import TrainArguments
    from tokencredit.compare.runs import Point, RunKey, TrainingRun, WarmStart

WARM_STARTS = "warm-starts"

_OURS = {
    "seed": "--seeds counts them",
    "output_dir": "--out names the folder",
    "max_steps": "use --steps",
    "num_train_epochs": "use --steps",
    "eval_problems": "use --problems",
    "resume": "runs go on by themselves",
    "resume_from_checkpoint": "runs go on by themselves",
    "overwrite": "give another --out",
    "save_strategy": "use --points",
    "save_steps": "use --points",
    "save_total_limit": "use --points",
    "save_only_model": "runs could not go on",
}
"""Flags of `train` that the comparison sets itself."""

_NOT_SHARED = ("credit", "seed", "output_dir", "model_name_or_path", "resume", "overwrite", "disable_tqdm")
"""Settings in which runs may differ, or calls without changing a run."""


@dataclass(frozen=True)
class Comparison:
    """Everything that a call was told, checked.

    Attributes:
        directory: of the comparison.
        arms: strategies, the first is what the others are compared with.
        warm_starts: model names or folders, the task's own name for its packaged policy.
        seeds: how many of each warm start.
        steps: of a run.
        points: measurements along a run.
        problems: completions a held-out accuracy rests on.
        held_out: file of problems, for data sets.
        flags: of `train`, as the user gave them.
        train: those flags as `train` understands them, for the first arm.
        settings: what all runs share, flat, by name.
    """

    directory: Path
    arms: list[str]
    warm_starts: list[str]
    seeds: int
    steps: int
    points: int
    problems: int
    held_out: str | None
    flags: list[str]
    train: TrainArguments
    settings: dict[str, Any]

    @property
    def task(self) -> str | None:
        return self.train.run.task

    @property
    def measures(self) -> bool:
        """Whether there are held-out problems."""
        return bool(self.task or self.held_out)

    def keys(self) -> list[RunKey]:
        from tokencredit.compare.runs import all_keys

        return all_keys(self.arms, len(self.warm_starts), self.seeds)

    def check_policies(self) -> None:
        """Every policy that was named can be found.

        Raises:
            UsageError: one cannot, by its name.
        """
        from tokencredit.cli.models import load_config

        folder, trusts = self.directory / WARM_STARTS, self.train.training.trust_remote_code
        for policy in self.warm_starts:
            ours = policy == self.task or made_seed(policy, folder, self.task) is not None
            if not ours and not (Path(policy) / "adapter_config.json").is_file():
                load_config(policy, revision=self.train.model.model_revision, trust_remote_code=trusts)

    def policies(self) -> list[WarmStart]:
        """Every warm start, with how to make and measure it."""
        from tokencredit.compare.runs import WarmStart

        folder = self.directory / WARM_STARTS
        found = []
        for index, policy in enumerate(self.warm_starts):
            seed = made_seed(policy, folder, self.task)
            make = None
            if seed is not None:
                module = [sys.executable, "-m", "tokencredit.tasks.warm_start"]
                flags = ["--task", str(self.task), "--seed", str(seed), "--out", policy]
                make = ([*module, *flags], Path(policy) / "warm_start.json")
            measure = partial(self._measure_start, policy) if self.measures else None
            found.append(WarmStart(f"warm{index}", folder, make, measure))
        return found

    def _measure_start(self, policy: str, out: Path) -> list[str]:
        return self.measure_command(policy, [(0, policy)], out)

    def runs(self) -> list[TrainingRun]:
        """Every run, with what it is to be started with."""
        from tokencredit.compare.runs import TrainingRun

        found = []
        for key in self.keys():
            folder, policy = self.directory / key.name, self.warm_starts[key.warm]
            measure = partial(self.measure_command, policy) if self.measures else None
            flags = (*self.flags, *self._own_flags(key.arm, key.seed, policy, folder))
            found.append(TrainingRun(key, folder, flags, self.steps, measure))
        return found

    def _own_flags(self, arm: str, seed: int, policy: str, folder: Path) -> list[str]:
        own: dict[str, Any] = {
            "credit": arm,
            "seed": seed,
            "max_steps": self.steps,
            "eval_problems": 0,
            "save_strategy": "steps",
            "save_steps": math.ceil(self.steps / self.points),
            "output_dir": folder,
        }
        if policy != self.task:
            own["model_name_or_path"] = policy
        return [part for name, value in own.items() for part in (f"--{name}", str(value))]

    def measure_command(self, base: str, points: Sequence[Point | tuple[int, str]], out: Path) -> list[str]:
        """The command that measures policies, of which adapters belong to `base`, into a file."""
        command = [sys.executable, "-m", "tokencredit.cli.held_out"]
        source = ["--task", self.task] if self.task else ["--data", str(self.held_out), "--base", base]
        flags = ["--problems", str(self.problems), "--out", str(out)]
        cpu = ["--use_cpu"] if self.train.training.use_cpu else []
        policies = [f"{step}={path}" for step, path in points]
        train = [] if self.task else ["--", *self.flags, "--model_name_or_path", base]
        return [*command, *map(str, source), *flags, *cpu, *policies, *train]

    def environment(self, jobs: int) -> dict[str, str]:
        """Threads of a process, so that several do not wait for one another; what the user has set stays."""
        if "OMP_NUM_THREADS" in os.environ:
            return {}
        threads = 1 if self.task else max(1, (os.cpu_count() or 1) // jobs)
        return {"OMP_NUM_THREADS": str(threads)} if self.train.training.use_cpu else {}


def prepare(own: argparse.Namespace, flags: list[str]) -> Comparison:
    """Checks everything, without writing.

    Raises:
        UsageError: what `train` would refuse, a flag of its that the comparison sets, or a value out of range.
    """
    _check_own(own)
    for flag in flags:
        name = flag.split("=")[0].removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in _OURS:
            raise UsageError(f"compare sets --{name} of each run itself: {_OURS[name]}")
    arms = _arms(own.credit)
    from tokencredit.cli.arguments import parse_arguments, settings_of

    listed = None if own.warm_starts.isdigit() else own.warm_starts.split(",")
    given = ["--model_name_or_path", listed[0]] if listed else []
    if listed and any(flag.split("=")[0].replace("-", "_") == "__model_name_or_path" for flag in flags):
        raise UsageError("give --model_name_or_path or folders in --warm_starts, not both")
    steps = ["--max_steps", str(own.steps)] if own.steps else []
    parsed = [parse_arguments([*flags, *given, *steps, "--credit", arm]) for arm in arms]
    train = parsed[0]
    for part, names in (
        (train.run, ("resume", "overwrite")),
        (train.training, ("save_total_limit", "save_only_model")),
    ):
        for name in names:
            if getattr(part, name):  # from the file: as flags they are refused above
                raise UsageError(f"compare sets --{name} of each run itself: {_OURS[name]}")
    if train.training.max_steps < 1:
        raise UsageError("give --steps, so that all runs are equally long")
    if own.held_out is not None:
        if train.run.task:
            raise UsageError("--held_out is for data sets; a task has held-out problems of its own")
        from tokencredit.cli.held_out import load_rows

        load_rows(own.held_out)
    directory = Path(own.out or Path("runs", f"compare-{_stem(train)}"))
    settings = _shared(settings_of(train))
    settings |= {"points": own.points, "problems": own.problems, "held_out": own.held_out}
    return Comparison(
        directory=directory,
        arms=arms,
        warm_starts=listed or _warm_starts(int(own.warm_starts), directory, train),
        seeds=own.seeds,
        steps=train.training.max_steps,
        points=own.points,
        problems=own.problems,
        held_out=own.held_out,
        flags=flags,
        train=train,
        settings=settings,
    )


def _check_own(own: argparse.Namespace) -> None:
    for name in ("seeds", "jobs", "points", "problems"):
        if getattr(own, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(own, name)}")
    if own.steps is not None and own.steps < 1:
        raise UsageError(f"--steps must be at least 1, not {own.steps}")
    if own.warm_starts == "0" or not all(own.warm_starts.split(",")):
        raise UsageError(f"--warm_starts must be a number of at least 1, or folders, not {own.warm_starts!r}")


def _arms(text: str) -> list[str]:
    from tokencredit.credit import get_strategy

    arms = [name.strip() for name in text.split(",") if name.strip()]
    for name in arms:
        get_strategy(name)
    if len(set(arms)) < 2 or len(set(arms)) < len(arms):
        raise UsageError(f"--credit needs at least two strategies, each once, not {text!r}")
    return arms


def _stem(train: TrainArguments) -> str:
    return train.run.task or Path(str(train.run.dataset_name or "mixture").rstrip("/")).stem


def _shared(settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings of all parts, by name; no two parts have one of the same name that matters here."""
    flat = {name: value for part in settings.values() for name, value in part.items()}
    return {name: value for name, value in flat.items() if name not in _NOT_SHARED}


def _warm_starts(count: int, directory: Path, train: TrainArguments) -> list[str]:
    """The model that was named or the task's packaged policy, then further policies of the task."""
    named = train.model.model_name_or_path
    if count > 1 and (named or not train.run.task):
        raise UsageError(
            "further warm starts can be made for a task's own policy alone; name their folders instead: "
            "--warm_starts DIR,DIR"
        )
    first = named or str(train.run.task)
    return [first] + [
        str(directory / WARM_STARTS / f"{train.run.task}-seed{seed}") for seed in range(1, count)
    ]


def made_seed(policy: str, folder: Path, task: str | None) -> int | None:
    """The warm start's seed of a policy that the comparison makes itself; None for any other."""
    path = Path(policy)
    if path.parent != folder or task is None or not path.name.startswith(f"{task}-seed"):
        return None
    return int(path.name.removeprefix(f"{task}-seed"))
