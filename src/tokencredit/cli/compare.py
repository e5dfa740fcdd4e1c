"""`tokencredit compare`: several strategies over the same seeds, and what their differences show."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.cli.comparison import Comparison
    from tokencredit.compare.launch import Launcher

JSON, PAGE = "compare.json", "compare.html"
WIDTH = 140  # that tables with all columns take
PROBLEMS = 2560
"""Their share of right ones has a standard error of 1 / (2 sqrt(2560)) = 0.99 points at most."""


def run(argv: list[str]) -> int:
    """Do what is left of the runs, then write and print what all of them show."""
    prepare_libraries()
    if "-h" in argv or "--help" in argv:
        build_parser().print_help()
        return 0
    own, flags = build_parser().parse_known_args(argv)
    from tokencredit.cli.comparison import prepare
    from tokencredit.compare.runs import next_plan, only_call, read_plan, write_plan

    comparison = prepare(own, flags)
    asked = {"arms": comparison.arms, "seeds": own.seeds}
    before = read_plan(comparison.directory)
    plan = next_plan(before, comparison.directory, comparison.settings, comparison.warm_starts, asked)
    comparison.check_policies()
    launcher = _launcher(own, comparison.environment(own.jobs))
    with only_call(comparison.directory) as lock:
        write_plan(comparison.directory, plan)
        launcher.keep_open(lock)
        failures = _work(comparison, launcher, own.jobs)
        conclude(comparison, plan)
    if failures:
        name, reason = next(iter(failures.items()))
        raise UsageError(
            f"{len(failures)} run(s) failed; {name}: {reason.rstrip('.')}; {comparison.directory / name} holds its "
            "log.txt, and the same command tries again"
        )
    return 0


def _launcher(own: argparse.Namespace, environment: dict[str, str]) -> Launcher:
    from tokencredit.compare.launch import Local, OnRay

    if own.launcher == "ray":
        return OnRay(environment, num_cpus=own.ray_cpus, num_gpus=own.ray_gpus)
    return Local(environment)


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
    """compare.json, compare.html and the tables, from whatever runs are finished; nothing where none is."""
    from rich.console import Console

    from tokencredit.compare.collect import read_finished
    from tokencredit.compare.page import records_of, write_page
    from tokencredit.compare.runs import measured
    from tokencredit.compare.summary import compare
    from tokencredit.compare.tables import all_tables
    from tokencredit.compare.verdict import statements
    from tokencredit.report import in_terminal, write_atomic
    from tokencredit.report.files import plain_json

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
    for table in all_tables(compared, full=console.width >= WIDTH):
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
    parser.add_flags(_FLAGS)
    return parser
