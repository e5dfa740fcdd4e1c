"""`tokencredit demo`: a built-in task trained with outcome-grounded and with uniform credit, side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser
from tokencredit.errors import UsageError
from tokencredit.tasks import TASKS, get_task

if TYPE_CHECKING:
    from rich.table import Table

CREDITS = ("oar-g", "uniform")
PARTS = {
    "rollout": "sampling and rewards",
    "attribution": "attribution",
    "training": "loss and update",
    "total": "the whole step",
}
Summaries = dict[str, dict[str, Any]]


def run(argv: list[str]) -> int:
    """Train twice, print the tables, write one report; the last line on stdout is one JSON object."""
    arguments = build_parser().parse_args(argv)
    get_task(arguments.task)
    if arguments.steps < 1 or arguments.problems < 1:
        raise UsageError("--steps and --problems must be at least 1")
    directory = Path(arguments.output_dir)
    _clear(directory)
    try:
        code = _train(arguments, directory)
    except KeyboardInterrupt:
        _tell_interrupted()
        raise
    if code:
        _tell_interrupted()
        return code
    _conclude(arguments, directory)
    return 0


def _clear(directory: Path) -> None:
    """Remove an earlier demo whole, so that what an interrupted one leaves is all its own."""
    from tokencredit.cli.run_directory import REPORT, check_folder, clear_run

    folders = [directory / credit for credit in CREDITS]
    for folder in (directory, *folders):
        check_folder(folder)
    for folder in filter(Path.is_dir, folders):
        clear_run(folder)
    if directory.is_dir():
        (directory / REPORT).unlink(missing_ok=True)


def _train(arguments: Any, directory: Path) -> int:
    """One run after the other; the code of the first that did not go through, else 0."""
    from tokencredit.cli import train

    for credit in CREDITS:
        print(f"\ntokencredit train --task {arguments.task} --credit {credit}", file=sys.stderr, flush=True)
        code = train.run(_train_flags(arguments, credit, directory / credit), resumable=False)
        if code:
            return code
    return 0


def _tell_interrupted() -> None:
    print("the demo was interrupted; running it again starts anew", file=sys.stderr, flush=True)


def build_parser() -> OneLineParser:
    """The parser of the demo's flags."""
    parser = OneLineParser(
        prog="tokencredit demo",
        description=f"Train a built-in task with {' and '.join(CREDITS)} credit, one seed each, and compare.",
        allow_abbrev=False,
    )
    parser.add_argument("--task", default="query", help=f"one of {', '.join(TASKS)} (default: query)")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each run (default: 60)")
    parser.add_argument(
        "--problems", type=int, default=512, help="held-out problems to measure on (default: 512)"
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="of problems and samples, the same for both (default: 42)"
    )
    parser.add_argument(
        "--output_dir",
        "--output-dir",
        default="runs/demo",
        help="replaced if it is there (default: runs/demo)",
    )
    return parser


def _train_flags(arguments: Any, credit: str, directory: Path) -> list[str]:
    settings = {
        "task": arguments.task,
        "credit": credit,
        "max_steps": arguments.steps,
        "eval_problems": arguments.problems,
        "seed": arguments.seed,
        "output_dir": directory,
    }
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))] + ["--overwrite"]


def _conclude(arguments: Any, directory: Path) -> None:
    from rich.console import Console

    from tokencredit.cli.run_directory import REPORT
    from tokencredit.report import load_run, render_run

    runs = [load_run(directory / credit) for credit in CREDITS]
    summaries: Summaries = {run.credit: dict(run.info["summary"]) for run in runs}
    report = render_run(runs, directory / REPORT)
    console = Console()
    console.print(comparison_table(summaries, arguments.problems))
    console.print(role_table(summaries[CREDITS[0]]))
    console.print(
        "This is one seed: a difference of a few points between the two says nothing. Compare over several seeds.",
        f"\nreport: {report}",
        highlight=False,
        soft_wrap=True,
    )
    figures = {
        "task": arguments.task,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "seeds": 1,
        "problems": arguments.problems,
        "runs": summaries,
        "report": str(report),
    }
    print(json.dumps(figures, allow_nan=False), flush=True)


def comparison_table(summaries: Summaries, problems: int) -> Table:
    """Accuracy with its standard error, and seconds a step, of each run."""
    from rich import box
    from rich.table import Table

    table = Table(title=f"accuracy at temperature 1, {problems} held-out problems", box=box.SIMPLE_HEAD)
    table.add_column("")
    for credit in summaries:
        table.add_column(credit, justify="right")
    for when in ("before", "after"):
        shares = [summary["accuracy"][when] for summary in summaries.values()]
        errors = [(share * (1 - share) / problems) ** 0.5 for share in shares]
        cells = [f"{share:.3f} ± {error:.3f}" for share, error in zip(shares, errors, strict=True)]
        table.add_row(f"accuracy {when}", *cells)
    for part, name in PARTS.items():
        values = [summary["seconds_per_step"][part] for summary in summaries.values()]
        table.add_row(f"seconds a step: {name}", *(f"{value:.3f}" for value in values))
    return table


def role_table(summary: dict[str, Any]) -> Table:
    """Where the credit went, by token role: importance as measured, and credit as the weights gave it."""
    from rich import box
    from rich.table import Table

    roles = summary["share_by_role"]
    title = f"share of credit by token role, {CREDITS[0]} (uniform credit: the share of tokens)"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("role")
    for name in ("tokens", "importance", "credit (after the gate)", "mean weight"):
        table.add_column(name, justify="right")
    for role, row in sorted(roles.items(), key=lambda item: -(item[1]["importance_share"] or 0)):
        importance = "–" if row["importance_share"] is None else f"{row['importance_share']:.1%}"
        credit = f"{row['credit_share']:.1%}"
        table.add_row(role, f"{row['token_share']:.1%}", importance, credit, f"{row['mean_weight']:.2f}")
    return table
