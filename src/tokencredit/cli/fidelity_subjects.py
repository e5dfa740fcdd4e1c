"""What `tokencredit fidelity` measures: the policies and problems that its flags name."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli.credit_options import device, split_names
from tokencredit.errors import UsageError
from tokencredit.tasks import HELD_OUT, TASKS, get_task

if TYPE_CHECKING:
    from tokencredit.evaluation.decoding import Decoding
    from tokencredit.fidelity.subjects import Subject

WARM = "warm"
MOST_TOKENS = 256


def subjects_of(arguments: argparse.Namespace) -> list[Subject]:
    """Each policy on each task, or the model on the data.

    Raises:
        UsageError: a task, a model or data that cannot be used, or completions that do not fit the model.
    """
    if not arguments.task:
        return [_data_subject(arguments)]
    tasks = split_names(arguments.task, "--task")
    for task in tasks:
        get_task(task)
    found = []
    for policy in split_names(arguments.policy, "--policy"):
        for task in tasks if policy == WARM else _tasks_of(policy, tasks):
            found.append(_task_subject(arguments, task, policy))
    return found


def _tasks_of(folder: str, tasks: list[str]) -> list[str]:
    """The tasks to measure a trained policy on: its own where its run says which, else all that were asked for."""
    path = Path(folder)
    run = path.parent if path.name.startswith("checkpoint-") else path
    try:
        task = json.loads((run / "run.json").read_text(encoding="utf-8")).get("task")
    except (OSError, ValueError, AttributeError):
        return tasks
    if task not in TASKS:
        return tasks
    if task not in tasks:
        raise UsageError(f"--policy {folder} was trained on {task}, which --task does not name")
    return [task]


def _task_subject(arguments: argparse.Namespace, name: str, policy: str) -> Subject:
    from tokencredit.fidelity.subjects import Subject, encode_prompt

    task = get_task(name)
    model, tokenizer = _load(arguments, str(task.policy_path()) if policy == WARM else policy)
    problems = task.problems(arguments.completions // arguments.generations, HELD_OUT + arguments.seed)
    prompts = [encode_prompt(tokenizer, problem["prompt"], None, chat=False) for problem in problems]
    most = arguments.max_new_tokens or task.preset["max_completion_length"]
    return Subject(
        source=name,
        policy=policy,
        model=model,
        tokenizer=tokenizer,
        prompts=prompts,
        golds=[problem["answer"] for problem in problems],
        task=task,
        decoding=_decoding(arguments, prompts, model, most),
        marker=task.marker,
        probe=arguments.probe,
    )


def _data_subject(arguments: argparse.Namespace) -> Subject:
    from tokencredit.cli.training_data import INSTRUCTION
    from tokencredit.fidelity.subjects import Subject, encode_prompt
    from tokencredit.tasks.data import load_problems

    limit = arguments.completions // arguments.generations
    problems = load_problems(arguments.data, arguments.split, limit, golds=False)
    if len(problems) < limit:
        print(f"{arguments.data} has {len(problems)} problems, not {limit}", file=sys.stderr)
    model, tokenizer = _load(arguments, arguments.model)
    if arguments.chat and not tokenizer.chat_template:
        raise UsageError("--chat was given, but the tokenizer has no chat template")
    chat = bool(tokenizer.chat_template) if arguments.chat is None else arguments.chat
    template = arguments.prompt_template or INSTRUCTION
    prompts = [encode_prompt(tokenizer, problem["problem"], template, chat) for problem in problems]
    return Subject(
        source=Path(arguments.data).name,
        policy=arguments.model,
        model=model,
        tokenizer=tokenizer,
        prompts=prompts,
        golds=[],
        task=None,
        decoding=_decoding(arguments, prompts, model, arguments.max_new_tokens),
        marker=arguments.marker,
        probe=arguments.probe,
    )


def _load(arguments: argparse.Namespace, name: str) -> tuple[Any, Any]:
    from tokencredit.cli.models import load_model

    model, tokenizer = load_model(name, dtype=arguments.dtype)
    model.to(device()).eval()
    return model, tokenizer


def _decoding(
    arguments: argparse.Namespace, prompts: Sequence[list[int]], model: Any, most: int | None
) -> Decoding:
    """With as many tokens as were asked for, or as fit. Raises UsageError where they do not fit, or nothing does."""
    from tokencredit.evaluation.decoding import Decoding

    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
    room = positions - max(map(len, prompts))
    most = most or max(1, min(MOST_TOKENS, room))
    if most > room:
        raise UsageError(
            f"the model reads {positions} tokens and has room for {max(room, 0)} after the longest prompt, not for "
            f"{most}; shorten the prompts or lower --max_new_tokens"
        )
    if min(map(len, prompts)) < 1:
        raise UsageError("a prompt has no tokens, so that nothing predicts its completion's first token")
    return Decoding(
        samples=arguments.generations,
        temperature=arguments.temperature,
        max_new_tokens=most,
        seed=arguments.seed,
    )
