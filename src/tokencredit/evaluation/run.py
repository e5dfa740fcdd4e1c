"""One evaluation from its problems to its numbers, batch by batch, so that a killed one goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.answers import opens_thinking
from tokencredit.errors import UsageError
from tokencredit.evaluation import store
from tokencredit.evaluation.decoding import Completion, Decoding
from tokencredit.evaluation.grading import grade, score
from tokencredit.evaluation.metrics import summarise
from tokencredit.evaluation.paired import Difference, difference
from tokencredit.evaluation.tasks import Problem

if TYPE_CHECKING:
    from tokencredit.evaluation.harness import Backend

Progress = Callable[[Sequence[store.Sample]], None]


@dataclass(frozen=True)
class Asked:
    """A problem with its prompt, as the back-end takes it."""

    problem: Problem
    prompt: Any


def plan(tasks: Mapping[str, Sequence[str]], samples: int, batch_size: int) -> list[list[store.Key]]:
    """All completions to write, in batches of one task and one sample number: all problems once, then once more.

    Args:
        tasks: the ids of each task's problems.
        samples: completions a problem.
        batch_size: the most in one batch.
    """
    batches = []
    for task, ids in tasks.items():
        for sample in range(samples):
            keys = [(task, name, sample) for name in ids]
            batches += [keys[start : start + batch_size] for start in range(0, len(keys), batch_size)]
    return batches


def batch_seed(seed: int, batch: Sequence[store.Key], *, each_request: bool) -> int:
    """The seed of a batch, below 2**31.

    Where a batch is sampled from one random stream, each has its own; where each request takes the seed
    (`each_request`), all that ask for the same sample number share one: equal seeds let a server batch them, and the
    samples of one problem differ by it.
    """
    task, name, sample = batch[0]
    key = f"{seed}/{sample}" if each_request else f"{seed}/{task}/{name}/{sample}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1


def write_samples(
    folder: Path,
    asked: Mapping[str, Sequence[Asked]],
    backend: Backend,
    decoding: Decoding,
    batch_size: int,
    progress: Progress,
) -> list[store.Sample]:
    """All samples of the evaluation: those that the folder keeps, and those that were still to be written and judged.

    `progress` is called with each batch, the kept ones first.

    Raises:
        UsageError: the folder holds other samples, or the back-end failed; what was finished stays.
    """
    known = {(task, each.problem.id): each for task, all_asked in asked.items() for each in all_asked}
    ids = {task: [each.problem.id for each in all_asked] for task, all_asked in asked.items()}
    batches = plan(ids, decoding.samples, batch_size)
    samples = store.keep_finished(folder, batches)
    progress(samples)
    done = len(samples)
    for batch in batches:
        if done >= len(batch):  # batches are finished in order
            done -= len(batch)
            continue
        chosen = [known[task, name] for task, name, _ in batch]
        seed = batch_seed(decoding.seed, batch, each_request=backend.seeded)
        completions = backend.generate([each.prompt for each in chosen], decoding, seed)
        with ThreadPoolExecutor() as pool:  # verdicts that need algebra wait for processes
            written = list(pool.map(_sample, batch, chosen, completions))
        store.append(folder, written)
        samples += written
        progress(written)
    return samples


def _sample(key: store.Key, asked: Asked, completion: Completion) -> store.Sample:
    prompt = asked.prompt if isinstance(asked.prompt, str) else asked.prompt[0]  # chat messages: their JSON
    problem = asked.problem
    verdict = grade(completion.text, problem, thinking=opens_thinking(prompt))
    return {
        **dict(zip(("task", "id", "sample"), key, strict=True)),
        "problem": problem.text,
        "golds": list(problem.golds),
        "prompt": prompt,
        "completion": completion.text,
        **asdict(verdict),
        "finish": completion.finish,
        "tokens": completion.tokens,
    }


def by_problem(samples: Sequence[store.Sample]) -> dict[str, dict[str, list[store.Sample]]]:
    """The samples by task and id of the problem."""
    found: dict[str, dict[str, list[store.Sample]]] = {}
    for sample in samples:
        found.setdefault(sample["task"], {}).setdefault(sample["id"], []).append(sample)
    return found


def results(samples: Sequence[store.Sample], ks: Sequence[int], seed: int) -> dict[str, dict[str, Any]]:
    """For each task: how many problems and samples, and all metrics, see `summarise`."""
    found = {}
    for task, problems in by_problem(samples).items():
        scored = [score(each) for each in problems.values()]
        metrics = {name: asdict(each) for name, each in summarise(scored, ks, seed).items()}
        found[task] = {"problems": len(scored), "samples": len(scored[0]), "metrics": metrics}
    return found


def compare(
    first: Sequence[store.Sample], second: Sequence[store.Sample], seed: int
) -> dict[str, Difference]:
    """For each task in both: the paired difference of the share of right samples, the first minus the second.

    Raises:
        UsageError: no task or problem is in both, or an id stands for different problems.
    """
    ours, theirs = by_problem(first), by_problem(second)
    shared = [task for task in ours if task in theirs]
    if not shared:
        raise UsageError(
            f"nothing to compare: {', '.join(ours)} here, {', '.join(theirs) or 'nothing'} there"
        )
    found = {}
    for task in shared:
        for name in ours[task].keys() & theirs[task].keys():
            if ours[task][name][0]["problem"] != theirs[task][name][0]["problem"]:
                raise UsageError(f"{task}: the id {name} stands for another problem in the other evaluation")
        found[task] = difference(_shares(ours[task]), _shares(theirs[task]), seed)
    return found


def _shares(problems: Mapping[str, Sequence[store.Sample]]) -> dict[str, float]:
    return {
        name: sum(sample["verdict"] == "right" for sample in samples) / len(samples)
        for name, samples in problems.items()
    }
