"""What runs in the worker processes: two formulas compared by math-verify and sympy.

The worker runs this file by its path. It imports neither torch nor the rest of this package, so that the
worker starts quickly and stays small, and it loads sympy inside its functions: the parent reads the limits.
One process loads the libraries; each worker is a fork of it, so that a worker which exceeded its limits is replaced
in milliseconds.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

__all__ = ["BEGUN", "LIMITED", "MEMORY_LIMIT", "READY", "TIME_LIMIT"]

TIME_LIMIT = 1.5  # seconds of computing for one pair
MEMORY_LIMIT = 1 << 30  # bytes of address space for one worker
GROWTH_LIMIT = 100 << 10  # kilobytes that a worker may grow before it is replaced
READY = "ready"  # what a worker says first
LIMITED = "ready, after one that took too long"  # the same, where its forerunner was ended by the time limit
BEGUN = "begun"  # what it says to each question before the reply, so that the parent knows which ones died with it
_WARM = (
    r"\frac{3}{4}x^{2}+5x-\sqrt{2}",
    r"(-\infty,1]\cup(3,\infty)",
    r"\begin{pmatrix}1&-2\\3&\frac{1}{2}\end{pmatrix}",
    r"\sin^{2}(x)+\cos(2x)",
    r"\log_{2}(x)+\ln y",
    r"e^{-2t}+C_{1}e^{t}",
    r"\{1,x\}",
    r"x_{1}+y=3(x-1)",
    r"x\geq 3",
)
POINTS = 5  # at which expressions must agree
STEPPED_POINTS = 25  # the same for those that are constant between steps, over a wider range
DIGITS = 60  # to which they must agree


@lru_cache(maxsize=256)
def _parse(latex: str) -> Any:
    """The sympy object of the whole text, decimals as exact fractions; raises where it does not parse."""
    import re

    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import Derivative, Float, I, Rational, Symbol
    from sympy.logic.boolalg import BooleanAtom

    imaginary = r"(?<![A-Za-z\\_])(?<!_\{)i(?![A-Za-z])"
    complex_numbers = re.search(imaginary, latex) is not None and not re.search(r"_\{?i\s*=", latex)
    value: Any = latex2sympy(
        latex,
        is_real=not complex_numbers,
        normalization_config=NormalizationConfig(malformed_operators=True, boxed="none"),
        conversion_config=ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False),
    )
    if hasattr(value, "atoms"):
        exact: dict[Any, Any] = {f: Rational(str(f)) for f in value.atoms(Float)}
        # dM/dt of a letter M is a quantity of its own, not the 0 of a constant
        rates = [d for d in value.atoms(Derivative) if d.expr.is_Symbol and d.expr not in d.variables]
        exact |= {d: Symbol(str(d), real=not complex_numbers or None) for d in rates}
        exact |= {s: I for s in value.atoms(Symbol) if s.name == "i" and complex_numbers}
        value = value.xreplace(exact) if exact else value
    if value is None or isinstance(value, bool | BooleanAtom):
        raise ValueError("no expression")
    return value


def compare(request: list[str]) -> str:
    """Compares [gold, answer] or, within a tolerance, [gold, answer, tolerance]; parses a lone [gold]."""
    values = []
    for text, whose in zip(request[:2], ("gold", "answer"), strict=False):
        try:
            values.append(_parse(text))
        except MemoryError:
            raise
        except Exception:
            return f"the {whose} cannot be parsed"
    if len(values) == 1:
        return "same"
    return "same" if _same(*values, *request[2:]) else "different"


def _same(gold: Any, answer: Any, tolerance: str | None = None) -> bool:
    from sympy import Eq, Expr, MatrixBase, Rational

    if isinstance(gold, Expr) and isinstance(answer, Expr):
        if tolerance is not None:
            difference = (gold.doit() - answer.doit()).evalf(30)
            return bool(difference.is_number and abs(difference) <= Rational(tolerance))
        return _same_expression(gold, answer)
    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        return gold.shape == answer.shape and all(map(_same_expression, gold.flat(), answer.flat()))
    if isinstance(gold, Eq) and isinstance(answer, Eq):
        return _same_equation(gold, answer)
    if isinstance(gold, Eq) != isinstance(answer, Eq) and not _names_its_side(gold, answer):
        return False
    from math_verify import verify

    return bool(
        verify(
            gold,
            answer,
            float_rounding=DIGITS,
            numeric_precision=DIGITS,
            timeout_seconds=None,
            allow_set_relation_comp=True,
        )
    )


def _names_its_side(gold: Any, answer: Any) -> bool:
    """Whether the one equation of the two only names its right side, as "x = 5" and "a + b = 5" do for the answer 5.

    "x + 1 = 5" does not, nor does "x + y = 0"; and a gold that is an equation asks for one.
    """
    from sympy import Eq

    equation = gold if isinstance(gold, Eq) else answer
    left = equation.lhs
    if left.is_Symbol or getattr(left, "is_Function", False):
        return True
    if len(left.free_symbols) > 1:
        return equation is answer and equation.rhs != 0
    return not left.free_symbols and _same_expression(left, equation.rhs)


def _same_equation(gold: Any, answer: Any) -> bool:
    """Whether two equations differ by a constant factor: their solutions are then the same."""
    from sympy import Expr, fraction, together

    sides = [(e.lhs, e.rhs) for e in (gold, answer)]
    if not all(isinstance(side, Expr) for pair in sides for side in pair):
        return all(_same(a, b) for a, b in zip(*sides, strict=True))
    if gold.free_symbols != answer.free_symbols or not gold.free_symbols:
        return all(_same_expression(a, b) for a, b in zip(*sides, strict=True))
    if all(_same_expression(a, b) for a, b in zip(*sides, strict=True)):
        return True
    first, second = (fraction(together(left - right))[0] for left, right in sides)
    if first.is_zero or second.is_zero:
        return False
    ratios = [a / b for a, b in _values(first, second) if abs(a) > 10**-DIGITS and abs(b) > 10**-DIGITS]
    return len(ratios) >= 3 and all(_close(ratio, ratios[0]) for ratio in ratios[1:])


def _same_expression(gold: Any, answer: Any) -> bool:
    """Exact for rationals; else equal to 60 digits, relative to the size, at several points of the variables."""
    from sympy import nan, simplify, zoo

    if any(value.has(zoo, nan) for value in (gold, answer)):
        return False
    if gold == answer:
        return True
    gold, answer = gold.doit(), answer.doit()
    if gold == answer or (gold.is_Rational and answer.is_Rational):
        return bool(gold == answer)
    if gold.is_finite is False or answer.is_finite is False:
        return False
    values = _values(gold, answer)
    if not all(_close(a, b) for a, b in values) or _apart(gold - answer):
        return False
    return len(values) >= (1 if not gold.free_symbols | answer.free_symbols else 3) or bool(
        simplify(gold - answer) == 0
    )


def _apart(difference: Any) -> bool:
    """Whether a difference of numbers is plainly not 0, though it may be small beside them, as in 2^1000 + sqrt(2)."""
    if difference.free_symbols or not difference.is_number:
        return False
    value = difference.evalf(15, maxn=400)
    return bool(value.is_Float and value._prec > 1 and abs(value) > 10**-DIGITS)


def _close(a: Any, b: Any) -> bool:
    if a.is_Rational and b.is_Rational:
        return bool(a == b)
    return bool(abs(a - b) <= max(abs(a), abs(b)) * 10**-DIGITS)


def _values(first: Any, second: Any) -> list[tuple[Any, Any]]:
    """Both expressions at a few points, where both have real values (complex ones if they hold an i)."""
    from sympy import Derivative, Dummy, I, Integer, Max, Min, Mod, Rational, ceiling, floor, sign, zoo
    from sympy.core.function import AppliedUndef

    unknown = first.atoms(AppliedUndef, Derivative) | second.atoms(AppliedUndef, Derivative)
    names = {f: Dummy() for f in sorted(unknown, key=lambda f: (-f.count_ops(), str(f)))}
    first, second = first.subs(names), second.subs(names)
    symbols = sorted(first.free_symbols | second.free_symbols, key=lambda s: (s.name, str(s)))
    stepped = any(value.has(floor, ceiling, Mod, sign, Max, Min) for value in (first, second))
    points = 1 if not symbols else STEPPED_POINTS if stepped else POINTS
    allowed = first.has(I) or second.has(I) or not symbols
    found = []
    for point in range(points):
        at = {
            s: Rational((37 * (k + 1) * (k + 3) + 53 * point * (k + 2)) % 97 + 3, 41)
            * (-1 if 2 < point < STEPPED_POINTS // 2 and (k + point) % 2 else 1)
            * (point**2 if point >= POINTS else 1)
            for k, s in enumerate(symbols)
        }
        at |= {s: Integer(2 + point + k) for k, s in enumerate(symbols) if s.is_integer}
        pair = [expression.xreplace(at) for expression in (first, second)]
        pair = [value if value.is_Rational else value.evalf(DIGITS + 20, maxn=400) for value in pair]
        if all(
            v.is_number and v.is_finite is not False and v != zoo and not v.free_symbols for v in pair
        ) and (allowed or all(v.is_real is not False for v in pair)):
            found.append((pair[0], pair[1]))
    return found


def _serve(connection: Any, greeting: str) -> None:
    """A worker's loop: one JSON list a line in, two lines out, until the input ends or nobody reads; then exits."""
    import json
    import resource
    import signal

    def say(line: str) -> None:
        try:
            connection.sendall(f"{line}\n".encode())
        except OSError:  # the parent was killed
            os._exit(0)

    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with connection, connection.makefile("r") as requests:
        say(greeting)
        for line in requests:
            say(BEGUN)
            signal.setitimer(
                signal.ITIMER_PROF, TIME_LIMIT
            )  # the system ends the process then, whatever it computes
            try:
                request, limit = json.loads(line)
                signal.setitimer(signal.ITIMER_PROF, limit)
                reply = compare(request)
            except (Exception, MemoryError) as error:
                reply = f"not comparable: {type(error).__name__}"
            signal.setitimer(signal.ITIMER_PROF, 0)
            say(reply)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun > GROWTH_LIMIT:
                os._exit(1)  # the next worker begins small again
    os._exit(0)


def _limit_memory() -> None:
    import resource
    from contextlib import suppress

    with suppress(ValueError, OSError):  # the system sets no such limit, or a lower one
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def _keep_workers(descriptors: list[int]) -> None:
    """Forks a worker for each connection and another for each one that ends, until the connections are closed."""
    import logging
    import signal
    import socket

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    sys.setrecursionlimit(3000)
    _limit_memory()
    for warm in _WARM:
        compare([warm, "2"])  # loads the modules and the parser's tables, which the workers inherit
    connections = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    running: dict[int, socket.socket] = {}
    waiting, greeting = list(connections), READY
    while running or waiting:
        for connection in waiting:
            pid = os.fork()
            if pid == 0:
                for other in connections:
                    if other is not connection:
                        other.close()
                _serve(connection, greeting)
            running[pid] = connection
        pid, status = os.wait()
        ended = running.pop(pid)
        waiting = [] if status == 0 else [ended]
        greeting = LIMITED if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF else READY


if __name__ == "worker":
    os.dup2(2, 1)
    _keep_workers([int(argument) for argument in sys.argv[2:]])
