"""The command line in this process, a small model in a folder, and rows that it can be trained on."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tokencredit.cli import main
from tokencredit.tasks import get_task


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The last line on stderr."""
        return self.err.strip().splitlines()[-1]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]):
    """Runs a command; a code of 2 must come with one line of error at the end and no traceback."""

    def run(*arguments: Any) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        outcome = Outcome(code, captured.out, captured.err)
        if code == 2:
            assert outcome.error.startswith("tokencredit: error: ")
            assert "Traceback" not in outcome.err
        return outcome

    return run


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the packaged policy of `query`, to be changed at will."""
    return Path(shutil.copytree(get_task("query").policy_path(), tmp_path / "model"))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A data file of eight problems."""
    problems = get_task("query").problems(8, seed=0)
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"problem": row["prompt"], "answer": row["answer"]}) for row in problems]
    path.write_text("\n".join(lines) + "\n")
    return path
