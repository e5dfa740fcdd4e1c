"""The supervised run that a built-in task's policy starts from, and the command that makes one.

    python -m tokencredit.tasks.warm_start --task query --seed 0 --out DIR

The data show worked solutions with random filler. A share of the facts is taught badly: right with a fixed
probability, else one fixed wrong value, from which the rest of the solution then goes on. The same seed on
the same machine and number of threads gives the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tokencredit.errors import UsageError

from . import Task, get_task
from .arithmetic import Teacher, World, draw_problem, write_completion
from .policy import EOS, PAD, VOCABULARY, accuracy, build_model, build_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

_IDS = {word: i for i, word in enumerate(VOCABULARY)}
_IGNORED = -100
MEASURED_PROBLEMS = 2048
"""Held-out problems that the accuracies in ``warm_start.json`` are measured on."""


@dataclass(frozen=True)
class WarmStartSettings:
    """How the supervised run goes.

    Attributes:
        steps: optimiser steps.
        tokens: about how many tokens a batch has; rows are as many as fit.
        learning_rate: its peak, after a linear warm-up and before a cosine decay to zero.
        warmup: steps of the warm-up.
        alone: the first share of the steps, in which every problem is one fact with little filler: facts are
            learned sooner from short rows, and copying from the prompt sooner where there is little to copy.
        weight_decay: of AdamW.
        beta2: of AdamW.
        max_grad_norm: gradients are clipped to this norm.
    """

    steps: int = 1200
    tokens: int = 3000
    learning_rate: float = 3e-3
    warmup: int = 30
    alone: float = 0.25
    weight_decay: float = 0.01
    beta2: float = 0.99
    max_grad_norm: float = 1.0


def warm_start(
    task_name: str,
    seed: int,
    output_dir: str | Path,
    *,
    steps: int | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Trains a task's policy from scratch and writes model, tokenizer and ``warm_start.json`` to a folder.

    Args:
        task_name: one of the built-in tasks.
        seed: draws the badly taught facts, the data and the initial weights.
        output_dir: where the checkpoint goes; it appears there whole or not at all.
        steps: optimiser steps, 1200 by default.
        progress: called after each step with the steps done, all steps, and the loss in nats a token.
        overwrite: replace a folder that holds an earlier policy.

    Returns:
        What ``warm_start.json`` says.

    Raises:
        UsageError: no such task, fewer than one step, or a folder that is not to be replaced.
    """
    task = get_task(task_name)
    settings = WarmStartSettings() if steps is None else WarmStartSettings(steps=steps)
    if settings.steps < 1:
        raise UsageError(f"the warm start needs at least one step, not {settings.steps}")
    target = Path(output_dir).resolve()
    _check_target(target, overwrite)

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        whole = Path(scratch) / "policy"
        summary = _make(task, seed, settings, progress, whole)
        if target.exists():
            shutil.rmtree(target)
        whole.rename(target)
    return summary


def _make(
    task: Task,
    seed: int,
    settings: WarmStartSettings,
    progress: Callable[[int, int, float], None] | None,
    folder: Path,
) -> dict[str, Any]:
    """Trains, measures and writes everything to the folder; returns what ``warm_start.json`` says."""
    teacher = Teacher.draw(task.world, random.Random(f"{task.name}/teacher/{seed}"))
    start = time.process_time()
    model = train(task, teacher, seed, settings, progress)
    seconds = time.process_time() - start
    tokenizer = build_tokenizer()
    versions = {"python": platform.python_version(), **{p: version(p) for p in ("torch", "transformers")}}
    summary = {
        "task": task.name,
        "seed": seed,
        "accuracy": round(accuracy(model, tokenizer, task, MEASURED_PROBLEMS, temperature=1.0), 4),
        "accuracy_greedy": round(accuracy(model, tokenizer, task, MEASURED_PROBLEMS, temperature=0.0), 4),
        "measured_problems": MEASURED_PROBLEMS,
        "settings": asdict(settings),
        "world": asdict(task.world),
        "cpu_seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": versions,
        "wrong_values": {" ".join(map(str, fact)): value for fact, value in teacher.wrong.items()},
    }
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "warm_start.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def train(
    task: Task,
    teacher: Teacher,
    seed: int,
    settings: WarmStartSettings,
    progress: Callable[[int, int, float], None] | None = None,
) -> LlamaForCausalLM:
    """The supervised run alone: a fresh model trained on what the teacher says, left in evaluation mode."""
    rng = random.Random(f"{task.name}/warm start/{seed}")
    model = build_model(seed).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, settings.beta2), weight_decay=settings.weight_decay
    )
    alone = replace(task.world, steps=1, filler=(0, 1))
    for step in range(settings.steps):
        done = step / settings.steps
        world = alone if done < settings.alone else task.world
        ids, labels = _batch(world, teacher, settings.tokens, rng)
        warm = min(1.0, (step + 1) / settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * done))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        if progress:
            progress(step + 1, settings.steps, loss.item())
    return model.eval()


def _batch(
    world: World, teacher: Teacher, tokens: int, rng: random.Random
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, both (rows, length), padded on the right; only completion tokens carry a label."""
    rows: list[tuple[list[str], list[str]]] = []
    size = 0
    while size < tokens:
        problem = draw_problem(world, rng)
        results = problem.results(lambda fact: teacher.say(fact, rng))
        completion = write_completion(problem, results, world.filler, rng)
        rows.append((problem.prompt.split(), [*completion.split(), EOS]))
        size += sum(map(len, rows[-1]))
    length = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids = torch.full((len(rows), length), _IDS[PAD])
    labels = torch.full((len(rows), length), _IGNORED)
    for i, (asked, solved) in enumerate(rows):
        row = torch.tensor([_IDS[word] for word in asked + solved])
        ids[i, : len(row)] = row
        labels[i, len(asked) : len(row)] = row[len(asked) :]
    return ids, labels


def _check_target(target: Path, overwrite: bool) -> None:
    """Refuses a target that is a file, or a folder with something in it that is not to be replaced."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file: name a folder to write the policy to")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not overwrite:
        raise UsageError(f"{target} is not empty: name another folder, or pass --overwrite to replace it")
    if not (target / "warm_start.json").is_file():
        raise UsageError(
            f"{target} holds something other than a policy: it is not replaced, name another folder"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tokencredit.tasks.warm_start",
        description="Make a built-in task's starting policy by a short supervised run on one thread.",
    )
    parser.add_argument("--task", required=True, help="query, serial or parallel")
    parser.add_argument("--seed", type=int, default=0, help="the packaged policies are seed 0 (default: 0)")
    parser.add_argument("--out", required=True, type=Path, help="folder to write the policy to")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: as the packaged policies)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier policy")
    args = parser.parse_args(argv)

    def show(step: int, steps: int, loss: float) -> None:
        if step % 25 == 0 or step == steps:
            print(f"step {step} of {steps}  loss {loss:.3f}", file=sys.stderr, flush=True)

    torch.set_num_threads(1)
    try:
        summary = warm_start(
            args.task, args.seed, args.out, steps=args.steps, progress=show, overwrite=args.overwrite
        )
    except (UsageError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    figures = f"accuracy {summary['accuracy']:.3f} at temperature 1, {summary['accuracy_greedy']:.3f} greedy"
    print(f"{args.out}: {figures}, {summary['cpu_seconds']:.0f} s of training")
    return 0


if __name__ == "__main__":
    sys.exit(main())
