"""The tasks that evaluation knows: where each one's problems are, and how their golds are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.answers import check_gold, verify
from tokencredit.errors import UsageError
from tokencredit.tasks.data import check_problems, load_problems, read_json_lines

__all__ = ["BENCHMARKS", "Benchmark", "Problem", "fingerprint", "get_benchmark", "load"]


@dataclass(frozen=True)
class Benchmark:
    """A task: its file's name in a data folder, and its data set on the hub.

    Beside NAME.jsonl may lie NAME.meta.jsonl with further fields of the rows, under the same ``id``.
    """

    file: str
    hub: str
    split: str
    config: str | None = None


BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k": Benchmark("gsm8k_test", "openai/gsm8k", "test", "main"),
    "math500": Benchmark("math500_test", "HuggingFaceH4/MATH-500", "test"),
    "aime2024": Benchmark("aime2024", "HuggingFaceH4/aime_2024", "train"),
    "aime2025": Benchmark("aime2025", "math-ai/aime25", "test"),
    "amc2023": Benchmark("amc2023", "math-ai/amc23", "test"),
    "amc": Benchmark("amc_2022_2023_83", "AI-MO/aimo-validation-amc", "train"),
    "minerva": Benchmark("minervamath", "math-ai/minervamath", "test"),
    "olympiadbench": Benchmark(
        "olympiadbench_maths_en", "Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP"
    ),
}


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        id: unique in its task.
        text: the problem itself.
        golds: spellings of the gold, any of which an answer may match.
        tolerance: largest distance from the gold that the data set allows, as it writes it; None: none.
    """

    id: str
    text: str
    golds: tuple[str, ...]
    tolerance: str | None = None


def get_benchmark(name: str) -> Benchmark:
    """The task of that name.

    Raises:
        UsageError: there is none; the message lists the names.
    """
    if name not in BENCHMARKS:
        raise UsageError(f"no evaluation task {name!r}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def load(
    name: str, data_dir: Path | None = None, limit: int | None = None
) -> tuple[list[Problem], list[str]]:
    """The problems of a task, in the data set's order, and why rows were left out: their golds cannot be judged.

    Args:
        name: of the task.
        data_dir: a folder with the task's file; None: the hub.
        limit: only the first so many rows.

    Raises:
        UsageError: no such task, file or data set; a broken line; an empty problem or gold; no row that can be judged.
    """
    benchmark = get_benchmark(name)
    if data_dir is None:
        source = benchmark.hub
        rows = load_problems(source, benchmark.split, limit, config=benchmark.config, golds=False)
    else:
        path = data_dir / f"{benchmark.file}.jsonl"
        if not path.is_file():
            raise UsageError(f"--data-dir {data_dir} holds no {path.name}, the file of the task {name}")
        source = str(path)
        rows = _with_meta(load_problems(path, limit=limit, golds=False), path.with_suffix(".meta.jsonl"))
    left_out: list[str] = []
    places = ((f"row {number}", _with_gold(row)) for number, row in enumerate(rows, start=1))
    judged = check_problems(places, source, on_unjudged=left_out.append)
    return _unique([_problem(row, number) for number, row in enumerate(judged)], source), left_out


def fingerprint(problems: Sequence[Problem]) -> str:
    """A short name of exactly these problems and golds."""
    content = json.dumps([[p.id, p.text, p.golds, p.tolerance] for p in problems])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _with_meta(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The rows with the further fields that the file beside theirs has."""
    if not path.is_file():
        return rows
    meta = {}
    for place, fields in read_json_lines(path):
        if "id" not in fields:
            raise UsageError(f"{path}, {place}: no 'id', by which its row is found")
        meta[fields["id"]] = fields
    return [{**meta.get(row.get("id"), {}), **row} for row in rows]


def _with_gold(row: dict[str, Any]) -> dict[str, Any]:
    """The row, its ``answer`` in another of the gold's spellings where only that can be judged."""
    own, others = row.get("answer"), row.get("alt_answers")
    if not others or not isinstance(own, str) or check_gold(own.strip()) is None:
        return row
    judged = (each for each in others if isinstance(each, str) and check_gold(each.strip()) is None)
    return {**row, "answer": next(judged, own)}


def _problem(row: dict[str, Any], number: int) -> Problem:
    if not isinstance(row["problem"], str):
        raise UsageError(f"row {number + 1}: the problem is no text")
    name = next((row[key] for key in ("id", "unique_id") if row.get(key) is not None), number)
    return Problem(str(name), row["problem"], _golds(row), row.get("tolerance"))


def _golds(row: dict[str, Any]) -> tuple[str, ...]:
    """The gold and its other spellings; none of these where not one says what the gold says.

    Some lists of other spellings belong to another part of a problem: none of theirs is the gold.
    """
    gold = row["answer"]
    others = [str(each) for each in row.get("alt_answers") or () if check_gold(str(each)) is None]
    if not any(verify(f"\\boxed{{{each}}}", gold).verdict == "right" for each in others):
        others = []
    return tuple(dict.fromkeys([gold, *others]))


def _unique(problems: list[Problem], source: str) -> list[Problem]:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UsageError(f"{source}: two rows have the id {problem.id!r}; give each its own")
        seen.add(problem.id)
    return problems
