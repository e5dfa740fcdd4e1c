"""What is measured, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokencredit.credit import STRATEGIES, Options, Strategy
from tokencredit.fidelity.baselines import BASELINES

Tell = Callable[[int, str], None]
"""Told how many more steps of `Plan.steps` a number of completions have had, and what is at work."""


@dataclass(frozen=True)
class Contender:
    """A strategy with its options, under the name that the user gave it."""

    name: str
    strategy: Strategy
    options: Options


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        contenders: with all of `BASELINES`.
        options: of the reference, and of the causal checks.
        draws: independent draws that are compared, at least 1: none.
        batch_size: completions that are written and credited at once.
        reference: whether exact OAR-P is computed and compared with.
        kept: completions of each subject whose tokens are kept as records.
    """

    contenders: Sequence[Contender]
    options: Options
    draws: int = 2
    batch_size: int = 64
    reference: bool = True
    kept: int = 32

    @property
    def steps(self) -> int:
        """Of each completion, for the sake of progress: the credit of each contender, and the causal checks."""
        return len(self.contenders) + 1


@dataclass
class Measured:
    """Of one batch of completions, or of several together.

    Attributes:
        rows: a dictionary for each contender's completion, with its `figures`, `by_role` and `curves`.
        records: the first completions with their tokens, one a contender.
        seconds: what each contender took in all.
        drawing: which contenders draw random numbers.
        written, failed: completions, those left out included.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    drawing: dict[str, bool] = field(default_factory=dict)
    written: int = 0
    failed: int = 0

    def add(self, other: Measured) -> None:
        """Takes up what another batch gave."""
        self.rows += other.rows
        self.records += other.records
        for name, seconds in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        for name, draws in other.drawing.items():
            self.drawing[name] = self.drawing.get(name, False) or draws
        self.written += other.written
        self.failed += other.failed


def with_baselines(contenders: Sequence[Contender], options: Options) -> list[Contender]:
    """The contenders and those of `BASELINES` that are not among them by name."""
    names = {contender.name for contender in contenders}
    added = [Contender(name, STRATEGIES[name], options) for name in BASELINES if name not in names]
    return [*contenders, *added]
