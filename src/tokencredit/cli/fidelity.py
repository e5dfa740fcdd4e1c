"""`tokencredit fidelity`: does a strategy find the tokens that matter?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser
from tokencredit.cli.credit_options import check_target, parse_options, split_names
from tokencredit.cli.fidelity_results import about, results, show, write
from tokencredit.cli.fidelity_subjects import MOST_TOKENS, WARM, subjects_of
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError
from tokencredit.fidelity.page import NUMBERS, check_folder
from tokencredit.tasks import TASKS

if TYPE_CHECKING:
    from tokencredit.fidelity.plan import Contender, Measured, Plan
    from tokencredit.fidelity.store import Store
    from tokencredit.fidelity.subjects import Subject

TASK_BATCH, DATA_BATCH = 64, 1

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
        "help": "completions that are written and credited at once; an interruption costs the last one "
        f"(default: {TASK_BATCH}, {DATA_BATCH} with --data)",
        "type": int,
        "metavar": "N",
    },
    "records": {
        "help": "completions of each policy and task whose tokens go into the folder (default: 32)",
        "type": int,
        "default": 32,
        "metavar": "N",
    },
    "json": {"help": "write the numbers to this file", "metavar": "FILE"},
    "out": {
        "help": "write the numbers, the figures of each completion, records and a page to this folder, and go on there "
        "after an interruption"
    },
    "overwrite": {"help": "replace the measurement that the folder holds", "action": "store_true"},
}


def run(argv: list[str]) -> int:
    """Measure, print the tables, write the numbers where that was asked."""
    arguments = _parse(argv)
    _check_targets(arguments)
    prepare_libraries()
    plan, subjects = _plan(arguments), subjects_of(arguments)
    content = about(arguments, plan, subjects)
    store = None
    if arguments.out:
        from tokencredit.fidelity.store import Store

        store = Store(Path(arguments.out), content["settings"], overwrite=arguments.overwrite)
    try:
        found = _measure(subjects, plan, store)
    except KeyboardInterrupt:
        print(_interrupted(store), file=sys.stderr, flush=True)
        raise
    content["results"] = results(subjects, plan, found, arguments.seed)
    show(content["results"])
    write(content, found, store, arguments.json)
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
    if arguments.batch_size is None:
        arguments.batch_size = TASK_BATCH if arguments.task else DATA_BATCH
    for name in ("completions", "generations", "draws", "batch_size"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    for name in ("records", "seed"):
        if getattr(arguments, name) < 0:
            raise UsageError(f"--{name} must not be negative, but is {getattr(arguments, name)}")
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
    """Before anything is loaded: files that cannot be written, and a folder that holds something else."""
    if arguments.json:
        check_target(Path(arguments.json))
    if arguments.out:
        check_folder(Path(arguments.out), overwrite=arguments.overwrite)
        check_target(Path(arguments.out, NUMBERS))


def _plan(arguments: argparse.Namespace) -> Plan:
    from tokencredit.credit import Options
    from tokencredit.fidelity.plan import Plan, with_baselines

    common = parse_options(arguments.option, "--option")
    contenders = [
        _contender(text, common, arguments.seed) for text in split_names(arguments.credit, "--credit")
    ]
    options = Options(**common, seed=arguments.seed)
    _check_needs(contenders, arguments)
    return Plan(
        contenders=with_baselines(contenders, options),
        options=options,
        draws=arguments.draws,
        batch_size=arguments.batch_size,
        reference=not arguments.no_reference,
        kept=arguments.records if arguments.out else 0,
    )


def _check_needs(contenders: Sequence[Contender], arguments: argparse.Namespace) -> None:
    """Refuses strategies that read which completions failed where none is judged, or is alone with its problem."""
    for contender in contenders:
        needs = contender.strategy.needs
        if contender.strategy.at_loss:
            raise UsageError(
                f"--credit {contender.name} compares the policy with an older one that wrote the completions, which "
                "training alone has"
            )
        if set(needs) - {"steps"} and not arguments.task:
            raise UsageError(
                f"--credit {contender.name} reads which completions failed, which --data does not tell; use --task"
            )
        if "groups" in needs and arguments.generations == 1:
            raise UsageError(
                f"--credit {contender.name} compares completions of one problem: give --generations 2 or more, "
                "such as 8"
            )


def _contender(text: str, common: Mapping[str, Any], seed: int) -> Contender:
    """A strategy as `NAME` or `NAME:OPTION=VALUE:...`."""
    from tokencredit.credit import Options, get_strategy
    from tokencredit.fidelity.plan import Contender

    name, *pairs = text.split(":")
    strategy = get_strategy(name)
    return Contender(text, strategy, Options(**{**common, **parse_options(pairs, "--credit")}, seed=seed))


def _measure(subjects: Sequence[Subject], plan: Plan, store: Store | None) -> list[Measured]:
    from tqdm import tqdm

    from tokencredit.fidelity.run import measure

    total = sum(subject.completions for subject in subjects) * plan.steps
    watched = sys.stderr.isatty()
    seconds = 0.5 if watched else 30.0  # not a terminal: a line now and then
    found = []
    with tqdm(total=total, mininterval=seconds, file=sys.stderr, unit="credit") as bar:
        for number, subject in enumerate(subjects):

            def tell(more: int, what: str, subject: Subject = subject) -> None:
                bar.set_description(f"{subject.source}, {what}", refresh=watched)
                bar.update(more)

            if store is None:
                found.append(measure(subject, plan, tell))
            else:
                found.append(measure(subject, plan, tell, store.of(number), partial(store.keep, number)))
    return found


def _interrupted(store: Store | None) -> str:
    if store is None:
        return "the measurement was interrupted: nothing is written; with --out what is finished is kept"
    return (
        f"the measurement was interrupted: {store.completions} completions are measured and kept in {store.folder}; "
        "the same command goes on"
    )
