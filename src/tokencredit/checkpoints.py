"""Which checkpoint a run can be continued from: written to its end, and not in the middle of a generation batch.

The trainer writes trainer_state.json after everything else, and into it what `contents` gives: the sizes of the
checkpoint's other files, and whether the generation batch was used up.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STATE = "trainer_state.json"
NOTE = "tokencredit"
"""Where in `stateful_callbacks` of trainer_state.json the contents stand."""
_NAME = re.compile(r"checkpoint-(\d+)")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TORCH_STUCK = ("unexpected pos", "file write failed", "iostream error")


def contents(folder: Path, used_up: bool) -> dict[str, Any]:
    """What trainer_state.json is to say of its checkpoint, in the form that the Trainer has for callbacks."""
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {"args": {}, "attributes": {"used_up": used_up, "files": files}}


def last_checkpoint(
    directory: Path, max_steps: int = -1, tell: Callable[[str], None] = lambda line: None
) -> Path | None:
    """The furthest checkpoint that a run of so many steps can be continued from; None if there is none.

    Args:
        max_steps: of the run, below 1 if its epochs say how many.
        tell: is told in a line of each later checkpoint that was passed over, and why.
    """
    passed_over = []
    found = None
    for _, path in sorted(numbered(directory), reverse=True):
        reason = flaw(path, max_steps)
        if reason is None:
            found = path
            break
        passed_over.append(f"{path.name} {reason}")
    for line in passed_over:
        tell(f"{line}; " + (f"going on from {found.name}" if found else "it is of no use"))
    return found


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The directory's checkpoints with their steps, complete or not."""
    return [
        (int(match[1]), path)
        for path in directory.glob("checkpoint-*")
        if (match := _NAME.fullmatch(path.name))
    ]


def flaw(checkpoint: Path, max_steps: int = -1) -> str | None:
    """Say in words what keeps a run of so many steps from going on from a checkpoint; None if nothing does."""
    state = _read_state(checkpoint)
    if state is None:
        return f"was not written to its end (no whole {STATE})"
    step, note = state["global_step"], state.get("stateful_callbacks", {}).get(NOTE, {})
    known = note.get("attributes", {})
    files: Mapping[str, int] | None = known.get("files")
    if files is None and not any(checkpoint.glob("rng_state*.pth")):
        return "holds a model alone, without optimizer and random state"
    for name, size in (files or {}).items():
        path = checkpoint / name
        if not path.is_file():
            return f"has lost its {name}"
        if path.stat().st_size != size:
            return f"has {path.stat().st_size} bytes of {name}, not {size}"
    if not known.get("used_up", True) and not 0 < max_steps <= step:
        return "lies within a generation batch, whose completions it does not hold"
    return None


def _read_state(checkpoint: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((checkpoint / STATE).read_bytes())
        return state if isinstance(state["global_step"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def no_room(error: BaseException) -> str | None:
    """What the system says where a file could not be written for want of room; None for any other error."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in _NO_ROOM else None
    text = str(error)
    # safetensors passes the number on in its text; torch says only that its file did not grow as it should.
    match = re.search(r"\(os error (\d+)\)", text)
    if match and int(match[1]) in _NO_ROOM:
        return os.strerror(int(match[1]))
    stuck = isinstance(error, RuntimeError) and any(sign in text for sign in _TORCH_STUCK)
    return "a file could not be written to its end; is the disk full?" if stuck else None
