"""`tokencredit report`: the HTML file of a training run, a comparison or a measurement, anew from its records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokencredit.cli import OneLineParser
from tokencredit.cli.compare import JSON as COMPARED
from tokencredit.cli.compare import PAGE as COMPARED_PAGE
from tokencredit.cli.run_directory import REPORT
from tokencredit.errors import UsageError
from tokencredit.report.records import RUN

COMPARED_PARTS = ("plan", "arms", "measures", "curves", "verdict", "reservations")

_FLAGS: dict[str, dict[str, Any]] = {
    "out": {
        "help": "the file to write (default: in the folder, as the command itself names it)",
        "metavar": "FILE.html",
    },
}


def run(argv: list[str]) -> int:
    """Write the report and print where it is."""
    arguments = build_parser().parse_args(argv)
    print(remake([Path(name) for name in arguments.directory], arguments.out and Path(arguments.out)))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = OneLineParser(
        prog="tokencredit report",
        description="Make the HTML report of what train, demo, compare or fidelity left, from its records.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory",
        nargs="+",
        metavar="DIR",
        help="a training run (several are overlaid), a folder of such, a comparison, or a measurement of fidelity "
        "(or its .json file)",
    )
    parser.add_flags(_FLAGS)
    return parser


def remake(places: Sequence[Path], out: Path | None) -> Path:
    """Write the report of what the places hold to `out`, or to where the command that made them writes it.

    Raises:
        UsageError: a place holds nothing to report, or several places are not training runs.
    """
    if len(places) > 1:
        for place in places:
            if not (place / RUN).is_file():
                raise UsageError(f"{place} is no training run (it has no {RUN}); only those are overlaid")
        if out is None:
            raise UsageError("several runs are overlaid in one file: name it with --out")
        return _runs(places, out)
    (place,) = places
    if place.suffix == ".json" and place.is_file():
        return _fidelity(place, out or place.with_suffix(".html"))
    if (place / RUN).is_file():
        return _runs(places, out or place / REPORT)
    if (place / COMPARED).is_file():
        return _comparison(place, out or place / COMPARED_PAGE)
    from tokencredit.fidelity.page import NUMBERS
    from tokencredit.fidelity.page import PAGE as MEASURED_PAGE

    if (place / NUMBERS).is_file():
        return _fidelity(place / NUMBERS, out or place / MEASURED_PAGE)
    inside = sorted(path.parent for path in place.glob(f"*/{RUN}"))
    if not inside:
        raise UsageError(
            f"{place} holds nothing to report: no {RUN} (of train), {COMPARED} (of compare) or {NUMBERS} (of fidelity)"
        )
    return _runs(inside, out or place / REPORT)


def _runs(directories: Sequence[Path], out: Path) -> Path:
    from tokencredit.report import render_run

    return render_run(directories, out)


def _comparison(directory: Path, out: Path) -> Path:
    """The figures come from compare.json, the completions from the finished runs."""
    from tokencredit.compare.page import records_of, write_page
    from tokencredit.compare.runs import all_keys, is_trained

    compared = _read(directory / COMPARED, "compare", COMPARED_PARTS)
    plan = compared["plan"]
    seeds = max(call["seeds"] for call in plan["calls"])
    keys = all_keys(compared["arms"], len(plan["warm_starts"]), seeds)
    finished = [key for key in keys if is_trained(directory / key.name)]
    return write_page(out, compared, plan["settings"], records_of(directory, finished))


def _fidelity(numbers: Path, out: Path) -> Path:
    """The completions are in the folder of a measurement; a file of numbers alone has none."""
    from tokencredit.fidelity.page import NUMBERS, RECORDS, write_page
    from tokencredit.report.records import read_records

    measured = _read(numbers, "fidelity", ("settings", "results"))
    records = read_records(numbers.with_name(RECORDS)) if numbers.name == NUMBERS else []
    return write_page(out, measured, records)


def _read(path: Path, command: str, needed: Sequence[str]) -> dict[str, Any]:
    """The numbers that a command wrote."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON") from error
    if not isinstance(content, dict) or any(name not in content for name in needed):
        raise UsageError(f"{path} is not what tokencredit {command} writes; run that command again")
    return content
