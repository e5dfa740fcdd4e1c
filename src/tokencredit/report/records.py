"""What a run leaves behind, read and written: run.json, metrics.jsonl and records.jsonl.

Lengths: a record's lists have one entry a completion token. Spans are [start, end) in tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from tokencredit.errors import UsageError
from tokencredit.report.files import append_line, read_lines, write_atomic

RUN, METRICS, RECORDS = "run.json", "metrics.jsonl", "records.jsonl"


class Truth(TypedDict, total=False):
    """What a built-in task knows of each token; see `annotate`."""

    roles: list[str]
    on_path: list[bool]
    right: list[bool | None]


class Record(Truth):
    """One sampled completion and the credit of each of its tokens."""

    step: int
    row: int
    prompt: str
    tokens: list[str]
    importance: list[float | None]  # None off the reasoning, and everywhere if the row was skipped
    weights: list[float]
    advantages: list[float]  # per token, what the loss sees
    probability: list[float] | None  # of each token at temperature 1, whatever it was sampled at
    advantage: float  # the row's own
    reward: float | None
    reasoning: list[int]
    answer: list[int] | None
    rule: str
    credit: str


@dataclass(frozen=True)
class Run:
    """A run directory in memory: `info` is run.json, `metrics` one mapping a logged step."""

    path: Path
    info: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    records: Sequence[Record]

    @property
    def credit(self) -> str:
        """The strategy's name, or the directory's where run.json has none."""
        return str(self.info.get("credit") or self.path.name)


def append_record(path: str | Path, record: Mapping[str, Any]) -> None:
    """Append one `Record` to a records file: one JSON line, flushed; NaN becomes null."""
    append_line(path, record)


def append_metrics(path: str | Path, metrics: Mapping[str, Any]) -> None:
    """Append the metrics of one logged step to a metrics file: one JSON line, flushed; NaN becomes null."""
    append_line(path, metrics)


def drop_after(path: str | Path, step: int) -> None:
    """Drop the lines whose "step" lies beyond `step`, so that a resumed run does not count steps twice."""
    lines = [value for _, value in read_lines(path)]
    kept = [value for value in lines if value.get("step", 0) <= step]
    if len(kept) < len(lines):
        write_atomic(path, "".join(json.dumps(value) + "\n" for value in kept))


def load_run(directory: str | Path) -> Run:
    """Read a run directory; metrics and records may be missing, or cut off in their last line.

    Where run.json names a task, its truth is added to every record (see `annotate`).
    Raises UsageError for a directory without a readable run.json, and for broken lines by file and number.
    """
    directory = Path(directory)
    info = load_info(directory)
    metrics = [value for _, value in read_lines(directory / METRICS)]
    records = read_records(directory / RECORDS)
    task = info.get("task")
    return Run(directory, info, metrics, annotate(records, str(task)) if task else records)


def load_info(directory: str | Path) -> dict[str, Any]:
    """Read a run directory's run.json.

    Raises UsageError for a directory without a readable one.
    """
    path = Path(directory) / RUN
    try:
        info = json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except FileNotFoundError as error:
        raise UsageError(f"{directory} is not a run directory: it has no {RUN}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON") from error
    if not isinstance(info, dict):
        raise UsageError(f"{path}: expected a JSON object, found {type(info).__name__}")
    return info


def read_records(path: str | Path) -> list[Record]:
    """Read a records file; one that is not there has none.

    Raises UsageError for broken lines by file and number.
    """
    records = []
    for number, value in read_lines(path):
        problem = record_problem(value)
        if problem:
            raise UsageError(f"{path}, line {number}: {problem}")
        records.append(cast(Record, value))
    return records


def record_problem(record: Mapping[str, Any]) -> str | None:
    """Say in words what keeps `record` from being a `Record`; None if nothing does."""
    missing = [
        name for name in Record.__annotations__ if name not in record and name not in Truth.__annotations__
    ]
    if missing:
        return f"a record without {missing[0]!r}"
    for name in ("prompt", "rule", "credit"):
        if not isinstance(record[name], str):
            return f"{name!r} is not a string"
    tokens = record["tokens"]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return "'tokens' is not a list of strings"
    for name in ("step", "row"):
        if not isinstance(record[name], int):
            return f"{name!r} is not a whole number"
    for name in ("advantage", "reward"):
        if not _is_number(record[name]):
            return f"{name!r} is neither a number nor null"
    checks = (_list_problem, _span_problem, _truth_problem)
    return next(filter(None, (check(record, len(tokens)) for check in checks)), None)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _list_problem(record: Mapping[str, Any], length: int) -> str | None:
    for name in ("importance", "weights", "advantages", "probability"):
        values = record[name]
        if name == "probability" and values is None:
            continue
        if not isinstance(values, list) or not all(map(_is_number, values)):
            return f"{name!r} is not a list of numbers"
        if len(values) != length:
            return f"{name!r} has {len(values)} entries for {length} tokens"
    return None


def _truth_problem(record: Mapping[str, Any], length: int) -> str | None:
    for name, kind, kinds in (
        ("roles", str, "strings"),
        ("on_path", bool, "truth values"),
        ("right", bool | None, "truth values"),
    ):
        values = record.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            return f"{name!r} is not a list of {kinds}"
        if name in record and len(values) != length:
            return f"{name!r} has {len(values)} entries for {length} tokens"
    return None


def _span_problem(record: Mapping[str, Any], length: int) -> str | None:
    for name in ("reasoning", "answer"):
        span = record[name]
        if name == "answer" and span is None:
            continue
        pair = isinstance(span, list) and len(span) == 2 and all(isinstance(end, int) for end in span)
        if not pair or not 0 <= span[0] <= span[1] <= length:
            return f"{name!r} is not a pair [start, end] within {length} tokens"
    return None


def annotate(records: Iterable[Record], task: str) -> list[Record]:
    """Return the records with the task's "roles", "on_path" and "right" of every token added.

    A record whose prompt is not one of the task's (a tokenizer or a template that adds to it) stays as it is.
    Raises UsageError if there is no such task.
    """
    from tokencredit.tasks import get_task

    truth_of = get_task(task).annotate
    annotated = []
    for record in records:
        try:
            truths = truth_of(record["prompt"], record["tokens"])
        except UsageError:
            annotated.append(record)
            continue
        added = {
            "roles": [truth.role for truth in truths],
            "on_path": [truth.on_path for truth in truths],
            "right": [truth.right for truth in truths],
        }
        annotated.append(cast(Record, {**record, **added}))
    return annotated


def share_by_role(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Say where the credit goes, by token role, over the records that know their roles.

    For each role, those of most importance first: "token_share", its part of the tokens, which is its credit
    with uniform weights; "importance_share", its part of the row's importance (averaged over the rows that have
    any, None if no row has); "credit_share", its part of the weights, after the gate; "mean_weight"; "tokens",
    their number. Rows without importance (skipped ones, all of weight 1) count only where no row has importance.
    """
    known = [record for record in records if "roles" in record]
    measured = [record for record in known if _total(record) > 0]
    rows = measured or known
    names = sorted({role for record in rows for role in record["roles"]})
    n_all = sum(len(record["roles"]) for record in rows)
    all_weights = sum(sum(record["weights"]) for record in rows) or 1.0
    shares: dict[str, dict[str, float | int | None]] = {}
    for name in names:
        weights = [w for r in rows for w, role in zip(r["weights"], r["roles"], strict=True) if role == name]
        parts = [_total(record, name) / _total(record) for record in measured]
        shares[name] = {
            "token_share": len(weights) / n_all,
            "importance_share": sum(parts) / len(parts) if parts else None,
            "credit_share": sum(weights) / all_weights,
            "mean_weight": sum(weights) / len(weights),
            "tokens": len(weights),
        }
    return dict(sorted(shares.items(), key=lambda item: -(item[1]["importance_share"] or 0.0)))


def _total(record: Mapping[str, Any], role: str | None = None) -> float:
    """Sum the importance of one role's tokens, or of all; what was not computed counts as 0."""
    pairs = zip(record["importance"], record["roles"], strict=True)
    return sum(value or 0.0 for value, name in pairs if role in (None, name))
