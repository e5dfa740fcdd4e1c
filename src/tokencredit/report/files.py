"""Files that survive a crash: JSON lines that are appended whole, and documents that appear whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokencredit.errors import UsageError


def write_atomic(path: str | Path, text: str) -> Path:
    """Write `text` (UTF-8) so that `path` holds either its old content or all of the new one.

    Missing parent folders are made. Raises UsageError if the place cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text.encode("utf-8", "replace"))
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def plain_json(value: Any) -> Any:
    """Return `value` as JSON can hold it: arrays and tensors as lists, NaN and infinities as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    return value


def append_line(path: str | Path, value: Mapping[str, Any]) -> None:
    """Append one JSON object as one line, flushed, or nothing; a line that a killed writer left cut off goes first.

    Raises UsageError if the file cannot be written.
    """
    line = json.dumps(plain_json(value), allow_nan=False) + "\n"
    try:
        with open(path, "ab+", buffering=0) as file:
            _mend_tail(file)
            end = file.seek(0, os.SEEK_END)
            try:
                _write_all(file, line.encode())
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _write_all(file: Any, data: bytes) -> None:
    """An unbuffered file takes as much as there is room for, and complains only if there is none."""
    while data:
        data = data[file.write(data) :]


def _mend_tail(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    tail = file.read().rpartition(b"\n")[2]
    try:
        json.loads(tail)
        file.write(b"\n")
    except ValueError:
        file.truncate(end - len(tail))
    file.seek(0, os.SEEK_END)


def read_lines(path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    """Read JSON lines as (line number from 1, object); a file that is not there has none.

    A broken last line is what a killed writer leaves and is ignored. Raises UsageError, with file and line,
    for any other line that is not a JSON object.
    """
    path = Path(path)
    if not path.exists():
        return []
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    lines = [(number, line) for number, line in enumerate(raw, start=1) if line.strip()]
    found = []
    for number, line in lines:
        try:
            value = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError) as error:
            if number == lines[-1][0]:
                break
            raise UsageError(f"{path}, line {number}: not JSON; remove or mend the line") from error
        if not isinstance(value, dict):
            raise UsageError(f"{path}, line {number}: expected a JSON object, found {type(value).__name__}")
        found.append((number, value))
    return found
