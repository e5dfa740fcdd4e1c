"""Every command on local paths, with HF_HUB_OFFLINE=1 and no network to be had."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import announce_answers

from tokencredit.cli import COMMANDS

SMALL = "--per_device_train_batch_size 16 --num_generations 4 --eval_problems 0"
FLAGS = {
    "attribute": "--model model --prompt @prompt.txt --no-chat",
    "verify": "--data completions.jsonl",
    "strategies": "",
    "plan": "--model model --memory 8",
    "train": "--dataset rows.jsonl --model_name_or_path model --prompt_template {problem} --max_completion_length 40 "
    "--max_steps 1 " + SMALL,
    "evaluate": "--model model --data-dir data --tasks gsm8k --prompt-template {problem} --out out",
    "fidelity": "--task query --completions 4 --no_reference --draws 1",
    "compare": "--task query --credit uniform,oar-g --seeds 2 --steps 1 --out c --problems 8 "
    "--per_device_train_batch_size 16 --num_generations 4",
    "report": "run",
    "demo": "--steps 1 --problems 8 --output_dir d",
}
NO_NETWORK = """
import os, socket
def refused(*args, **kwargs):
    with open(os.environ["ASKED"], "a") as file:
        file.write(f"{args[:2]}\\n")
    raise OSError("no network")
connect = socket.socket.connect
socket.socket.connect = lambda self, to: connect(self, to) if self.family == socket.AF_UNIX else refused(self, to)
socket.getaddrinfo = refused
"""


@pytest.fixture
def folder(tmp_path: Path, model: Path, rows: Path) -> Path:
    """What the commands need: a model, rows, a data set by its name, a run."""
    announce_answers(model)
    problems = [json.loads(line) for line in rows.read_text().splitlines()]
    (tmp_path / "prompt.txt").write_text(problems[0]["problem"])
    judged = [{"completion": f"\\boxed{{{row['answer']}}}", "gold": row["answer"]} for row in problems]
    (tmp_path / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    (tmp_path / "data").mkdir()
    asked = [json.dumps({"id": f"q{number}", **row}) for number, row in enumerate(problems)]
    (tmp_path / "data" / "gsm8k_test.jsonl").write_text("\n".join(asked) + "\n")
    return tmp_path


def run(folder: Path, command: str, flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, "ASKED": str(folder / "asked")}
    return subprocess.run(
        [sys.executable, "-m", "tokencredit", command, *flags.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "command", [name if name == "attribute" else pytest.param(name, marks=pytest.mark.slow) for name in FLAGS]
)
def test_a_command(folder, command):
    if command == "evaluate" and importlib.util.find_spec("lm_eval") is None:
        pytest.skip("needs lm-evaluation-harness, the extra eval")
    if command == "report":
        assert run(folder, "train", f"--task query --max_steps 1 --output_dir run {SMALL}").returncode == 0
    done = run(folder, command, FLAGS[command])
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (folder / "asked").exists(), (folder / "asked").read_text()


def test_all_commands_are_among_them():
    assert set(FLAGS) == set(COMMANDS)


def test_what_is_not_here_is_named(folder):
    """A hub id that no cache holds: one line."""
    done = run(folder, "attribute", "--model nobody/nothing --prompt hello")
    assert done.returncode == 2 and "nobody/nothing" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
