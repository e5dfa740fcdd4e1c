"""The command line: one file a command, each with a function ``run(argv) -> exit code``.

Nothing heavy is imported before a command is chosen. What the user can mend (`UsageError`) ends as one line on stderr
and exit code 2; an interruption as exit code 130.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tokencredit.errors import UsageError

__all__ = ["main"]

USAGE, INTERRUPTED = 2, 130

COMMANDS = {
    "train": "train a model with token-level credit: the flags of `trl grpo` and ours",
    "attribute": "show which tokens of one completion its answer rests on",
    "evaluate": "measure how many problems of the known tasks a model solves",
    "fidelity": "measure whether strategies find the tokens that matter",
    "compare": "train with several strategies over the same seeds, and say what their differences show",
    "plan": "say what memory and time a training run will take, and what to change where it doesn't fit",
    "report": "make the HTML report of what train, compare or fidelity left, from its records",
    "verify": "judge the completions of a file against their golds",
    "strategies": "list the credit strategies",
    "demo": "train a built-in task with oar-g and with uniform credit, and compare",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] and arguments[0] in COMMANDS:
            command = importlib.import_module(f"tokencredit.cli.{arguments[0]}")
            return int(command.run(arguments[1:]))
        named = _parser().parse_args(arguments).command
        what = f"no command {named!r}" if named else "no command given"
        raise UsageError(f"{what}; there are {', '.join(COMMANDS)}; tokencredit --help says more")
    except UsageError as error:
        return _fail(str(error), USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        sys.stderr.close()
        return 1


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"tokencredit: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="tokencredit",
        description="Which tokens earned this reward? Token-level credit for GRPO.",
        epilog="commands:\n" + "\n".join(f"  {name:12}{summary}" for name, summary in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tokencredit {package_version()}")
    parser.add_argument(
        "command", nargs="?", metavar="command", help="one of the commands below; each has --help"
    )
    return parser


def package_version() -> str:
    """The installed version, "unknown" where the package is only on the path."""
    try:
        return version("tokencredit")
    except PackageNotFoundError:
        return "unknown"


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaints are `UsageError`s."""

    def add_flags(self, flags: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds flags, each spelled with underscores or hyphens, with what `add_argument` is told of it."""
        for name, settings in flags.items():
            self.add_argument(*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]), **settings)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(message)
