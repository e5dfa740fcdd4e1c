"""Step verifiers by name: callables (prompts, steps of each completion) -> the verdict on each step."""

from __future__ import annotations

import importlib
import os
import sys

from tokencredit.errors import UsageError
from tokencredit.grounding import StepVerifier


def get_verifier(name: str) -> StepVerifier:
    """`arithmetic`, `task`, `lean:FOLDER` of a Lean 4 project, or a dotted path such as my.verifiers.f.

    Raises:
        UsageError: there is none of that name, or it cannot work here.
    """
    if name == "arithmetic":
        from tokencredit.answers.arithmetic_steps import arithmetic_verdicts

        return arithmetic_verdicts
    if name == "task":
        from tokencredit.tasks.step_verdicts import task_verdicts

        return task_verdicts
    if name.startswith("lean:"):
        from tokencredit.answers.lean_steps import LeanSteps

        return LeanSteps(name.removeprefix("lean:"))
    module, _, function = name.rpartition(".")
    if not module:
        raise UsageError(
            f"no step verifier {name!r}; use arithmetic, task, lean:FOLDER or a dotted path such as my.verifiers.f"
        )
    sys.path.insert(0, os.getcwd())
    try:
        found: StepVerifier = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import the step verifier {name!r}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    return found
