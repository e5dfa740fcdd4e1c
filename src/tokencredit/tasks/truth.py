"""The truth about each token of a completion: its role, whether it is on the path, if its step is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .arithmetic import (
    ASK,
    DIGITS,
    END_OF_STEP,
    EQUALS,
    LABELS,
    MARKER,
    OPERATORS,
    Fact,
    Problem,
    parse_prompt,
    result,
)

ROLES = ("queried result", "other result", "operand", "operator", "filler", "delimiter", "answer")


@dataclass(frozen=True)
class TokenTruth:
    """The truth about one token.

    Attributes:
        role: one of ``ROLES``.
        on_path: whether the token is an operand, operator or result of a step that the answer depends on, or
            the answer itself. Fillers and delimiters (labels, ``=``, ``;``, ``ans``, the end) are off it.
        right: whether the token's step is right, judged by itself: it computes what the prompt says, from the
            previous result as the completion has it, and its result is that fact's. So an error is blamed on
            the step that makes it, not on those that carry it on. None outside steps and in steps that cannot
            be read or lack a result.
    """

    role: str
    on_path: bool
    right: bool | None


@dataclass(frozen=True)
class _StepText:
    """A stretch of a completion from a step's label on; ``at`` is its ``=``, if its fact can be read."""

    start: int
    stop: int
    label: str
    at: int | None
    fact: Fact | None
    value: int | None


def annotate(prompt: str, tokens: Sequence[str]) -> list[TokenTruth]:
    """The truth about every token of a completion, one entry a token.

    The completion may be anything a policy samples. A step runs from its label to its ``;``, or to the next
    label or ``ans``; its fact is read around its ``=``. What cannot be read keeps the role of its kind, off
    the path. Of a step written twice, only the last one before the final ``ans`` is on the path.

    Args:
        prompt: the problem, as ``Task.problems`` writes it.
        tokens: the completion's tokens as text; white space around them does not matter.

    Raises:
        UsageError: the prompt is not one of the built-in tasks'.
    """
    problem = parse_prompt(prompt)
    words = [token.strip() for token in tokens]
    marker = max((i for i, word in enumerate(words) if word == MARKER), default=len(words))
    truths = [
        TokenTruth("answer", True, None)
        if i > marker and word in DIGITS
        else TokenTruth(_kind(word), False, None)
        for i, word in enumerate(words)
    ]
    steps = _read_steps(words)
    latest = {step.label: step for step in steps if step.at is not None and step.start < marker}
    said: int | None = None
    for step in steps:
        right = _is_right(step, problem, said)
        on_path = latest.get(step.label) is step and _index(step, problem) in problem.path
        for i in range(step.start, step.stop):
            truths[i] = TokenTruth(truths[i].role, False, right)
        if step.at is not None:
            asked = _index(step, problem) in problem.asked
            last = "queried result" if asked else "other result"
            roles = ["operand", "operator", "operand", "delimiter", last]
            for i, role in enumerate(roles[: 5 if step.value is not None else 4], start=step.at - 3):
                truths[i] = TokenTruth(role, on_path and role != "delimiter", right)
        said = step.value
    return truths


def _kind(word: str) -> str:
    """The role of a word that no readable step claims."""
    if word in DIGITS:
        return "operand"
    if word in OPERATORS:
        return "operator"
    special = not word or (word.startswith("<") and word.endswith(">"))
    if special or word in LABELS or word in (EQUALS, END_OF_STEP, ASK, MARKER):
        return "delimiter"
    return "filler"


def _read_steps(words: Sequence[str]) -> list[_StepText]:
    """The steps of a completion in their order; words outside any step are skipped."""
    steps = []
    start = 0
    while start < len(words):
        if words[start] not in LABELS:
            start += 1
            continue
        stop = start + 1
        while stop < len(words) and words[stop] not in (*LABELS, MARKER, END_OF_STEP):
            stop += 1
        stop += stop < len(words) and words[stop] == END_OF_STEP
        steps.append(_read_step(words, start, stop))
        start = stop
    return steps


def _read_step(words: Sequence[str], start: int, stop: int) -> _StepText:
    """Reads ``a op b = value`` around the first ``=`` that has a fact before it."""
    for at in range(start + 4, stop):
        a, operator, b = words[at - 3 : at]
        if words[at] == EQUALS and a in DIGITS and operator in OPERATORS and b in DIGITS:
            said = words[at + 1] if at + 1 < stop else ""
            value = int(said) if said in DIGITS else None
            return _StepText(start, stop, words[start], at, (int(a), operator, int(b)), value)
    return _StepText(start, stop, words[start], None, None, None)


def _index(step: _StepText, problem: Problem) -> int | None:
    """Which of the problem's steps this is, or None if the problem has no such label."""
    index = LABELS.index(step.label)
    return index if index < len(problem.steps) else None


def _is_right(step: _StepText, problem: Problem, said: int | None) -> bool | None:
    """Whether the step computes what the prompt says, from the result ``said`` before it, and rightly."""
    if step.fact is None or step.value is None:
        return None
    index = _index(step, problem)
    if index is None:
        return False
    wanted = problem.steps[index]
    if wanted.first is None and said is None:
        return False
    return step.fact == wanted.fact(said) and step.value == result(step.fact)
