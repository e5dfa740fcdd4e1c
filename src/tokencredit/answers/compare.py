"""What runs inside the worker process: two answers compared by math-verify and sympy.

The worker runs this file by its path. It imports neither torch nor the rest of this package, so that the
worker starts quickly and stays small, and it loads sympy inside its functions: the parent reads the limits.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["MEMORY_LIMIT", "TIME_LIMIT"]

TIME_LIMIT = 4.0  # seconds for one pair in the worker
MEMORY_LIMIT = 2 << 30  # bytes of address space for the worker


def _parse(latex: str) -> Any:
    """The sympy object of the whole text, decimals as exact fractions; None where it does not parse."""
    from math_verify import LatexExtractionConfig, parse
    from sympy import Float, Rational

    found = parse(f"${latex}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    if not found:
        return None
    value: Any = found[0]
    floats = value.atoms(Float) if hasattr(value, "atoms") else ()
    return value.xreplace({f: Rational(str(f)) for f in floats}) if floats else value


def _compare(request: list[str]) -> str:
    """In the worker: compares a pair (gold, answer), or says whether a lone gold parses."""
    from math_verify import verify as math_verify
    from sympy import Expr

    gold, answer = _parse(request[0]), _parse(request[-1])
    if gold is None or answer is None:
        return f"the {'gold' if gold is None else 'answer'} cannot be parsed"
    if all(isinstance(value, Expr) and value.is_number for value in (gold, answer)):
        return "same" if _same_constant(gold, answer) else "different"
    return (
        "same"
        if math_verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True)
        else "different"
    )


def _same_constant(gold: Any, answer: Any) -> bool:
    """Exact for rationals; else equal to 60 digits relative to their size, so that tiny numbers differ."""
    gold, answer = gold.doit(), answer.doit()
    if gold == answer or (gold.is_Rational and answer.is_Rational):
        return bool(gold == answer)
    if gold.is_finite is False or answer.is_finite is False:
        return False
    difference, size = (gold - answer).evalf(15, maxn=200), abs(gold.evalf(15))
    return bool(difference == 0 or abs(difference) <= size * 10**-60)


def _serve() -> None:
    """The worker's loop: one JSON list a line in, one line out, until the input ends."""
    import logging
    import signal

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a parser prints stays out of the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    except (ImportError, ValueError, OSError):  # no such limits on this system
        pass
    _compare(["1"])  # loads the modules and the parser's tables
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        if hasattr(signal, "alarm"):
            signal.alarm(int(2 * TIME_LIMIT))  # ends a worker whose parent is gone
        try:
            reply = _compare(json.loads(line))
        except (Exception, MemoryError) as error:
            reply = f"not comparable: {type(error).__name__}"
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        print(reply, file=replies, flush=True)


if __name__ == "worker":
    _serve()
