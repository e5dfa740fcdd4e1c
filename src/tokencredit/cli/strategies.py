"""`tokencredit strategies`: the credit strategies and what each of them measures."""

from __future__ import annotations

from tokencredit.cli import OneLineParser


def run(argv: list[str]) -> int:
    """Print one line a strategy, those of other packages included."""
    OneLineParser(prog="tokencredit strategies", description="List the credit strategies.").parse_args(argv)
    from importlib.metadata import entry_points

    from tokencredit.credit import STRATEGIES, get_strategy

    names = [*STRATEGIES, *(entry.name for entry in entry_points(group="tokencredit.strategies"))]
    width = max(map(len, names)) + 2
    for name in names:
        print(f"{name:{width}}{get_strategy(name).summary}")
    return 0
