"""Rewards of completions that credit writes itself."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tokencredit import UsageError
from tokencredit.tasks.policy import build_tokenizer
from tokencredit.trainer_graders import check_gradable, grader_of


def length(completions, completion_ids, answer, prompts, trainer_state, **_):
    assert trainer_state == "state" and len(prompts) == len(completions) == len(answer)
    return [
        None if gold == "?" else float(len(ids)) for ids, gold in zip(completion_ids, answer, strict=True)
    ]


def says(completions, answer, **_):
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [float(text.split() == gold.split()) for text, gold in zip(texts, answer, strict=True)]


@pytest.mark.parametrize("chat", [False, True])
def test_weighted_sums_by_row(chat):
    tokenizer = build_tokenizer()
    ids = tokenizer("7 3")["input_ids"]
    inputs = [
        {"prompt": [{"role": "user", "content": text}] if chat else text, "answer": gold}
        for text, gold in (("a", "7 3"), ("b", "5"), ("c", "?"))
    ]
    grade = grader_of([length, says], [1.0, 10.0], tokenizer, inputs, 40, trainer_state="state")
    # Row 40 has the answer "7 3": 2 tokens and 10 for what it says; row 41 one of them; nobody counts in row 42.
    assert grade([40, 41, 42, 40], [ids, ids[:1], ids, ids[:1]]) == [12.0, 1.0, 0.0, 1.0]
    assert grader_of([length], [1.0], tokenizer, inputs, 0, trainer_state="state")([2], [ids]) == [None]


def test_what_cannot_be_asked_is_named():
    async def slow(completions, **_):
        await asyncio.sleep(0)

    check_gradable([says], ["says"])
    for function, words in ((slow, "asynchronous function slow"), (torch.nn.Linear(1, 1), "model slow")):
        with pytest.raises(UsageError, match=words):
            check_gradable([function], ["slow"])
