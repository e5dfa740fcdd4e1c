"""One batch of completions on its way through all contenders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import torch

from tokencredit.credit import STRATEGIES, Options, TokenCredit, assign
from tokencredit.errors import UsageError
from tokencredit.fidelity.baselines import COMPARED
from tokencredit.fidelity.causal import Curves, causal_curves
from tokencredit.fidelity.figures import fatal_figures, path_figures, role_figures, step_figures
from tokencredit.fidelity.nearness import agreement
from tokencredit.fidelity.plan import Contender, Measured, Plan, Tell
from tokencredit.fidelity.ranking import Figures
from tokencredit.fidelity.scores import blame, magnitude
from tokencredit.fidelity.subjects import Sampled, Subject
from tokencredit.policy import Policy
from tokencredit.report.records import annotate, share_by_role
from tokencredit.report.token_record import token_record
from tokencredit.tasks import ROLES

REFERENCE = "oar-p"


@dataclass(frozen=True)
class Assigned:
    """A contender's credit, the seconds it took, and whether random numbers went into it."""

    credit: TokenCredit
    seconds: float
    draws: bool


class WatchedOptions(Options):
    """Options that note whether their seed is read: without it a strategy has no random numbers.

    Comparing the credit of two seeds would not do: labels drawn from a confident outcome are mostly the same.
    """

    seed_was_read: bool

    def __getattribute__(self, name: str) -> Any:
        if name == "seed":
            object.__setattr__(self, "seed_was_read", True)
        return super().__getattribute__(name)


def watched(options: Options) -> WatchedOptions:
    """The same options, their seed not read yet."""
    found = WatchedOptions(**asdict(options))
    object.__setattr__(found, "seed_was_read", False)
    return found


class BatchRun:
    """Measures every contender on one batch of completions.

    Raises:
        UsageError: a task's words are not the tokens of the policy's tokenizer.
    """

    def __init__(self, policy: Policy, subject: Subject, plan: Plan, sampled: Sampled) -> None:
        self.policy, self.subject, self.plan = policy, subject, plan
        self.rollouts, self.spans = sampled.rollouts, sampled.spans
        self.found = Measured(written=sampled.written, failed=sampled.failed)
        self.logps = policy.token_logps(sampled.rollouts)
        self.truths = self._truths() if subject.task else []
        self.done: dict[tuple[Any, Options], Assigned] = {}

    def measure(self, tell: Tell) -> Measured:
        """What the batch gave."""
        rows = len(self.spans)
        reference = None
        if self.plan.reference:
            tell(0, "exact oar-p")
            exact = Contender(REFERENCE, STRATEGIES[REFERENCE], replace(self.plan.options, m=0))
            reference = self._assigned(exact).credit
        credits: dict[str, TokenCredit] = {}
        figures: dict[str, list[Figures]] = {}
        for contender in self.plan.contenders:
            name = contender.name
            tell(0, name)
            assigned = self._assigned(contender)
            credits[name] = assigned.credit
            self.found.seconds[name], self.found.drawing[name] = assigned.seconds, assigned.draws
            figures[name] = self._figures(contender, assigned, reference)
            tell(rows, name)
        tell(0, "causal checks")
        scores = [magnitude(credit) for credit in credits.values()]
        curves = causal_curves(self.policy, self.rollouts, scores, self.plan.options)
        for (name, credit), own in zip(credits.items(), curves, strict=True):
            self._add(name, credit, figures[name], own)
        self._add_over_baselines()
        tell(rows, "causal checks")
        return self.found

    def _assigned(self, contender: Contender) -> Assigned:
        """The contender's credit; once only where two are the same."""
        key = (contender.strategy.function, contender.options)
        if key not in self.done:
            options = watched(contender.options)
            _wait()
            started = time.perf_counter()
            credit = assign(contender.strategy, self.policy, self.rollouts, options)
            _wait()
            self.done[key] = Assigned(credit, time.perf_counter() - started, options.seed_was_read)
        return self.done[key]

    def _figures(
        self, contender: Contender, assigned: Assigned, reference: TokenCredit | None
    ) -> list[Figures]:
        """Of each row."""
        credit = assigned.credit
        mask = self.rollouts.reasoning_mask
        rows: list[Figures] = [{} for _ in self.spans]
        if self.truths:
            scores, blames = magnitude(credit).double().cpu().numpy(), blame(credit).double().cpu().numpy()
            assert self.rollouts.rewards is not None and self.rollouts.steps is not None
            for row, truth in enumerate(self.truths):
                tokens = mask[row].nonzero().squeeze(1).tolist()
                on_path = [truth["on_path"][token] for token in tokens]
                rows[row] |= path_figures(scores[row, tokens], on_path)
                if self.rollouts.rewards[row] <= 0 and credit.rows[row]:
                    right = [truth["right"][token] for token in tokens]
                    rows[row] |= step_figures(blames[row, tokens], on_path, right)
                    steps = self.rollouts.steps[row, tokens].tolist()
                    rows[row] |= fatal_figures(blames[row, tokens], steps, on_path, right)
        if reference is not None:
            for row, near in enumerate(agreement(credit, reference, mask)):
                rows[row] |= {f"exact_{name}": value for name, value in near.items()}
        if self.plan.draws > 1 and assigned.draws:
            for row, near in enumerate(self._between_draws(contender, credit)):
                rows[row] |= {f"draws_{name}": value for name, value in near.items()}
        return rows

    def _between_draws(self, contender: Contender, credit: TokenCredit) -> list[Figures]:
        """Mean over the pairs of draws."""
        options = contender.options
        others = [
            assign(contender.strategy, self.policy, self.rollouts, replace(options, seed=options.seed + draw))
            for draw in range(1, self.plan.draws)
        ]
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
            if self.truths:
                found["by_role"] = self._by_role(credit, row)
            self.found.rows.append(found)
            if completion < self.plan.kept:
                record = token_record(subject.tokenizer, rollouts, row, spans, self.logps, credit, row)
                record |= {"step": 0, **about, "rule": "probe" if spans.answer is None else spans.rule}
                self.found.records.append(record | (self.truths[row] if self.truths else {}))

    def _by_role(self, credit: TokenCredit, row: int) -> dict[str, Figures]:
        mask = self.rollouts.completion_mask[row]
        about = {
            "roles": self.truths[row]["roles"],
            "importance": credit.importance[row][mask].tolist(),
            "weights": credit.weights[row][mask].tolist(),
        }
        return role_figures(share_by_role([about]), ROLES)

    def _add_over_baselines(self) -> None:
        """The areas less those of each of `COMPARED` on the same completion."""
        by_name = {(row["credit"], row["row"]): row["figures"] for row in self.found.rows}
        for (_, completion), figures in by_name.items():
            for game in ("deletion", "insertion"):
                for name in COMPARED:
                    other = by_name[name, completion][f"{game}_area"]
                    figures[f"{game}_over_{name}"] = figures[f"{game}_area"] - other

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


def _wait() -> None:
    """Until the accelerator is done, or the clock would miss its work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
