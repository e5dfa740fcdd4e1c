"""The warm-started policies as subjects."""

from __future__ import annotations

from functools import cache

import pytest

from tokencredit.evaluation.decoding import Decoding
from tokencredit.fidelity.subjects import Subject, encode_prompt
from tokencredit.tasks import HELD_OUT, get_task


@pytest.fixture(scope="session")
def subject():
    """(task, problems, completions a problem, seed) -> Subject, sampled at temperature 1."""

    load = cache(lambda name: get_task(name).load_policy())

    def build(name: str = "query", problems: int = 6, samples: int = 1, seed: int = 0) -> Subject:
        task = get_task(name)
        model, tokenizer = load(name)
        rows = task.problems(problems, HELD_OUT + seed)
        return Subject(
            source=name,
            policy="warm",
            model=model,
            tokenizer=tokenizer,
            prompts=[encode_prompt(tokenizer, row["prompt"], None, False) for row in rows],
            golds=[row["answer"] for row in rows],
            task=task,
            decoding=Decoding(samples, 1.0, 1.0, task.preset["max_completion_length"], seed),
            marker=task.marker,
        )

    return build
