"""`tokencredit compare`: several strategies over the same seeds, and what their differences show."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.cli.arguments import TrainArguments
    from tokencredit.compare.launch import Launcher
    from tokencredit.compare.runs import Point, RunKey, TrainingRun, WarmStart

JSON, PAGE, WARM_STARTS = "compare.json", "compare.html", "warm-starts"
WIDTH = 140  # of what is not printed on a terminal
PROBLEMS = 2560
"""Their share of right ones has a standard error of 1 / (2 sqrt(2560)) = 0.99 points at most."""

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


def run(argv: list[str]) -> int:
    """Do what is left of the runs, then write and print what all of them show."""
    prepare_libraries()
    if "-h" in argv or "--help" in argv:
        build_parser().print_help()
        return 0
    own, flags = build_parser().parse_known_args(argv)
    comparison = prepare(own, flags)
    from tokencredit.compare.runs import next_plan, only_call, read_plan, write_plan

    asked = {"arms": comparison.arms, "seeds": own.seeds}
    before = read_plan(comparison.directory)
    plan = next_plan(before, comparison.directory, comparison.settings, comparison.warm_starts, asked)
    with only_call(comparison.directory) as lock:
        write_plan(comparison.directory, plan)
        launcher = _launcher(own, comparison.environment(own.jobs), lock)
        failures = _work(comparison, launcher, own.jobs)
        conclude(comparison, plan)
    if failures:
        name, reason = next(iter(failures.items()))
        raise UsageError(
            f"{len(failures)} run(s) failed; {name}: {reason.rstrip('.')}; {comparison.directory / name} holds its "
            "log.txt, and the same command tries again"
        )
    return 0


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
        from tokencredit.cli.run_directory import last_checkpoint
        from tokencredit.compare.runs import TrainingRun

        found = []
        for key in self.keys():
            folder, policy = self.directory / key.name, self.warm_starts[key.warm]
            measure = partial(self.measure_command, policy) if self.measures else None
            flags = (*self.flags, *self._own_flags(key.arm, key.seed, policy, folder))
            found.append(TrainingRun(key, folder, flags, self.steps, measure, last_checkpoint))
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


def _launcher(own: argparse.Namespace, environment: dict[str, str], lock: int) -> Launcher:
    from tokencredit.compare.launch import Local, OnRay

    if own.launcher == "ray":
        return OnRay(environment, num_cpus=own.ray_cpus, num_gpus=own.ray_gpus)
    return Local(environment, keep_open=[lock])


def _work(comparison: Comparison, launcher: Launcher, jobs: int) -> dict[str, str]:
    """What is left to do; the failures of runs by their name."""
    from tokencredit.compare.launch import work_through

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        failed = work_through(comparison.policies(), launcher, jobs, tell)
        if failed:
            name, reason = next(iter(failed.items()))
            raise UsageError(f"the warm start {name} failed: {reason}")
        return work_through(comparison.runs(), launcher, jobs, tell)
    except KeyboardInterrupt:
        tell("what is finished is kept: the same command goes on from there")
        raise


def conclude(comparison: Comparison, plan: dict[str, Any]) -> None:
    """compare.json, compare.html and the tables, from whatever runs are finished.

    Raises:
        UsageError: none is.
    """
    from rich.console import Console

    from tokencredit.compare.collect import read_finished
    from tokencredit.compare.page import records_of, write_page
    from tokencredit.compare.runs import measured
    from tokencredit.compare.summary import compare
    from tokencredit.compare.tables import all_tables, in_terminal
    from tokencredit.compare.verdict import statements
    from tokencredit.report.files import plain_json, write_atomic

    keys, directory = comparison.keys(), comparison.directory
    starts = (
        {index: measured(policy.accuracies) for index, policy in enumerate(comparison.policies())}
        if comparison.measures
        else {}
    )
    runs = read_finished(directory, keys, starts)
    if not runs:
        return
    finished = [each.key for each in runs]
    compared = compare(runs, comparison.arms, comparison.problems if comparison.measures else None)
    missing = [key.name for key in keys if key not in finished]
    compared |= statements(compared, len(comparison.warm_starts), plan["calls"], missing)
    content = {"command": "compare", "plan": plan, **compared}
    path = write_atomic(directory / JSON, json.dumps(plain_json(content), indent=1, allow_nan=False) + "\n")
    page = write_page(directory / PAGE, compared, plan["settings"], records_of(directory, finished))
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    for table in all_tables(compared):
        console.print(in_terminal(table))
    for line in [*compared["verdict"], "", *compared["reservations"]]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    print(f"numbers: {path}, report: {page}", file=sys.stderr)


_FLAGS: dict[str, dict[str, Any]] = {
    "credit": {
        "help": "strategies, with commas between them; the first is what the others are compared with "
        "(default: uniform,oar-g)",
        "default": "uniform,oar-g",
        "metavar": "NAMES",
    },
    "seeds": {"help": "runs of each strategy from each warm start (default: 5)", "type": int, "default": 5},
    "steps": {
        "help": "training steps of each run (default: as the task's preset or the file says)",
        "type": int,
    },
    "warm_starts": {
        "help": "how many policies of the task to start from, or folders of such, with commas between them "
        "(default: 1)",
        "default": "1",
        "metavar": "N|DIRS",
    },
    "jobs": {"help": "processes at a time (default: 1)", "type": int, "default": 1},
    "points": {
        "help": "measurements along each run, its end included (default: 6)",
        "type": int,
        "default": 6,
    },
    "problems": {
        "help": f"completions that a held-out accuracy rests on (default: {PROBLEMS})",
        "type": int,
        "default": PROBLEMS,
    },
    "held_out": {"help": "file of problems to measure on, for data sets", "metavar": "FILE"},
    "launcher": {
        "help": "local, or ray: the runs are spread over a Ray cluster (default: local)",
        "choices": ("local", "ray"),
        "default": "local",
    },
    "ray_cpus": {"help": "CPUs of a run on the cluster (default: 1)", "type": float, "default": 1.0},
    "ray_gpus": {"help": "GPUs of a run on the cluster (default: 0)", "type": float, "default": 0.0},
    "out": {"help": "folder to write to and to go on from (default: runs/compare-TASK)", "metavar": "DIR"},
}


def build_parser() -> OneLineParser:
    """The parser of the flags that are not those of `train`, each spelled with underscores or hyphens."""
    parser = OneLineParser(
        prog="tokencredit compare",
        usage="tokencredit compare (--task NAME | --dataset SOURCE) [flags] [flags of train]",
        description="Train with several strategies over the same seeds, and say what their differences show. All "
        "other flags, --config too, go to each run of `tokencredit train`.",
        allow_abbrev=False,
    )
    for name, settings in _FLAGS.items():
        parser.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), **settings)
    return parser
