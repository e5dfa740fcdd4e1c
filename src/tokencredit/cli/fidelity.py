"""`tokencredit fidelity`: does a strategy find the tokens that matter?"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser, package_version
from tokencredit.cli.credit_options import check_target, parse_options, split_names
from tokencredit.cli.fidelity_subjects import MOST_TOKENS, WARM, subjects_of
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError
from tokencredit.tasks import TASKS

if TYPE_CHECKING:
    from tokencredit.fidelity.run import Contender, Measured, Plan
    from tokencredit.fidelity.subjects import Subject

NUMBERS, VALUES, RECORDS = "fidelity.json", "values.jsonl", "records.jsonl"

_FLAGS: dict[str, dict[str, Any]] = {
    "task": {
        "help": f"built-in tasks, with commas between them: {', '.join(TASKS)}",
        "metavar": "NAMES",
    },
    "policy": {
        "help": "policies of the tasks: warm (the packaged ones), and folders of trained ones (default: warm)",
        "default": WARM,
        "metavar": "NAMES",
    },
    "model": {
        "help": "in place of tasks: a folder, a .gguf file, a hub id or a built-in policy, with --data",
        "metavar": "M",
    },
    "data": {
        "help": "problems for --model, in any form that training takes; golds are not needed",
        "metavar": "F",
    },
    "split": {"help": "split of a folder or hub data set (default: train)", "default": "train"},
    "credit": {
        "help": "strategies, with commas between them; NAME:OPTION=VALUE:... sets one's options (default: oar-g,oar-p)",
        "default": "oar-g,oar-p",
        "metavar": "NAMES",
    },
    "option": {
        "help": "an option of all strategies, of exact oar-p and of the causal checks, such as outcome=answer_kl; "
        "repeatable",
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
    },
    "completions": {
        "help": "completions of each policy on each task (default: 100)",
        "type": int,
        "default": 100,
        "metavar": "N",
    },
    "generations": {
        "help": "of which so many are of the same problem (default: 1)",
        "type": int,
        "default": 1,
        "metavar": "N",
    },
    "draws": {
        "help": "independent draws to compare, of strategies that draw; 1: none (default: 2)",
        "type": int,
        "default": 2,
        "metavar": "N",
    },
    "no_reference": {
        "help": "leave out the agreement with exact oar-p, which costs much on long completions",
        "action": "store_true",
    },
    "seed": {
        "help": "of problems, completions, draws and bootstrap (default: 0)",
        "type": int,
        "default": 0,
    },
    "temperature": {
        "help": "of the sampling; 0 takes the likeliest token each time (default: 1)",
        "type": float,
        "default": 1.0,
        "metavar": "T",
    },
    "max_new_tokens": {
        "help": f"most tokens of a completion (default: the task's, {MOST_TOKENS} with --data, or as many as fit)",
        "type": int,
        "metavar": "N",
    },
    "prompt_template": {
        "help": "the prompt for --data, with {problem} in it (default: the problem, and to put the answer in a box)",
        "metavar": "TEXT",
    },
    "chat": {
        "help": "use the tokenizer's chat template for --data (default: if it has one)",
        "action": argparse.BooleanOptionalAction,
        "default": None,
    },
    "marker": {
        "help": "the word before the answer, for --data (default: boxed, ####, ... are recognised)",
        "metavar": "WORD",
    },
    "probe": {
        "help": "put this text after completions without an answer, to ask for one (default: they are left out)",
        "metavar": "TEXT",
    },
    "dtype": {
        "help": "of the weights (default: float32)",
        "default": "float32",
        "choices": ("float32", "float64", "bfloat16", "float16", "auto"),
    },
    "batch_size": {
        "help": "completions that are written and credited at once (default: 64)",
        "type": int,
        "default": 64,
        "metavar": "N",
    },
    "records": {
        "help": "completions of each policy and task whose tokens go into the folder (default: 32)",
        "type": int,
        "default": 32,
        "metavar": "N",
    },
    "json": {"help": "write the numbers to this file", "metavar": "FILE"},
    "out": {"help": "write the numbers, the figures of each completion and records to this folder"},
    "overwrite": {"help": "replace the measurement that the folder holds", "action": "store_true"},
}


def run(argv: list[str]) -> int:
    """Measure, print the tables, write the numbers where that was asked."""
    arguments = _parse(argv)
    _check_targets(arguments)
    prepare_libraries()
    plan, subjects = _plan(arguments), subjects_of(arguments)
    try:
        found = _measure(subjects, plan)
    except KeyboardInterrupt:
        print("the measurement was interrupted: nothing is written", file=sys.stderr, flush=True)
        raise
    content = _content(arguments, plan, subjects, found)
    _show(content["results"])
    _write(arguments, content, found)
    return 0


def build_parser() -> OneLineParser:
    """The parser of all flags, each spelled with underscores or hyphens."""
    parser = OneLineParser(
        prog="tokencredit fidelity",
        description="Measure whether credit strategies find the tokens that matter: against the known truth of the "
        "built-in tasks, against exact OAR-P, and by moving the outcome.",
        allow_abbrev=False,
    )
    parser.add_flags(_FLAGS)
    return parser


def _parse(argv: list[str]) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    for name in ("completions", "generations", "draws", "batch_size"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    if arguments.records < 0 or arguments.seed < 0:
        raise UsageError("--records and --seed must not be negative")
    if arguments.max_new_tokens is not None and arguments.max_new_tokens < 1:
        raise UsageError(f"--max_new_tokens must be at least 1, not {arguments.max_new_tokens}")
    if not 0 <= arguments.temperature < float("inf"):
        raise UsageError(f"--temperature must be 0 or more, not {arguments.temperature}")
    if arguments.completions % arguments.generations:
        raise UsageError(f"--completions {arguments.completions} is no multiple of --generations")
    if arguments.temperature == 0 and arguments.generations > 1:
        raise UsageError("--generations needs --temperature above 0: at 0 all of a problem are the same")
    if arguments.prompt_template is not None and "{problem}" not in arguments.prompt_template:
        raise UsageError("--prompt_template has no {problem} in it")
    if bool(arguments.task) == bool(arguments.model or arguments.data):
        raise UsageError("give either --task, or --model and --data")
    if not arguments.task:
        for name in ("model", "data"):
            if not getattr(arguments, name):
                raise UsageError(f"--{name} is missing: --model and --data go together")
        if arguments.policy != WARM:
            raise UsageError("--policy goes with --task; name the model by --model")
    return arguments


def _check_targets(arguments: argparse.Namespace) -> None:
    """Before anything is computed: files that cannot be written, and a folder that holds something else."""
    if arguments.json:
        check_target(Path(arguments.json))
    if not arguments.out:
        return
    folder = Path(arguments.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder")
    if (folder / "run.json").exists():
        raise UsageError(f"--out {folder} holds a training run; name another folder")
    if (folder / NUMBERS).exists() and not arguments.overwrite:
        raise UsageError(f"--out {folder} holds a measurement; name another folder or give --overwrite")
    check_target(folder / NUMBERS)


def _plan(arguments: argparse.Namespace) -> Plan:
    from tokencredit.credit import Options
    from tokencredit.fidelity.run import Plan, with_baselines

    common = parse_options(arguments.option, "--option")
    contenders = [
        _contender(text, common, arguments.seed) for text in split_names(arguments.credit, "--credit")
    ]
    options = Options(**common, seed=arguments.seed)
    return Plan(
        contenders=with_baselines(contenders, options),
        options=options,
        draws=arguments.draws,
        batch_size=arguments.batch_size,
        reference=not arguments.no_reference,
        kept=arguments.records if arguments.out else 0,
    )


def _contender(text: str, common: Mapping[str, Any], seed: int) -> Contender:
    """A strategy as `NAME` or `NAME:OPTION=VALUE:...`."""
    from tokencredit.credit import Options, get_strategy
    from tokencredit.fidelity.run import Contender

    name, *pairs = text.split(":")
    strategy = get_strategy(name)
    return Contender(text, strategy, Options(**{**common, **parse_options(pairs, "--credit")}, seed=seed))


def _measure(subjects: Sequence[Subject], plan: Plan) -> list[Measured]:
    from tqdm import tqdm

    from tokencredit.fidelity.run import measure

    total = sum(subject.completions for subject in subjects) * len(plan.contenders)
    seconds = 0.5 if sys.stderr.isatty() else 30.0  # not a terminal: a line now and then
    found = []
    with tqdm(total=total, mininterval=seconds, file=sys.stderr, unit="credit") as bar:
        for subject in subjects:

            def tell(more: int, what: str, subject: Subject = subject) -> None:
                bar.set_description(f"{subject.source}, {what}", refresh=False)
                bar.update(more)

            found.append(measure(subject, plan, tell))
    return found


def _content(
    arguments: argparse.Namespace, plan: Plan, subjects: Sequence[Subject], found: Sequence[Measured]
) -> dict[str, Any]:
    """Every figure, and what it ran on."""
    import dataclasses

    import torch

    from tokencredit.fidelity.causal import OUTCOME
    from tokencredit.fidelity.run import result

    device = subjects[0].model.device
    settings = {
        name: value for name, value in vars(arguments).items() if name not in ("json", "out", "overwrite")
    }
    return {
        "settings": settings
        | {
            "strategies": {c.name: dataclasses.asdict(c.options) for c in plan.contenders},
            "causal_outcome": plan.options.outcome or OUTCOME,
            "max_new_tokens": {s.source: s.decoding.max_new_tokens for s in subjects},
        },
        "versions": {
            "tokencredit": package_version(),
            **{name: version(name) for name in ("torch", "transformers", "scipy")},
        },
        "machine": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            "processors": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "results": [
            result(subject, plan, measured, arguments.seed)
            for subject, measured in zip(subjects, found, strict=True)
        ],
    }


def _show(results: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console

    from tokencredit.fidelity.tables import tables

    console = Console()
    for result in results:
        for table in tables(result):
            console.print(table)
    console.print(
        "± is half the 95% bootstrap interval of the mean over completions.", markup=False, highlight=False
    )


def _write(arguments: argparse.Namespace, content: Mapping[str, Any], found: Sequence[Measured]) -> None:
    from tokencredit.report.files import plain_json, write_atomic

    text = json.dumps(plain_json(content), indent=1, allow_nan=False) + "\n"
    if arguments.out:
        folder = Path(arguments.out)
        for name, lines in (
            (VALUES, [row for measured in found for row in measured.rows]),
            (RECORDS, [record for measured in found for record in measured.records]),
        ):
            rows = (json.dumps(plain_json(line), allow_nan=False) + "\n" for line in lines)
            write_atomic(folder / name, "".join(rows))
        print(f"numbers: {write_atomic(folder / NUMBERS, text)}", file=sys.stderr)  # last: all is there
    if arguments.json:
        print(f"numbers: {write_atomic(arguments.json, text)}", file=sys.stderr)
