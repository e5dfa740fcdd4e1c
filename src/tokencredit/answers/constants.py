r"""The value of a formula without letters, to 50 digits: two that differ plainly need no algebra.

Reads sums, products, quotients, powers, `\frac`, `\sqrt` and `\pi`, and gives up on everything else, so that what is
called different is different. That two values agree proves nothing here.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, DecimalException

__all__ = ["constant", "plainly_different"]

_CONTEXT = Context(prec=50, Emax=10**6, Emin=-(10**6))
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|\\times |\\(?:frac|sqrt|pi)(?![A-Za-z])|[-+*/^(){}\[\]])\s*")
_SMALL = Decimal("1e-25")
LONGEST = 200  # characters


class _GiveUpError(Exception):
    """The formula has something that is not read here."""


def plainly_different(first: str, second: str) -> bool:
    """Whether both cleaned texts are formulas without letters and their values differ beyond rounding."""
    a = constant(first)
    b = None if a is None else constant(second)
    if a is None or b is None:
        return False
    return abs(a - b) > max(abs(a), abs(b)) * _SMALL


def constant(text: str) -> Decimal | None:
    """The value of a cleaned formula without letters, None where it has something else."""
    if len(text) > LONGEST:
        return None
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        tokens.append(match[1].strip())
        at = match.end()
    try:
        reader = _Reader(tokens)
        value = reader.sum()
        return value if not reader.tokens else None
    except (_GiveUpError, DecimalException, RecursionError):
        return None


class _Reader:
    """Reads tokens from the left; each method leaves what follows its part."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]

    def next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self, expected: str = "") -> str:
        if not self.tokens or (expected and self.tokens[-1] != expected):
            raise _GiveUpError
        return self.tokens.pop()

    def sum(self) -> Decimal:
        total = self.product() if self.next() not in ("+", "-") else Decimal(0)
        while self.next() in ("+", "-"):
            sign = self.take()
            value = self.product()
            total = _CONTEXT.add(total, value) if sign == "+" else _CONTEXT.subtract(total, value)
        return total

    def product(self) -> Decimal:
        value, divided = self.power(), False
        while self.next() and self.next() not in ("+", "-", ")", "}", "]"):
            sign = self.next()
            if sign in ("\\times", "*", "/"):
                self.take()
            if divided and sign != "/":
                raise _GiveUpError  # 1/2 pi is read in two ways
            if sign == "/":
                value, divided = _CONTEXT.divide(value, self.power()), True
            else:
                value = _CONTEXT.multiply(value, self.power())
        return value

    def power(self) -> Decimal:
        base = self.base()
        if self.next() != "^":
            return base
        self.take()
        exponent = self.group() if self.next() == "{" else Decimal(self.digit())
        if (
            self.next() == "^"
            or abs(exponent) > 1000
            or (base <= 0 and exponent != int(exponent))
            or base == 0
        ):
            raise _GiveUpError
        return _CONTEXT.power(base, exponent)

    def digit(self) -> str:
        token = self.take()
        if not re.fullmatch(r"\d", token):
            raise _GiveUpError
        return token

    def group(self) -> Decimal:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value

    def base(self) -> Decimal:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return Decimal(token)
        if token == "\\pi":
            return _PI
        if token == "(":
            value = self.sum()
            self.take(")")
            return value
        if token == "\\frac":
            top = self.group()
            return _CONTEXT.divide(top, self.group())
        if token == "\\sqrt":
            return self.root()
        raise _GiveUpError

    def root(self) -> Decimal:
        degree = Decimal(2)
        if self.next() == "[":
            self.take()
            degree = Decimal(self.digit())
            self.take("]")
        value = self.group()
        if value <= 0 or degree == 0:
            raise _GiveUpError
        return _CONTEXT.power(value, _CONTEXT.divide(Decimal(1), degree))
