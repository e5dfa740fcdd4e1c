"""What `tokencredit fidelity` shows and writes in the end."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tokencredit.cli import package_version

if TYPE_CHECKING:
    from tokencredit.fidelity.plan import Measured, Plan
    from tokencredit.fidelity.store import Store
    from tokencredit.fidelity.subjects import Subject

_WIDTH = 200  # of what is read by no terminal: nothing need be cut off


def about(arguments: argparse.Namespace, plan: Plan, subjects: Sequence[Subject]) -> dict[str, Any]:
    """What is measured, with what, and on what it runs."""
    import dataclasses

    import torch

    from tokencredit.fidelity.causal import OUTCOME

    device = subjects[0].model.device
    settings = {
        name: value for name, value in vars(arguments).items() if name not in ("json", "out", "overwrite")
    }
    return {
        "command": "fidelity",
        "settings": settings
        | {
            "strategies": {c.name: dataclasses.asdict(c.options) for c in plan.contenders},
            "causal_outcome": plan.options.outcome or OUTCOME,
            "max_new_tokens": {s.source: s.decoding.max_new_tokens for s in subjects},
        },
        "versions": {
            "tokencredit": package_version(),
            **{name: version(name) for name in ("torch", "transformers", "scipy")},
        },
        "machine": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            "processors": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }


def results(
    subjects: Sequence[Subject], plan: Plan, found: Sequence[Measured], seed: int
) -> list[dict[str, Any]]:
    """Every mean of every subject."""
    from tokencredit.fidelity.run import result

    return [result(subject, plan, measured, seed) for subject, measured in zip(subjects, found, strict=True)]


def show(found: Sequence[Mapping[str, Any]]) -> None:
    """The tables of all results."""
    from rich.console import Console

    from tokencredit.fidelity.tables import tables
    from tokencredit.report import in_terminal

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    for result in found:
        for table in tables(result):
            console.print(in_terminal(table))
    console.print(
        "± is half the 95% bootstrap interval of the mean over completions.", markup=False, highlight=False
    )


def write(
    content: Mapping[str, Any], found: Sequence[Measured], store: Store | None, json_file: str | None
) -> None:
    """The folder and the file that were asked for."""
    import json

    from tokencredit.fidelity.page import PAGE, RECORDS, write_page
    from tokencredit.fidelity.store import write_numbers
    from tokencredit.report import read_records

    if store is not None:
        numbers = store.conclude(content, found)
        records = read_records(store.folder / RECORDS)
        page = write_page(store.folder / PAGE, json.loads(numbers.read_text(encoding="utf-8")), records)
        print(f"numbers: {numbers}\npage: {page}", file=sys.stderr)
    if json_file is not None:
        print(f"numbers: {write_numbers(json_file, content)}", file=sys.stderr)
