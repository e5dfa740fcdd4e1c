"""A step verifier for the built-in tasks: the known truth."""

from __future__ import annotations

from collections.abc import Sequence

from tokencredit.tasks.truth import annotate

__all__ = ["task_verdicts"]


def task_verdicts(prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[list[bool | None]]:
    """Whether each step of a completion computes what the prompt says, rightly, from the result before it; None for
    steps that cannot be read (see `TokenTruth.right`).

    Raises:
        UsageError: a prompt is not one of the built-in tasks'.
    """
    found = []
    for prompt, row in zip(prompts, steps, strict=True):
        words = [step.split() for step in row]
        truths = iter(annotate(prompt, [word for step in words for word in step]))
        rights = [[next(truths).right for _ in step] for step in words]
        found.append([False if False in right else True if True in right else None for right in rights])
    return found
