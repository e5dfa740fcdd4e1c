"""Credit of many completions by many strategies, and the figures of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch

from tokencredit.credit import STRATEGIES, Options, Strategy, TokenCredit, assign
from tokencredit.errors import UsageError
from tokencredit.fidelity.agreement import agreement
from tokencredit.fidelity.causal import Curves, causal_curves
from tokencredit.fidelity.figures import path_figures, role_figures, step_figures
from tokencredit.fidelity.ranking import Figures
from tokencredit.fidelity.scores import blame, magnitude
from tokencredit.fidelity.subjects import Sampled, Subject, write
from tokencredit.fidelity.summary import summarise
from tokencredit.policy import Policy
from tokencredit.report.records import annotate, share_by_role
from tokencredit.report.token_record import token_record
from tokencredit.rollouts import Rollouts
from tokencredit.tasks import ROLES

BASELINES = ("position", "random", "entropy", "uniform")
REFERENCE = "oar-p"
Tell = Callable[[int, str], None]
"""Told how many more completions a strategy has had, and which strategy is at work."""


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


@dataclass
class Measured:
    """Of one subject.

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


def with_baselines(contenders: Sequence[Contender], options: Options) -> list[Contender]:
    """The contenders and those of `BASELINES` that are not among them by name."""
    names = {contender.name for contender in contenders}
    added = [Contender(name, STRATEGIES[name], options) for name in BASELINES if name not in names]
    return [*contenders, *added]


def measure(subject: Subject, plan: Plan, tell: Tell) -> Measured:
    """Writes completions batch by batch and measures every contender on them.

    Raises:
        UsageError: no completion has an answer after at least two tokens, or a task's words are not the tokens of the
            policy's tokenizer.
    """
    policy, found = Policy(subject.model), Measured()
    tell(0, "completions")
    for sampled in write(subject, plan.batch_size):
        found.written += sampled.written
        found.failed += sampled.failed
        if sampled.rollouts.shape[0]:
            _Batch(policy, subject, plan, sampled, found).measure(tell)
        tell((sampled.written - sampled.rollouts.shape[0]) * len(plan.contenders), "completions")
    if not found.rows:
        raise UsageError(
            f"none of the {found.written} completions of {subject.policy} for {subject.source} has an answer after "
            "some reasoning, so there is nothing to measure; ask for missing answers with --probe, or let it write "
            "more tokens"
        )
    return found


def result(subject: Subject, plan: Plan, found: Measured, seed: int) -> dict[str, Any]:
    """All means of one subject, see `summary.summarise`."""
    rows = {c.name: [r for r in found.rows if r["credit"] == c.name] for c in plan.contenders}
    measured = len(next(iter(rows.values())))
    return {
        "source": subject.source,
        "policy": subject.policy,
        "problems": len(subject.prompts),
        "completions": found.written,
        "measured": measured,
        "failed": found.failed if subject.task else None,
        "strategies": {
            name: {
                "seconds_per_completion": found.seconds[name] / measured,
                "draws": found.drawing.get(name),
                **summarise(each, seed),
            }
            for name, each in rows.items()
        },
    }


