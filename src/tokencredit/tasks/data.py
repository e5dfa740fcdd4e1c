"""Problems with known answers from a file, a folder or the hub, in one form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokencredit.answers import check_gold, extract
from tokencredit.answers.boxes import neighbours
from tokencredit.answers.verdicts import parse_tolerance
from tokencredit.errors import UsageError

PROBLEM_COLUMNS = ("problem", "prompt", "question")
GOLD_COLUMNS = ("answer", "final_answer", "solution")
# TRL hands every column to the reward function by name, beside these arguments of its own.
RESERVED_COLUMNS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
IMAGE_COLUMNS = ("image", "images")
_JSON_LINES = (".jsonl", ".ndjson")
_BUILDERS = {".json": "json", ".csv": "csv", ".parquet": "parquet"}

Row = dict[str, Any]
Place = str
"""Where a row stands in its source, for messages: "line 3" or "row 3"."""


class UnjudgedGoldError(UsageError):
    """A gold that no answer can be compared with."""


def load_problems(
    source: str | Path,
    split: str = "train",
    limit: int | None = None,
    *,
    config: str | None = None,
    golds: bool = True,
    on_unjudged: Callable[[str], None] | None = None,
) -> list[Row]:
    r"""The problems of a data set as rows with ``problem`` and ``answer``, other columns kept.

    The problem comes from the column ``problem``, ``prompt`` (also as chat messages) or ``question``. The gold comes
    from ``answer`` (after the last ``#### `` in the form of GSM8K) or, where there is none, from ``final_answer`` (a
    list of all answers, the form of OlympiadBench) or from the last ``\boxed{}`` of ``solution`` (the form of MATH).
    ``tolerance``, or ``error`` in the form of OlympiadBench, is the largest difference from the gold that is right.

    Args:
        source: a file (.jsonl, .json, .csv, .parquet), a folder that `datasets` can read, or a hub id.
        split: the split of a folder or hub data set.
        limit: read only this many rows.
        config: the configuration of a hub data set.
        golds: whether every row needs a gold; without, rows keep what they have.
        on_unjudged: called with the reason for each row whose gold cannot be judged, which is then left out; without
            it such a row is an error.

    Raises:
        UsageError: the source cannot be read, a line is broken, a column is missing or clashes with TRL's reward
            arguments, a problem or gold is empty, a gold cannot be judged, or there are no rows.
    """
    path = Path(source)
    if path.suffix in _JSON_LINES or path.is_file():
        rows = _read_file(path)
    else:
        rows = _read_data_set(str(source), split, config)
    return check_problems(rows, str(source), limit, golds=golds, on_unjudged=on_unjudged)


def check_problems(
    rows: Iterable[tuple[Place, Row]],
    source: str,
    limit: int | None = None,
    *,
    golds: bool = True,
    on_unjudged: Callable[[str], None] | None = None,
) -> list[Row]:
    """The rows in the form that `load_problems` describes; raises as it does, naming `source` and the place."""
    problems = []
    columns: tuple[str, str | None] | None = None
    for place, row in islice(rows, limit):
        columns = columns or _choose_columns(row, source, golds)
        try:
            problems.append(_problem(row, *columns, f"{source}, {place}"))
        except UnjudgedGoldError as error:
            if on_unjudged is None:
                raise
            on_unjudged(str(error))
    if not problems:
        raise UsageError(f"{source} has no rows; give at least one problem")
    return problems


def _choose_columns(row: Row, source: str, golds: bool) -> tuple[str, str | None]:
    """Which columns hold problem and gold, judged by the first row."""
    for name in RESERVED_COLUMNS:
        if name in row:
            raise UsageError(
                f"{source} has a column {name!r}, which clashes with an argument that TRL gives to reward "
                "functions; rename it"
            )
    for name in IMAGE_COLUMNS:
        if name in row:
            raise UsageError(
                f"{source} has a column {name!r}, but multimodal prompts are not supported; drop it"
            )
    found = ", ".join(map(repr, row)) or "none"
    problem = next((name for name in PROBLEM_COLUMNS if name in row), None)
    if problem is None:
        raise UsageError(
            f"{source} has no column for the problem: it needs one of {', '.join(PROBLEM_COLUMNS)}, and has {found}"
        )
    gold = next((name for name in GOLD_COLUMNS if name in row), None)
    if gold is None and golds:
        raise UsageError(
            f"{source} has no column for the gold: it needs one of {', '.join(GOLD_COLUMNS)}, and has {found}"
        )
    return problem, gold if golds else None


def _problem(row: Row, problem_column: str, gold_column: str | None, place: Place) -> Row:
    for name in (problem_column, gold_column):
        if name is not None and name not in row:
            raise UsageError(f"{place}: no column {name!r}, which the first row has")
    problem = row[problem_column]
    if not isinstance(problem, str | list):
        raise UsageError(f"{place}: {problem_column!r} is neither text nor a list of chat messages")
    if not (problem.strip() if isinstance(problem, str) else problem):
        raise UsageError(f"{place}: {problem_column!r} is empty; remove the row or fill it in")
    checked = {**row, "problem": problem}
    if gold_column is not None:
        checked["answer"] = _gold(row[gold_column], gold_column, place)
    return checked | _tolerance(row, place)


def _tolerance(row: Row, place: Place) -> Row:
    """The tolerance that the data set states, as text or None; nothing where it has no such column."""
    name = "tolerance" if "tolerance" in row else "error" if "error" in row and "answer_type" in row else None
    if name is None:
        return {}
    try:
        return {"tolerance": None if parse_tolerance(row[name]) is None else str(row[name])}
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def _gold(value: Any, column: str, place: Place) -> str:
    if column == "final_answer" and isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{place}: {column!r} is neither text nor a number")
    text = str(value)
    if column == "solution":
        answer = extract(text)
        if answer is None:
            raise UsageError(f"{place}: no \\boxed{{}} with the gold in 'solution'; add a column 'answer'")
        text = ", ".join(neighbours(answer.text))
    elif "####" in text:
        text = text.rpartition("####")[2]
    text = text.strip()
    if not text:
        raise UsageError(f"{place}: the gold in {column!r} is empty; remove the row or fill it in")
    reason = check_gold(text)
    if reason is not None:
        raise UnjudgedGoldError(f"{place}: the gold {text!r} cannot be judged: {reason}")
    return text


def _read_file(path: Path) -> Iterator[tuple[Place, Row]]:
    if path.suffix in _JSON_LINES:
        yield from read_json_lines(path)
    elif path.suffix in _BUILDERS:
        yield from _read_data_set(_BUILDERS[path.suffix], "train", data_files=str(path))
    else:
        endings = ", ".join([*_JSON_LINES, *_BUILDERS])
        raise UsageError(f"cannot tell the form of {path} by its name; it must end in {endings}")


def read_json_lines(path: Path) -> Iterator[tuple[Place, Row]]:
    """The objects of a file of JSON lines, each with its place; blank lines are skipped.

    Raises UsageError where the file cannot be read, or a line is no JSON object, which it names.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except FileNotFoundError as error:
        raise UsageError(f"no data file {path}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error}); mend or remove the line") from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
        yield f"line {number}", row


def _read_data_set(
    source: str, split: str, config: str | None = None, data_files: str | None = None
) -> Iterator[tuple[Place, Row]]:
    """Through `datasets`: a saved data set, a folder of files, a hub id, or a builder with its file."""
    import datasets

    name = data_files or source
    try:
        if Path(source, "dataset_info.json").exists() or Path(source, "dataset_dict.json").exists():
            loaded = datasets.load_from_disk(source)
            if isinstance(loaded, datasets.DatasetDict):
                loaded = _take_split(loaded, split, name)
        else:
            loaded = datasets.load_dataset(source, config, data_files=data_files, split=split)
    except UsageError:
        raise
    except (FileNotFoundError, ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise UsageError(
            f"cannot find the data set {name!r}: there is no such file or folder here, and the hub does not have it "
            "or cannot be reached"
        ) from error
    except (ValueError, TypeError, OSError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"cannot load the data set {name!r}: {' '.join(str(error).split())}") from error
    for number, row in enumerate(loaded, start=1):
        yield f"row {number}", dict(row)


def _take_split(loaded: Any, split: str, name: str) -> Any:
    if split not in loaded:
        raise UsageError(f"the data set {name!r} has no split {split!r}; it has {', '.join(loaded)}")
    return loaded[split]
