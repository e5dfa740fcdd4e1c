"""All contenders on all completions of one subject, batch by batch, and the means of what they gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tokencredit.errors import UsageError
from tokencredit.fidelity.batch import BatchRun
from tokencredit.fidelity.plan import Measured, Plan, Tell
from tokencredit.fidelity.subjects import Subject, batches, write
from tokencredit.fidelity.summary import summarise
from tokencredit.policy import Policy

Keep = Callable[[int, Measured], None]
"""Told what each batch gave, by its number, once it is measured; not of those in which there was nothing to measure."""


def measure(
    subject: Subject,
    plan: Plan,
    tell: Tell,
    done: Mapping[int, Measured] = MappingProxyType({}),
    keep: Keep = lambda number, measured: None,
) -> Measured:
    """Writes completions batch by batch and measures every contender on them.

    Args:
        done: what an earlier run with the same settings kept, by the number of the batch; it is not measured again.

    Raises:
        UsageError: no completion has an answer after at least two tokens, or a task's words are not the tokens of the
            policy's tokenizer.
    """
    policy, found = Policy(subject.model), Measured()
    for number, problems in enumerate(batches(subject, plan.batch_size)):
        if number in done:
            tell(done[number].written * plan.steps, "completions")
            found.add(done[number])
            continue
        tell(0, "completions")
        sampled = write(subject, problems)
        kept = sampled.rollouts.shape[0]
        measured = Measured(written=sampled.written, failed=sampled.failed)
        if kept:
            measured = BatchRun(policy, subject, plan, sampled).measure(tell)
            keep(number, measured)
        found.add(measured)
        tell((sampled.written - kept) * plan.steps, "completions")
    if not found.rows:
        raise UsageError(_nothing(subject, found.written))
    return found


def _nothing(subject: Subject, written: int) -> str:
    which = f"none of the {written} completions of {subject.policy} for {subject.source}"
    if subject.probe is None:
        return (
            f"{which} has an answer after some reasoning, so there is nothing to measure; ask for missing answers with "
            "--probe, or let it write more tokens"
        )
    return f"{which} has two tokens of reasoning, so there is nothing to measure; let it write more tokens"


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
                "draws": found.drawing[name],
                **summarise(each, seed),
            }
            for name, each in rows.items()
        },
    }