class _Batch:
    """One batch of completions on its way through all contenders."""

    def __init__(
        self, policy: Policy, subject: Subject, plan: Plan, sampled: Sampled, found: Measured
    ) -> None:
        self.policy, self.subject, self.plan, self.found = policy, subject, plan, found
        self.rollouts, self.spans = sampled.rollouts, sampled.spans
        self.logps = policy.token_logps(sampled.rollouts)
        self.truths = self._truths() if subject.task else []
        self.done: dict[tuple[Any, Options], tuple[TokenCredit, float]] = {}

    def measure(self, tell: Tell) -> None:
        rows = self.rollouts.shape[0]
        reference = None
        if self.plan.reference:
            tell(0, "exact oar-p")
            exact = Contender(REFERENCE, STRATEGIES[REFERENCE], replace(self.plan.options, m=0))
            reference, _ = self._assigned(exact)
        curves: dict[str, Curves] = {}
        for contender in self.plan.contenders:
            tell(0, contender.name)
            credit, seconds = self._assigned(contender)
            name = contender.name
            self.found.seconds[name] = self.found.seconds.get(name, 0.0) + seconds
            curves[name] = causal_curves(self.policy, self.rollouts, magnitude(credit), self.plan.options)
            figures = self._figures(contender, credit, reference)
            self._add(name, credit, figures, curves[name])
            tell(rows, name)
        self._add_over_random(curves)

    def _assigned(self, contender: Contender) -> tuple[TokenCredit, float]:
        """The contender's credit and the seconds it took; once only where two are the same."""
        key = (contender.strategy.function, contender.options)
        if key not in self.done:
            _wait()
            started = time.perf_counter()
            credit = assign(contender.strategy, self.policy, self.rollouts, contender.options)
            _wait()
            self.done[key] = credit, time.perf_counter() - started
        return self.done[key]

    def _figures(
        self, contender: Contender, credit: TokenCredit, reference: TokenCredit | None
    ) -> list[Figures]:
        """Of each row."""
        mask = self.rollouts.reasoning_mask
        rows: list[Figures] = [{} for _ in self.spans]
        if self.truths:
            scores, blames = magnitude(credit).double().cpu().numpy(), blame(credit).double().cpu().numpy()
            assert self.rollouts.rewards is not None
            for row, truth in enumerate(self.truths):
                tokens = mask[row].nonzero().squeeze(1).tolist()
                on_path = [truth["on_path"][token] for token in tokens]
                rows[row] |= path_figures(scores[row, tokens], on_path)
                if self.rollouts.rewards[row] <= 0:
                    right = [truth["right"][token] for token in tokens]
                    rows[row] |= step_figures(blames[row, tokens], on_path, right)
        if reference is not None:
            for row, near in enumerate(agreement(credit, reference, mask)):
                rows[row] |= {f"exact_{name}": value for name, value in near.items()}
        if self.plan.draws > 1 and self._draws(contender):
            for row, near in enumerate(self._between_draws(contender, credit)):
                rows[row] |= {f"draws_{name}": value for name, value in near.items()}
        return rows

    def _draws(self, contender: Contender) -> bool:
        """Whether another seed gives other credit, found out on the first rows."""
        name = contender.name
        if name not in self.found.drawing:
            few = self.rollouts.select(
                torch.arange(min(len(self.spans), max(2, self.subject.decoding.samples)))
            )
            one, other = (self._drawn(contender, few, draw) for draw in range(2))
            self.found.drawing[name] = _differ(one, other)
        return self.found.drawing[name]

    def _drawn(self, contender: Contender, rollouts: Rollouts, draw: int) -> TokenCredit:
        options = replace(contender.options, seed=contender.options.seed + draw)
        return assign(contender.strategy, self.policy, rollouts, options)

    def _between_draws(self, contender: Contender, credit: TokenCredit) -> list[Figures]:
        """Mean over the pairs of draws."""
        others = [self._drawn(contender, self.rollouts, draw) for draw in range(1, self.plan.draws)]
        pairs = [
            agreement(one, other, self.rollouts.reasoning_mask)
            for one, other in combinations([credit, *others], 2)
        ]
        return [_mean(figures) for figures in zip(*pairs, strict=True)]

    def _add(self, name: str, credit: TokenCredit, figures: list[Figures], curves: Curves) -> None:
        rollouts, subject = self.rollouts, self.subject
        assert rollouts.groups is not None and rollouts.row_keys is not None and rollouts.rewards is not None
        deletion, insertion = (area.tolist() for area in curves.areas)
        for row, spans in enumerate(self.spans):
            completion = int(rollouts.row_keys[row])
            about = {
                "source": subject.source,
                "policy": subject.policy,
                "credit": name,
                "row": completion,
                "reward": float(rollouts.rewards[row]) if subject.task else None,
            }
            found: dict[str, Any] = {
                **about,
                "problem": int(rollouts.groups[row]),
                "figures": figures[row] | {"deletion_area": deletion[row], "insertion_area": insertion[row]},
                "curves": {
                    part: getattr(curves, part)[row].tolist() for part in ("shares", "deletion", "insertion")
                },
            }
            if self.truths or completion < self.plan.kept:
                record = token_record(subject.tokenizer, rollouts, row, spans, self.logps, credit, row)
                record |= {"step": 0, **about, "rule": "probe" if spans.answer is None else spans.rule}
                if self.truths:
                    record |= self.truths[row]
                    found["by_role"] = role_figures(share_by_role([record]), ROLES)
                if completion < self.plan.kept:
                    self.found.records.append(record)
            self.found.rows.append(found)

    def _add_over_random(self, curves: Mapping[str, Curves]) -> None:
        """The areas less those of `random` on the same completion."""
        random = {row["row"]: row for row in self.found.rows if row["credit"] == "random"}
        for row in self.found.rows[-len(self.spans) * len(curves) :]:
            other = random[row["row"]]["figures"]
            for name in ("deletion", "insertion"):
                difference = row["figures"][f"{name}_area"] - other[f"{name}_area"]
                row["figures"][f"{name}_over_random"] = difference

    def _truths(self) -> list[dict[str, Any]]:
        """Role, path and rightness of every token, see `tasks.TokenTruth`."""
        assert self.subject.task is not None
        plain: list[Any] = [
            token_record(self.subject.tokenizer, self.rollouts, row, spans, self.logps, None, 0)
            for row, spans in enumerate(self.spans)
        ]
        found = annotate(plain, self.subject.task.name)
        if not all("roles" in record for record in found):
            raise UsageError(
                f"the tokens of {self.subject.policy} are not the words of the task {self.subject.source}; give a "
                "policy that was trained on it"
            )
        return [{name: record[name] for name in ("roles", "on_path", "right")} for record in found]


def _mean(figures: Sequence[Figures]) -> Figures:
    """Mean of each figure, over those that have it."""
    means: Figures = {}
    for name in figures[0]:
        known = [value for each in figures if (value := each[name]) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means


def _differ(one: TokenCredit, other: TokenCredit) -> bool:
    """By more than the rounding that repeated passes on an accelerator may show."""
    for part in ("importance", "weights", "bonus"):
        first, second = getattr(one, part), getattr(other, part)
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-3 * float(first.abs().max()), equal_nan=True):
            return True
    return False


def _wait() -> None:
    """Until the accelerator is done, or the clock would miss its work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
