"""A step verifier for arithmetic: do the equations that a step writes down hold?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from tokencredit.answers.formula import UnjudgedError
from tokencredit.answers.worker import ask, spread

__all__ = ["arithmetic_verdicts", "equations"]

_SPELLINGS = [
    (re.compile(r"\\[dt]?frac\{([\d.]+)\}\{([\d.]+)\}"), r"(\1/\2)"),
    (re.compile(r"\\(?:times|cdot)\b|[×·]"), "*"),
    (re.compile(r"\\div\b|÷"), "/"),
    (re.compile("[−–]"), "-"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\left|\\right|\\[,;!]|\\?\$"), ""),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
]
_RUN = re.compile(r"[\d.()+*/^=\s-]+")
_PIECE = re.compile(r"\d+(?:\.\d+)?|\.\d+|[-+*/^()]")


def arithmetic_verdicts(prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[list[bool | None]]:
    """Whether the equations between numbers in each step hold, None where there is none that can be judged.

    They are compared by sympy in the answer workers, which are killed when they take too long. A right side with
    decimals may be rounded. `prompts` are not looked at.
    """
    flat = [step for row in steps for step in row]
    found = iter(list(spread(_verdict, flat)))
    return [[next(found) for _ in row] for row in steps]


def equations(text: str) -> list[tuple[str, str]]:
    """The equations between arithmetic expressions in a text, as pairs of sides; of a = b = c each neighbouring two.

    Left out are those that go on in letters (2x = 6, x - 3 = 4, 3 + 4 = 7x) and those without an operator (3 = 3).
    """
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    pairs = []
    for run in _RUN.finditer(text):
        sides = run.group().split("=")
        before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
        joined = not run.group()[0].isspace()
        for place, (left, right) in enumerate(pairwise(sides)):
            first, last = _expression(left, from_end=True), _expression(right, from_end=False)
            whole = place == 0 and first == "".join(left.split())
            goes_on = place == len(sides) - 2 and not right[-1:].isspace()
            if not (first and last) or (goes_on and _letter(after)):
                continue
            if whole and _continues(before, first, joined):
                continue
            if re.search(r"(?<=[\d)])[-+*/^]", first + " " + last):
                pairs.append((first, last))
    return pairs


def _continues(before: str, first: str, joined: bool) -> bool:
    """Whether the left side is the end of something else: after a letter or a bracket an operator is no sign."""
    return (_letter(before) or before in ("}", "]")) and (joined or first[0] in "-+*/^")


def _letter(sign: str) -> bool:
    return sign.isalpha() or (sign != "" and sign in "\\%_{^")


def _expression(side: str, from_end: bool) -> str:
    """The longest part of a side, from its end or its start, that reads as one arithmetic expression; "" if none."""
    pieces = _PIECE.findall(side)
    numbers = range(len(pieces))
    for cut in numbers if from_end else reversed(numbers):
        part = pieces[cut:] if from_end else pieces[: cut + 1]
        if _reads(part):
            return "".join(part)
    return ""


def _reads(pieces: Sequence[str]) -> bool:
    """Numbers and operators take turns, and brackets match."""
    operand, depth = True, 0  # whether a number is expected
    for piece in pieces:
        if piece == "(" and operand:
            depth += 1
        elif piece == ")" and not operand and depth:
            depth -= 1
        elif piece[0].isdigit() or piece[0] == ".":
            if not operand:
                return False
            operand = False
        elif piece in "+-*/^" and not operand:
            operand = True
        elif piece != "-" or not operand:
            return False
    return not operand and depth == 0


def _verdict(step: str) -> bool | None:
    verdicts = [_holds(left, right) for left, right in equations(step)]
    if False in verdicts:
        return False
    return True if True in verdicts else None


def _holds(left: str, right: str) -> bool | None:
    decimals = re.fullmatch(r"-?\d*\.(\d+)", right)
    tolerance = f"5e-{len(decimals.group(1)) + 1}" if decimals else None
    try:
        return ask(right, left, tolerance)
    except UnjudgedError:
        return None
