"""`tokencredit verify`: counts, rows, refusals, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROWS = [
    {"completion": "So \\boxed{2}.", "gold": "2", "id": "a", "verdict": "old"},
    {"completion": "So \\boxed{3}.", "gold": 2, "id": "b"},
    {"completion": "I do not know. 不知道", "gold": "2"},
    {"completion": [{"role": "assistant", "content": "\\boxed{\\frac{1}{2}}"}], "gold": 0.5},
    {"completion": "\\boxed{2} hm", "gold": "2", "prompt": "1+1?\n<think>\n"},
    {"completion": "\\boxed{4.25}", "gold": "4.2", "tolerance": "1e-1"},
]


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_counts_and_rows(cli, tmp_path):
    data, out = write(tmp_path / "rows.jsonl", *ROWS), tmp_path / "judged.jsonl"
    outcome = cli("verify", "--data", data, "--out", out)
    assert outcome.code == 0
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["rows", "6"],
        ["right", "3", "50.0%"],
        ["wrong", "1", "16.7%"],
        ["no-answer", "2", "33.3%"],
    ]
    judged = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["verdict"] for row in judged] == [
        "right",
        "wrong",
        "no-answer",
        "right",
        "no-answer",
        "right",
    ]
    assert [row["answer"] for row in judged] == ["2", "3", None, "\\frac{1}{2}", None, "4.25"]
    assert all(row["reason"] for row in judged)
    assert judged[0] == {**ROWS[0], "verdict": "right", "answer": "2", "reason": "same text"}
    assert "不知道" in out.read_text(encoding="utf-8")
    assert cli("verify", "--data", out, "--out", out).out == outcome.out  # its own rows in, the same out


def test_flags(cli, tmp_path):
    data = write(tmp_path / "rows.jsonl", {"completion": "ans 3 \\boxed{2}", "gold": "3 \\boxed{2}"}, ROWS[0])
    assert "right             1" in cli("verify", "--data", data, "--marker", "ans").out
    assert "no-answer         2" in cli("verify", "--data", data, "--thinking").out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"completion": ', "line 2: not JSON"),
        ("[1]", "line 2: expected a JSON object, found list"),
        ({"gold": "2"}, "line 2: no field 'completion'"),
        ({"completion": "2"}, "line 2: no field 'gold'"),
        ({"completion": 2, "gold": "2"}, "line 2: 'completion' is neither text nor a list of chat messages"),
        (
            {"completion": [{"content": [{"type": "text", "text": 2}]}], "gold": "2"},
            "line 2: 'completion' is",
        ),
        ({"completion": [{"content": ["2"]}], "gold": "2"}, "line 2: 'completion' is neither text nor"),
        ('{"completion": "2", "gold": NaN}', "line 2: 'gold' is neither text nor a number"),
        ({"completion": "2", "gold": None}, "line 2: 'gold' is neither text nor a number"),
        ({"completion": "2", "gold": "\\frac{1}{"}, "line 2: the gold '\\\\frac{1}{' cannot be judged"),
        ({"completion": "2", "gold": " "}, "line 2: the gold ' ' cannot be judged: the gold is empty"),
        (
            {"completion": "2", "gold": "2", "tolerance": "small"},
            "line 2: the tolerance 'small' is no number",
        ),
    ],
)
def test_bad_rows(cli, tmp_path, row, message):
    data, out = write(tmp_path / "rows.jsonl", ROWS[0], row), tmp_path / "judged.jsonl"
    outcome = cli("verify", "--data", data, "--out", out)
    assert outcome.code == 2 and message in outcome.error
    assert outcome.out == "" and not out.exists()


def test_rows_whose_gold_cannot_be_judged_can_be_left_out(cli, tmp_path):
    data = write(tmp_path / "rows.jsonl", ROWS[0], {"completion": "2", "gold": "\\frac{1}{"})
    outcome = cli("verify", "--data", data, "--skip-unjudged")
    assert outcome.code == 0 and "rows              1" in outcome.out
    assert "left out 1 rows" in outcome.err and "line 2" in outcome.err


def test_files_that_cannot_be_used(cli, tmp_path):
    data = write(tmp_path / "rows.jsonl", ROWS[0])
    assert "no data file" in cli("verify", "--data", tmp_path / "none.jsonl").error
    assert "it is a folder" in cli("verify", "--data", data, "--out", tmp_path).error
    assert "its folder is not there" in cli("verify", "--data", data, "--out", tmp_path / "no" / "x").error
    assert "has no rows" in cli("verify", "--data", write(tmp_path / "empty.jsonl", "")).error
    assert "--data" in cli("verify").error
    assert "--marker is empty" in cli("verify", "--data", data, "--marker", " ").error


def test_ctrl_c_leaves_no_file_and_no_process(tmp_path):
    slow = "\\boxed{\\int \\frac{\\sin(x^x)\\log(x)}{e^{x^3}+\\tan x+%d}dx}"
    data = write(tmp_path / "rows.jsonl", *({"completion": slow % i, "gold": "x^2+7"} for i in range(500)))
    out = tmp_path / "judged.jsonl"
    command = [sys.executable, "-m", "tokencredit", "verify", "--data", str(data), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not psutil.Process(process.pid).children():  # until the workers are asked
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in errors and "Traceback" not in errors
    assert printed == "" and os.listdir(tmp_path) == ["rows.jsonl"]
