"""A step verifier for Lean 4: where the first error of a proof is, as the project's own Lean says."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.errors import UsageError

__all__ = ["LeanSteps", "Proof", "first_error_verdicts", "proof_of"]

_FENCE = re.compile(r"^```(?:lean4?)?[^\S\n]*$", re.MULTILINE)
_STATED = re.compile(r"^\s*(?:theorem|lemma|example|def|instance)\b", re.MULTILINE)


@dataclass(frozen=True)
class Proof:
    """A file for Lean, and which of its characters each step's code is.

    Attributes:
        code: the statement and the steps' code.
        places: (start, stop) of each step in it; None for steps that hold no code.
    """

    code: str
    places: list[tuple[int, int] | None]


def proof_of(prompt: str, steps: Sequence[str]) -> Proof:
    """The statement in the prompt (its last fenced block, or all of it), and the completion's steps after it.

    Where the completion has a fenced block, that alone is its code; if it states something itself, the prompt's
    statement is left out.
    """
    text = "".join(steps)
    inside = _fenced(text)
    first, last = inside or (0, len(text))
    fenced = _fenced(prompt)
    statement = prompt[fenced[0] : fenced[1]] if fenced else prompt
    if inside and _STATED.search(text[first:last]):
        statement = ""
    elif not statement.endswith("\n"):
        statement += "\n"
    places: list[tuple[int, int] | None] = []
    end = 0
    for step in steps:
        start, end = end, end + len(step)
        from_, to = max(start, first), min(end, last)
        code = text[from_:to].strip() if from_ < to else ""
        places.append((len(statement) + from_ - first, len(statement) + to - first) if code else None)
    return Proof(statement + text[first:last], places)


def first_error_verdicts(proof: Proof, messages: Sequence[Mapping[str, Any]]) -> list[bool | None]:
    """True for the steps before the first error, False for the step that has it, None for those after it and without
    code.

    Args:
        messages: Lean's, as its REPL writes them: `severity`, `pos` with `line` from 1 and `column` from 0, `data`. An
            error in the statement is one of goals left open, and so of the last step; `sorry` is an error.
    """
    steps = [step for step, place in enumerate(proof.places) if place is not None]
    starts = [place[0] for place in proof.places if place is not None]
    lines = [0, *(match.end() for match in re.finditer("\n", proof.code))]
    errors = []
    for message in messages:
        if message["severity"] == "error" or message["data"].startswith("declaration uses"):
            pos = message["pos"]
            errors.append(lines[min(pos["line"], len(lines)) - 1] + pos["column"])
    verdicts: list[bool | None] = [None] * len(proof.places)
    if not steps:
        return verdicts
    inside = [at for at in errors if at >= starts[0]]
    wrong = bisect_right(starts, min(inside)) - 1 if inside else len(steps) - 1 if errors else len(steps)
    for number, step in enumerate(steps[: wrong + 1]):
        verdicts[step] = number < wrong
    return verdicts


class LeanSteps:
    """A step verifier that runs completions as proofs in a Lean 4 project, by its own toolchain.

    Args:
        project: the folder of a project that `lake build` has built.
        header: what comes before every proof, such as imports.
        limit: seconds for a proof; one that takes longer has no verdicts.

    Raises:
        UsageError: no such project, `lean-interact` is not installed, or Lean does not start.
    """

    def __init__(self, project: str | Path, header: str = "", limit: float = 60.0) -> None:
        self.project, self.header, self.limit = Path(project), header, limit
        if not any((self.project / name).is_file() for name in ("lakefile.toml", "lakefile.lean")):
            raise UsageError(f"{self.project} is no Lean project: it has no lakefile")
        try:
            import lean_interact
        except ImportError as error:
            raise UsageError("Lean needs the extra: pip install 'tokencredit[lean]'") from error
        self._lean: Any = lean_interact
        try:
            config = self._lean.LeanREPLConfig(project=self._lean.LocalProject(directory=str(self.project)))
            self._server = self._lean.AutoLeanServer(config)
        except (RuntimeError, ValueError, OSError) as error:
            said = " ".join(str(error).split())
            raise UsageError(f"Lean does not start in {self.project}: {said}") from error

    def __call__(self, prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[list[bool | None]]:
        """The verdicts on each completion's steps, one proof after the other."""
        return [self._verdicts(proof_of(prompt, row)) for prompt, row in zip(prompts, steps, strict=True)]

    def _verdicts(self, proof: Proof) -> list[bool | None]:
        header = self.header.rstrip() + "\n" if self.header else ""
        shifted = [place and (place[0] + len(header), place[1] + len(header)) for place in proof.places]
        whole = Proof(header + proof.code, shifted)
        try:
            reply = self._server.run(self._lean.Command(cmd=whole.code), timeout=self.limit)
        except (TimeoutError, ConnectionError):
            return [None] * len(proof.places)
        messages = getattr(reply, "messages", None)  # an answer without them says that Lean could not run it
        if messages is None:
            return [None] * len(proof.places)
        return first_error_verdicts(whole, [message.model_dump(by_alias=True) for message in messages])


def _fenced(text: str) -> tuple[int, int] | None:
    """Where the code of the last fenced block begins and ends; a block may be open at the end."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return None
    opening = fences[-2] if len(fences) % 2 == 0 else fences[-1]
    closing = fences[-1].start() if len(fences) % 2 == 0 else len(text)
    return min(opening.end() + 1, closing), closing
