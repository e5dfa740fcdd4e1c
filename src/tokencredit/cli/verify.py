"""`tokencredit verify`: which completions in a file are right."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokencredit.answers import Verdict, check_gold, opens_thinking, verify
from tokencredit.answers.rewards import content_of
from tokencredit.answers.verdicts import parse_tolerance
from tokencredit.answers.worker import spread
from tokencredit.cli import OneLineParser
from tokencredit.errors import UsageError
from tokencredit.tasks.data import read_json_lines

Row = dict[str, Any]
VERDICTS = ("right", "wrong", "no-answer")

_FLAGS: dict[str, dict[str, Any]] = {
    "data": {
        "help": "JSON lines with `completion` (text, or chat messages) and `gold`; `prompt` and `tolerance` count too",
        "required": True,
        "metavar": "FILE.jsonl",
    },
    "out": {
        "help": "write the rows with `verdict`, `answer` and `reason` to this file",
        "metavar": "FILE.jsonl",
    },
    "thinking": {
        "help": "the prompts ended in an open think block: what stands before </think> is no answer",
        "action": "store_true",
    },
    "marker": {"help": "the word before the answer (default: boxed, ####, ... are recognised)"},
    "skip_unjudged": {
        "help": "leave out rows whose gold no answer can be compared with",
        "action": "store_true",
    },
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = OneLineParser(
        prog="tokencredit verify", description="Judge each completion against its gold.", allow_abbrev=False
    )
    for name, settings in _FLAGS.items():
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(*spellings, **settings)
    return parser


def run(argv: list[str]) -> int:
    """Judge all rows, write them where that was asked, print how many are right."""
    arguments = build_parser().parse_args(argv)
    out = Path(arguments.out) if arguments.out else None
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UsageError(
            f"cannot write {out}: {'it is a folder' if out.is_dir() else 'its folder is not there'}"
        )
    if arguments.marker is not None and not arguments.marker.strip():
        raise UsageError("--marker is empty; leave it out to have boxed, ####, ... recognised")
    rows = _read(Path(arguments.data), arguments.skip_unjudged)
    verdicts = list(_judged(rows, arguments.marker, arguments.thinking))
    if out is not None:
        from tokencredit.report.files import write_atomic

        write_atomic(out, "".join(_line(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)))
    counts: Counter[str] = Counter(verdict.verdict for verdict in verdicts)
    print(f"rows       {len(rows):>8}")
    for name in VERDICTS:
        print(f"{name:10} {counts[name]:>8}  {counts[name] / len(rows):6.1%}")
    return 0


def _read(path: Path, skip_unjudged: bool) -> list[Row]:
    """The rows, checked. Raises UsageError with the line of the first bad one."""
    placed = [(f"{path}, {place}", row) for place, row in read_json_lines(path)]
    for where, row in placed:
        _check_fields(row, where)
    rows, left_out = [], []
    reasons = spread(check_gold, [str(row["gold"]) for _, row in placed])
    for (where, row), reason in zip(placed, reasons, strict=True):
        if reason is None:
            rows.append(row)
        elif skip_unjudged:
            left_out.append(where)
        else:
            gold = str(row["gold"])[:80]
            raise UsageError(
                f"{where}: the gold {gold!r} cannot be judged: {reason}; --skip_unjudged leaves such rows out"
            )
    if left_out:
        print(
            f"left out {len(left_out)} rows whose gold cannot be judged, such as {left_out[0]}",
            file=sys.stderr,
        )
    if not rows:
        raise UsageError(f"{path} has no rows to judge")
    return rows


def _check_fields(row: Row, where: str) -> None:
    for name in ("completion", "gold"):
        if name not in row:
            raise UsageError(f"{where}: no field {name!r}")
    completion, gold = row["completion"], row["gold"]
    messages = isinstance(completion, list) and all(map(_is_message, completion))
    if not isinstance(completion, str) and not messages:
        raise UsageError(f"{where}: 'completion' is neither text nor a list of chat messages")
    if isinstance(gold, bool) or not isinstance(gold, str | int | float) or gold != gold:
        raise UsageError(f"{where}: 'gold' is neither text nor a number")
    try:
        parse_tolerance(row.get("tolerance"))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _is_message(message: Any) -> bool:
    """Whether its content is text, parts of which some are text, or nothing (as beside a tool call)."""
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return content is None or (
        isinstance(content, str | list)
        and all(isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in parts)
    )


def _judged(rows: list[Row], marker: str | None, thinking: bool) -> Iterator[Verdict]:
    """The verdicts in the order of the rows, with progress on stderr."""

    def judge(row: Row) -> Verdict:
        prompt = row.get("prompt")
        opened = thinking or (isinstance(prompt, str) and opens_thinking(prompt))
        return verify(
            content_of(row["completion"]),
            str(row["gold"]),
            marker=marker,
            thinking=opened,
            tolerance=row.get("tolerance"),
        )

    shown, every = time.monotonic(), 0.5 if sys.stderr.isatty() else 30.0
    end = "\r" if sys.stderr.isatty() else "\n"
    for done, verdict in enumerate(spread(judge, rows), start=1):
        yield verdict
        if time.monotonic() - shown > every or (end == "\r" and done == len(rows)):
            shown = time.monotonic()
            last = "\n" if done == len(rows) else end
            print(f"judged {done} of {len(rows)}", end=last, file=sys.stderr, flush=True)


def _line(row: Row, verdict: Verdict) -> str:
    content = {**row, "verdict": verdict.verdict, "answer": verdict.answer, "reason": verdict.reason}
    line = json.dumps(content, ensure_ascii=False)
    return (line if line.isprintable() else json.dumps(content)) + "\n"
