"""Whether a completion is right: the verdict on its answer, and the check of a gold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from tokencredit.answers.boxes import neighbours
from tokencredit.answers.constants import constant
from tokencredit.answers.equality import IN_BASE, RELATION, has_words, judge, parts, unnamed, within
from tokencredit.answers.extraction import Answer, extract
from tokencredit.answers.formula import DEPTH, LENGTH, UnjudgedError, depth, prepared
from tokencredit.answers.plain_numbers import number
from tokencredit.answers.spelling import TEXT, clean
from tokencredit.answers.units import split_unit
from tokencredit.answers.worker import parses, spread
from tokencredit.errors import UsageError

__all__ = ["Verdict", "check_gold", "parse_tolerance", "verify", "verify_all"]

LENGTH_LIMIT = 10_000  # characters of an answer that are still worth reading

_DIGITS = re.compile(r"[-+$\d.,!\\{}]*")


@dataclass(frozen=True)
class Verdict:
    """What `verify` found: the verdict, the answer that was judged (None without one), and why."""

    verdict: Literal["right", "wrong", "no-answer"]
    answer: str | None
    reason: str


def verify(
    completion: str,
    gold: str,
    *,
    marker: str | None = None,
    thinking: bool = False,
    tolerance: str | float | None = None,
) -> Verdict:
    """Judges a completion's answer (see `extract`, also for `marker` and `thinking`) against the gold.

    Right at once where the texts agree or both are plain numbers of equal value; a unit on one side only is
    ignored, two different units are wrong; lists without brackets and sets have no order, and their lengths
    must agree. 0.333 is not 1/3, unless the data set states a `tolerance`, the largest absolute difference. What
    cannot be parsed or compared within the limits is wrong, with a reason that says so; no answer is right
    against a gold that cannot be judged.

    Raises:
        UsageError: a tolerance that is no number.
    """
    allowed = parse_tolerance(tolerance)
    found = extract(completion, marker=marker, thinking=thinking)
    if found is None:
        return Verdict("no-answer", None, "no answer found")
    try:
        same, reason = _judged(found, gold, allowed)
    except UnjudgedError as error:
        same, reason = False, str(error)
    except RecursionError:
        same, reason = False, "nested too deeply"
    return Verdict("right" if same else "wrong", found.text, reason)


def verify_all(rows: Iterable[tuple[str, str]], **settings: Any) -> list[Verdict]:
    """`verify` on many pairs (completion, gold) at once, over all workers; the verdicts in the order of the rows."""
    return list(spread(lambda row: verify(*row, **settings), rows))


def parse_tolerance(value: str | float | None) -> Fraction | None:
    """A data set's tolerance as an exact number; None where it states none. Raises UsageError for other text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        tolerance = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError):
        tolerance = Fraction(-1)
    if isinstance(value, bool) or tolerance < 0:
        raise UsageError(f"the tolerance {value!r} is no number of at least 0")
    return tolerance


def _judged(found: Answer, gold: str, tolerance: Fraction | None) -> tuple[bool, str]:
    if max(len(found.text), len(gold)) > LENGTH_LIMIT:
        return False, f"longer than {LENGTH_LIMIT} characters"
    reason = _agreement(found.text, gold, tolerance)
    refused = check_gold(gold) if reason else None
    return reason is not None and refused is None, refused or reason or f"not {gold[:80]}"


def _agreement(text: str, gold: str, tolerance: Fraction | None) -> str | None:
    """How the answer's text agrees with the gold, None if it does not."""
    if text.strip() == gold.strip():
        return "same text"
    limit = max(LENGTH, 2 * len(gold))
    if len(text) > limit and not _DIGITS.fullmatch(text):
        raise UnjudgedError(f"the answer is longer than {limit} characters and no number")
    if depth(text) > DEPTH:
        raise UnjudgedError(f"the brackets of the answer are nested more than {DEPTH} deep")
    cleaned, answer = clean(gold), _one_value(text)
    if judge(cleaned, answer):
        return "equal"
    return f"within {float(tolerance):g}" if tolerance and within(cleaned, answer, tolerance) else None


def _one_value(text: str) -> str:
    """The cleaned answer; neighbouring boxes that all hold the same value count once."""
    values = neighbours(text)
    cleaned = [clean(value) for value in values]
    if all(judge(cleaned[0], value) for value in cleaned[1:]):
        return cleaned[0]
    return clean("; ".join(values))


@lru_cache(maxsize=8192)
def check_gold(gold: str) -> str | None:
    """None if answers can be judged against this gold, else the reason why not."""
    if not isinstance(gold, str) or not (text := clean(gold)):
        return "the gold is empty"
    if len(gold) > LENGTH_LIMIT:
        return f"the gold is longer than {LENGTH_LIMIT} characters"
    if number(text) is not None or IN_BASE.fullmatch(text) or re.fullmatch(r"[\w\s().,;:-]+", text):
        return None
    try:
        for body in _bodies(text):
            plain = number(body) is not None or constant(body) is not None
            if not plain and not has_words(TEXT.sub(r" \1", body)):
                reason = parses(prepared(body, "gold"))
                if reason is not None:
                    return reason
    except UnjudgedError as error:
        return str(error)
    return None


def _bodies(text: str) -> list[str]:
    """The formulas in a gold: its items, without names and units."""
    unit = split_unit(text)
    items = parts(unit[0] if unit else unnamed(text)[1])[1]
    if RELATION.search(text):
        items = [half for item in items for half in item.split(r"\cup")]
    return [unit[0] if (unit := split_unit(item)) else unnamed(item)[1] for item in items]
