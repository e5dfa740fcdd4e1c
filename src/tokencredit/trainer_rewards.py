"""Reward functions that say which row they failed at, in place of ending a run of days with a bare traceback."""

from __future__ import annotations

import functools
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from trl.trainer.utils import is_async_callable

from tokencredit.errors import UsageError

__all__ = ["checked_rewards"]

SEARCH_LIMIT = 60.0  # seconds for calling a function that raised again, row by row
SHOWN = 80  # characters of a prompt
SAID = 300  # characters of what a function's error says


def checked_rewards(functions: Iterable[Any], names: Iterable[str]) -> list[Any]:
    """Reward functions for TRL that raise one line where one fails; reward models as they are.

    Each raises UsageError, with its name, where the function raises, or where what it returns is not one finite number
    or None for each completion. To find the row, a function that raised is called again with each row alone, for
    SEARCH_LIMIT at most: the run has ended by then.
    """
    return [
        function if isinstance(function, torch.nn.Module) else _checked(function, name)
        for function, name in zip(functions, names, strict=True)
    ]


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if is_async_callable(function):

        @functools.wraps(function)
        async def waited_for(**given: Any) -> list[Any]:
            try:
                returned = await function(**given)
            except Exception as error:
                search = _Search(name, given, error)
                for row in search.rows():
                    with search.trying(row):
                        await function(**_alone(given, row))
                raise UsageError(search.finding()) from error
            return _values(returned, name, given)

        return waited_for

    @functools.wraps(function)
    def called(**given: Any) -> list[Any]:
        try:
            returned = function(**given)
        except Exception as error:
            search = _Search(name, given, error)
            for row in search.rows():
                with search.trying(row):
                    function(**_alone(given, row))
            raise UsageError(search.finding()) from error
        return _values(returned, name, given)

    return called


class _Search:
    """Which rows a function raises at when each is given alone."""

    def __init__(self, name: str, given: dict[str, Any], error: Exception) -> None:
        self.name, self.given, self.error = name, given, error
        self.tried, self.found = 0, list[int]()

    def rows(self) -> Iterator[int]:
        end = time.monotonic() + SEARCH_LIMIT
        for row in range(len(self.given["completions"])):
            if time.monotonic() > end:
                return
            yield row

    @contextmanager
    def trying(self, row: int) -> Iterator[None]:
        """What is run inside is the call with this row."""
        self.tried += 1
        try:
            yield
        except Exception as error:
            if type(error) is type(self.error):
                self.found.append(row)

    def finding(self) -> str:
        raised = f"the reward function {self.name} raised {_said(self.error)}"
        count = len(self.given["completions"])
        if not self.found:
            return f"{raised}, given {count} rows; none of the {self.tried} tried alone does it"
        if len(self.found) == count > 1:
            return f"{raised}, at every row"
        others = f", and at {len(self.found) - 1} more" if len(self.found) > 1 else ""
        return f"{raised}, at {_place(self.given, self.found[0])}{others}"


def _alone(given: dict[str, Any], row: int) -> dict[str, Any]:
    """The arguments with one row: columns are lists, one entry a completion."""
    count = len(given["completions"])
    return {
        name: value[row : row + 1] if isinstance(value, list) and len(value) == count else value
        for name, value in given.items()
    }


def _said(error: Exception) -> str:
    """The error's type, text and place: the last line that ran in the file of the function itself."""
    said = " ".join(str(error).split())
    text = f"{type(error).__name__}: {_cut(said, SAID)}" if said else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else text


def _values(returned: Any, name: str, given: dict[str, Any]) -> list[Any]:
    """What the function returned, as a list.

    Raises:
        UsageError: it is not one finite number or None for each completion.
    """
    count = len(given["completions"])
    try:
        values = list(returned)
    except TypeError:
        raise UsageError(
            f"the reward function {name} returned a {type(returned).__name__}, not a list of {count} rewards"
        ) from None
    if len(values) != count:
        raise UsageError(
            f"the reward function {name} returned {len(values)} rewards for {count} completions; it must "
            "return one for each, None where it has none"
        )
    for row, value in enumerate(values):
        if value is not None and not _finite(value):
            raise UsageError(
                f"the reward function {name} returned {value!r} at {_place(given, row)}; a reward is a finite "
                "number, or None where there is none"
            )
    return values


def _finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, ValueError, OverflowError):  # a tensor of several numbers, or no number at all
        return False


def _place(given: dict[str, Any], row: int) -> str:
    """The row among those of this process, and its prompt."""
    prompt = given["prompts"][row]
    if not isinstance(prompt, str):  # chat messages
        prompt = cast(Any, prompt[-1]["content"]) if prompt else ""
    shown = _cut(" ".join(str(prompt).split()), SHOWN)
    return f"row {row + 1} of {len(given['completions'])}, whose prompt is {shown!r}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
