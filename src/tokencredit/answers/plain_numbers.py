"""The exact value of what is plainly a number."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

__all__ = ["GROUPED", "number"]

GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # a comma may separate thousands here
_NUMBER = re.compile(
    r"([+-]?)(\d{1,3}(?:[, ]\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
    r"(?:[eE]\{?([+-]?\d+)\}?|\\times 10\^\{?([+-]?\d+)\}?)?"
)
_POWER_OF_TEN = re.compile(r"([+-]?)10\^\{?([+-]?\d{1,6})\}?")
_DECIMAL = r"\d{1,50}(?:\.\d{1,50})?"
_RATIO = re.compile(
    rf"([+-]?)(?:\\frac\{{(-?{_DECIMAL})\}}\{{(-?{_DECIMAL})\}}|\(?(-?{_DECIMAL})\)?/\(?(-?{_DECIMAL})\)?)"
)
_MIXED = re.compile(
    r"([+-]?)(?:\((\d{1,50})\+\\frac\{(\d{1,50})\}\{(\d{1,50})\}\)|(\d{1,50}) (\d{1,50})/(\d{1,50}))"
)
_REPEATING = re.compile(r"([+-]?)(\d{0,50})\.(\d{0,50})\\(?:overline|bar|dot)\{(\d{1,50})\}")


def number(text: str) -> Fraction | Decimal | None:
    """The exact value of a plain number, fraction or mixed number; a Decimal if it is very long.

    A comma is taken for a thousands separator where it can be one.
    """
    if not text or text[-1].isalpha():
        return None
    if match := _MIXED.fullmatch(text):
        whole, top, bottom = (int(part) for part in match.groups()[1:] if part)
        return (whole + Fraction(top, bottom)) * _sign(match) if bottom else None
    if match := _RATIO.fullmatch(text):
        if text.count("(") != text.count(")"):
            return None
        top_part, bottom_part = (Fraction(part) for part in match.groups()[1:] if part)
        return top_part / bottom_part * _sign(match) if bottom_part else None
    if match := _REPEATING.fullmatch(text):
        fixed, period = int(f"0{match[2]}{match[3]}"), Fraction(int(match[4]), 10 ** len(match[4]) - 1)
        return (fixed + period) / 10 ** len(match[3]) * _sign(match)
    if match := _POWER_OF_TEN.fullmatch(text):
        return _exact(f"{match[1]}1e{match[2]}", text)
    if match := _NUMBER.fullmatch(text):
        return _exact(f"{match[1]}{re.sub('[, ]', '', match[2])}e{match[3] or match[4] or 0}", text)
    return None


def _sign(match: re.Match[str]) -> int:
    return -1 if match[1] == "-" else 1


def _exact(digits: str, text: str) -> Fraction | Decimal | None:
    try:
        value = Decimal(digits)
    except InvalidOperation:
        return None
    return Fraction(value) if len(text) < 400 and abs(value.adjusted()) < 400 else value
