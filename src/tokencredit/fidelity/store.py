"""What a measurement leaves in its folder: finished batches while it runs, so that a stopped one goes on; then results.

Each batch is one line that appears whole or not at all. In the end the lines give way to the files that stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from tokencredit.errors import UsageError
from tokencredit.fidelity.page import NUMBERS, PAGE, RECORDS, check_folder
from tokencredit.fidelity.plan import Measured
from tokencredit.report.files import append_line, plain_json, read_lines, write_atomic

PROGRESS, VALUES = "progress.jsonl", "values.jsonl"


class Store:
    """The folder of one measurement.

    Args:
        settings: what the measurement depends on.
        overwrite: drop what the folder holds.

    Raises:
        UsageError: the folder holds a finished measurement, or one with other settings, and `overwrite` is not given;
            or it is a file or a training run.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        self.folder, self.settings = folder, json.loads(json.dumps(plain_json(settings)))
        check_folder(folder, overwrite=overwrite)
        if overwrite:
            for name in (NUMBERS, PROGRESS, PAGE, VALUES, RECORDS):
                (folder / name).unlink(missing_ok=True)
        lines = [value for _, value in read_lines(folder / PROGRESS)]
        self.begun = bool(lines)
        self.kept = self._read(lines) if lines else {}

    def of(self, subject: int) -> dict[int, Measured]:
        """The batches of a subject, by its number, that are finished."""
        return {batch: measured for (own, batch), measured in self.kept.items() if own == subject}

    @property
    def completions(self) -> int:
        """How many are measured."""
        return sum(measured.written for measured in self.kept.values())

    def keep(self, subject: int, batch: int, measured: Measured) -> None:
        """On the disk when this returns.

        Raises:
            UsageError: the file cannot be written.
        """
        path = self.folder / PROGRESS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.begun:
                append_line(path, {"settings": self.settings})
                self.begun = True
            append_line(path, {"subject": subject, "batch": batch, **vars(measured)})
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
        self.kept[subject, batch] = measured

    def conclude(self, content: Mapping[str, Any], found: Iterable[Measured]) -> Path:
        """Writes the files that stay, the numbers last: they say that all is there. Returns their path.

        Raises:
            UsageError: one of them cannot be written.
        """
        found = list(found)
        for name, lines in (
            (VALUES, [row for measured in found for row in measured.rows]),
            (RECORDS, [record for measured in found for record in measured.records]),
        ):
            rows = (json.dumps(plain_json(line), allow_nan=False) + "\n" for line in lines)
            write_atomic(self.folder / name, "".join(rows))
        numbers = write_numbers(self.folder / NUMBERS, content)
        with suppress(OSError):
            (self.folder / PROGRESS).unlink(missing_ok=True)
        return numbers

    def _read(self, lines: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Measured]:
        self._check_same(lines[0].get("settings") or {})
        names = [each.name for each in fields(Measured)]
        try:
            return {
                (line["subject"], line["batch"]): Measured(**{name: line[name] for name in names})
                for line in lines[1:]
            }
        except KeyError as error:
            raise UsageError(f"{self.folder / PROGRESS}: a batch has no {error}; give --overwrite") from error

    def _check_same(self, before: Mapping[str, Any]) -> None:
        for name in dict.fromkeys([*before, *self.settings]):
            old, new = before.get(name), self.settings.get(name)
            if old != new:
                raise UsageError(
                    f"{self.folder} holds a measurement whose {name} is {json.dumps(old)}, not {json.dumps(new)}: give "
                    "the same settings to go on with it, another --out, or --overwrite"
                )


def write_numbers(path: str | Path, content: Mapping[str, Any]) -> Path:
    """All figures as JSON, whole or not at all; raises UsageError if it cannot be written."""
    return write_atomic(path, json.dumps(plain_json(content), indent=1, allow_nan=False) + "\n")
