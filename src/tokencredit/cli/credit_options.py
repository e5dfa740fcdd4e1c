"""Strategies and their options as they are written on the command line, and files that can be written."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokencredit.errors import UsageError

_OWN = ("seed", "step", "pad_token_id")


def split_names(text: str, flag: str) -> list[str]:
    """The names between the commas, each once.

    Raises:
        UsageError: there is none.
    """
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise UsageError(f"{flag} {text}: give names with commas between them")
    return found


def parse_options(pairs: Sequence[str], flag: str) -> dict[str, Any]:
    """NAME=VALUE pairs as fields of `Options`, in their types.

    Raises:
        UsageError: no such option, or a value that it cannot have.
    """
    from tokencredit.credit import Options

    defaults = {field.name: field.default for field in dataclasses.fields(Options) if field.name not in _OWN}
    given = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or name not in defaults:
            raise UsageError(f"{flag} {text}: give NAME=VALUE with one of {', '.join(defaults)}")
        given[name] = _converted(text, value, defaults[name], flag)
    Options(**given)
    return given


def _converted(text: str, value: str, default: Any, flag: str) -> Any:
    """The value as the type that the option's default has."""
    if default is None or isinstance(default, str):
        return value
    words = {"true": True, "false": False}
    try:
        return words[value.lower()] if isinstance(default, bool) else type(default)(value)
    except (KeyError, ValueError) as error:
        raise UsageError(f"{flag} {text}: {value!r} is no {type(default).__name__}") from error


def check_target(path: Path) -> None:
    """Refuses a file that cannot be written; leaves nothing behind."""
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder")
        folder = next(folder for folder in path.absolute().parents if folder.exists())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def device() -> Any:
    """The accelerator, or the CPU."""
    import torch

    return (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    )
