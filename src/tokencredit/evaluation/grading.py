"""From completions to verdicts and votes."""

from __future__ import annotations

from collections.abc import Sequence

from tokencredit.answers import Verdict, verify
from tokencredit.evaluation.metrics import Scored
from tokencredit.evaluation.tasks import Problem

LONGEST_VOTE = 200
"""Characters of an answer that algebra is still asked about when votes are counted; longer ones agree as texts."""


def grade(completion: str, problem: Problem, *, thinking: bool = False) -> Verdict:
    """The verdict on a completion: right if its answer is one of the golds, or as near as the data set allows.

    `thinking`: the prompt ends in an open think block, see `tokencredit.answers.verify`.
    """
    verdict = Verdict("no-answer", None, "no answer found")
    for gold in problem.golds:
        verdict = verify(completion, gold, thinking=thinking, tolerance=problem.tolerance)
        if verdict.verdict != "wrong":
            return verdict
    return verdict


def votes(answers: Sequence[str | None]) -> list[int | None]:
    """Which answers of one problem are the same: a number for each class, None without an answer.

    Two answers are the same if one verifies against the other; the gold plays no part.
    """
    classes: list[str] = []
    known: dict[str, int] = {}
    numbers: list[int | None] = []
    for answer in answers:
        if answer is None:
            numbers.append(None)
            continue
        if answer not in known:
            known[answer] = next((i for i, each in enumerate(classes) if _same(answer, each)), len(classes))
            if known[answer] == len(classes):
                classes.append(answer)
        numbers.append(known[answer])
    return numbers


def _same(answer: str, other: str) -> bool:
    if max(len(answer), len(other)) > LONGEST_VOTE:
        return answer == other
    return verify(f"\\boxed{{{answer}}}", other).verdict == "right"


def score(samples: Sequence[dict[str, object]]) -> list[Scored]:
    """The kept samples of one problem (see `tokencredit.evaluation.store`) as what metrics are made of."""
    answers = [None if s["answer"] is None else str(s["answer"]) for s in samples]
    return [
        Scored(
            right=s["verdict"] == "right",
            vote=vote,
            truncated=None if s["finish"] is None else s["finish"] == "length",
            tokens=s["tokens"] if isinstance(s["tokens"], int) else None,
        )
        for s, vote in zip(samples, votes(answers), strict=True)
    ]
