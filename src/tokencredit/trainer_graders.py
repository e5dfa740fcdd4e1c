"""Rewards of completions that were not generated for training, such as those that go on from a step of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from trl import is_conversational
from trl.trainer.utils import is_async_callable

from tokencredit.errors import UsageError


def check_gradable(functions: Iterable[Any], names: Iterable[str]) -> None:
    """Refuses rewards that cannot be asked for at any time.

    Raises:
        UsageError: a reward model or an asynchronous function, by its name.
    """
    for function, name in zip(functions, names, strict=True):
        if isinstance(function, torch.nn.Module) or is_async_callable(function):
            kind = "model" if isinstance(function, torch.nn.Module) else "asynchronous function"
            raise UsageError(f"credit that grades completions of its own cannot ask the {kind} {name}")


def grader_of(
    functions: Sequence[Callable[..., Any]],
    weights: Sequence[float],
    tokenizer: Any,
    inputs: Sequence[dict[str, Any]],
    first: int,
    **given: Any,
) -> Callable[[Sequence[int], Sequence[list[int]]], list[float | None]]:
    """A grader for `Rollouts.grader`: the weighted sum of the reward functions, None where none of them judges.

    Args:
        inputs: the data set's row of each local row; `first` is the key of the first one.
        given: what the functions are told beside completions and columns.
    """

    def grade(keys: Sequence[int], completions: Sequence[list[int]]) -> list[float | None]:
        """The reward of each completion's ids, for the row of its key."""
        if not keys:
            return []
        rows = [inputs[key - first] for key in keys]
        texts: list[Any] = tokenizer.batch_decode(completions, skip_special_tokens=True)
        if is_conversational(rows[0]):
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        columns = {
            name: [row[name] for row in rows]
            for name in inputs[0]
            if name not in ("prompt", "completion", "completion_ids")
        }
        arguments = {**columns, **given, "completions": texts, "completion_ids": list(completions)}
        arguments["prompts"] = [row["prompt"] for row in rows]
        totals: list[float | None] = [None] * len(rows)
        for function, weight in zip(functions, weights, strict=True):
            for place, reward in enumerate(function(**arguments)):
                if reward is not None:
                    totals[place] = (totals[place] or 0.0) + weight * float(reward)
        return totals

    return grade
