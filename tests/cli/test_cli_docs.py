"""docs/cli.md names every flag of ours with the text of its help."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser
from pathlib import Path

import pytest

from tokencredit.cli import COMMANDS, arguments, attribute, compare, demo, evaluate, fidelity, report, verify
from tokencredit.trl import OARConfig

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
CREDIT = [field.name for field in dataclasses.fields(OARConfig) if field.name.startswith("credit")]


def documented(parser: ArgumentParser, names: list[str]) -> list[str]:
    """The lines that the document must hold, one a flag."""
    lines = []
    for action in parser._actions:
        spellings = [name for name in action.option_strings if "-" not in name[2:]]
        if action.dest in names and spellings:
            lines.append(f"- {', '.join(f'`{name}`' for name in spellings)}: {action.help}")
    return lines


def all_names(parser: ArgumentParser) -> list[str]:
    return [action.dest for action in parser._actions if action.option_strings and action.dest != "help"]


@pytest.mark.parametrize(
    "command", ["train", "attribute", "evaluate", "fidelity", "compare", "report", "verify", "demo"]
)
def test_flags_and_their_help(command):
    if command == "train":
        parser: ArgumentParser = arguments.build_parser()
        names = [*arguments.RunArguments.__annotations__, *CREDIT]
    else:
        modules = {
            "attribute": attribute,
            "evaluate": evaluate,
            "fidelity": fidelity,
            "compare": compare,
            "report": report,
            "verify": verify,
            "demo": demo,
        }
        parser = modules[command].build_parser()
        names = all_names(parser)
    section = DOCS.read_text().split(f"\n## {command}\n")[1].split("\n## ")[0]
    lines = documented(parser, names)
    assert len(lines) >= len(names)
    for line in lines:
        assert line in section.splitlines(), f"missing in docs/cli.md, section {command}:\n{line}"


def test_every_command_is_named():
    text = DOCS.read_text()
    for name in COMMANDS:
        assert f"tokencredit {name}" in text
