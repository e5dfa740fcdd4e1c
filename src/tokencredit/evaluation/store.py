"""What an evaluation leaves in its folder, so that a killed one can go on and two can be compared."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.errors import UsageError
from tokencredit.report.files import plain_json, read_lines, write_atomic

SUMMARY, SAMPLES = "evaluation.json", "samples.jsonl"

Sample = dict[str, Any]
"""One kept completion: task, id, sample (from 0), problem, golds, prompt, completion, verdict, answer, reason, finish
("stop", "length", None: unknown), tokens (None: unknown)."""
Key = tuple[str, str, int]
"""Which completion: task, id, sample."""


def key_of(sample: Mapping[str, Any]) -> Key:
    return sample["task"], sample["id"], sample["sample"]


def claim(folder: Path, settings: Mapping[str, Any], *, overwrite: bool) -> None:
    """Make the folder this evaluation's, or see that it already is.

    Raises:
        UsageError: it holds an evaluation with other settings and `overwrite` is not given, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; name a folder")
    now = json.loads(json.dumps(plain_json(settings)))
    if (folder / SUMMARY).exists() and not overwrite:
        _check_same(folder, summary(folder)["settings"], now)
        return
    (folder / SAMPLES).unlink(missing_ok=True)
    write_summary(folder, {"settings": now})


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old != new:
            raise UsageError(
                f"{folder} holds an evaluation whose {name} is {_brief(old)}, not {_brief(new)}: give the same "
                "settings to go on with it, another --out, or --overwrite"
            )


def _brief(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def summary(folder: Path) -> dict[str, Any]:
    """The folder's evaluation.json: ``settings`` and, once finished, ``results`` and ``versions``.

    Raises:
        UsageError: there is none, or it is broken.
    """
    path = folder / SUMMARY
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content["settings"], dict):
            return dict(content)
    except FileNotFoundError as error:
        raise UsageError(f"{folder} holds no evaluation: it has no {SUMMARY}") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    raise UsageError(f"cannot read {path}: its settings are no object")


def write_summary(folder: Path, content: Mapping[str, Any]) -> Path:
    """evaluation.json, whole or not at all."""
    text = json.dumps(plain_json(content), indent=2, ensure_ascii=False, allow_nan=False)
    return write_atomic(folder / SUMMARY, text + "\n")


def read_samples(folder: Path) -> list[Sample]:
    """The kept completions, in the order in which they were written.

    Raises:
        UsageError: a line is broken or lacks a field.
    """
    found = []
    for number, sample in read_lines(folder / SAMPLES):
        missing = {"task", "id", "sample", "problem", "verdict", "answer", "finish", "tokens"} - sample.keys()
        if missing:
            raise UsageError(f"{folder / SAMPLES}, line {number}: no {min(missing)!r}; remove the folder")
        found.append(sample)
    return found


def keep_finished(folder: Path, batches: Sequence[Sequence[Key]]) -> list[Sample]:
    """The samples of the batches that are complete; what a killed run left of the next one is removed.

    A batch is sampled as one, so half of it cannot be taken up.

    Raises:
        UsageError: the file holds other samples than this evaluation would write.
    """
    samples = read_samples(folder)
    kept = 0
    for batch in batches:
        there = [key_of(sample) for sample in samples[kept : kept + len(batch)]]
        if there != list(batch[: len(there)]):
            raise UsageError(
                f"{folder / SAMPLES} holds other samples than this evaluation writes; give another --out or --overwrite"
            )
        if len(there) < len(batch):
            break
        kept += len(batch)
    if kept < len(samples) or _has_torn_tail(folder / SAMPLES):
        write_atomic(folder / SAMPLES, "".join(map(_line, samples[:kept])))
    return samples[:kept]


def _has_torn_tail(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")


def append(folder: Path, samples: Iterable[Sample]) -> None:
    """Add a batch, on the disk when this returns.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with open(folder / SAMPLES, "ab") as file:
            file.write("".join(map(_line, samples)).encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(f"cannot write {folder / SAMPLES}: {error.strerror or error}") from error


def _line(sample: Sample) -> str:
    return json.dumps(plain_json(sample), ensure_ascii=False, allow_nan=False) + "\n"
