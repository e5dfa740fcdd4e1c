"""The scripts under `benchmarks/` that need a GPU or hours: that they run, and what they conclude."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from soak import COUNTS, Sample, verdict

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def samples(memory, **counts) -> list[Sample]:
    """One a minute for two hours, with what is given as functions of the minute."""
    fixed = dict(megabytes_of_children=100.0, children=3, files=8, threads=6, hooks=0)
    return [
        Sample(minute, minute, memory(minute), **{**fixed, **{k: each(minute) for k, each in counts.items()}})
        for minute in range(121)
    ]


def test_flat_and_growing_runs():
    def flat(each: list[Sample]) -> dict[str, bool]:
        return {name: found["flat"] for name, found in verdict(each, 10.0).items()}

    everything = dict.fromkeys(("memory", *COUNTS), True)
    # Growth before the warm-up doesn't count, nor does noise around a level.
    assert flat(samples(lambda minute: 700.0 + 30 * min(minute, 10) + 15 * (minute % 2))) == everything
    # 1 MB a minute: the medians of the quarters are 82 minutes apart.
    assert flat(samples(lambda minute: 700.0 + minute)) == {**everything, "memory": False}
    assert flat(samples(lambda minute: 700.0 + 0.1 * minute)) == everything
    for name in COUNTS:
        grown = samples(lambda minute: 700.0, **{name: lambda minute: 5 + (minute > 60)})
        assert flat(grown) == {**everything, name: False}


@pytest.mark.slow
def test_a_short_soak(tmp_path):
    flags = ["--minutes", "0.4", "--warm-up", "0.1", "--every", "2", "--rows", "16"]
    command = [sys.executable, BENCHMARKS / "soak.py", *flags, "--json", tmp_path / "soak.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "left in the end" in done.stdout, done.stderr[-2000:]
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["found"]["left"] == {"children": 0, "files": 0, "hooks": 0, "flat": True}
    assert {each["hooks"] for each in found["samples"]} == {0}
    assert max(each["children"] for each in found["samples"]) >= 3  # the answers were judged by workers


@pytest.mark.slow
def test_what_is_for_gpus_runs_on_a_cpu(tmp_path):
    flags = ["--device", "cpu", "--reasoning", "8", "--rows", "4", "--tokens", "8", "--repeats", "1"]
    command = [sys.executable, BENCHMARKS / "gpu" / "measure.py", *flags, "--json", tmp_path / "gpu.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["machine"]["device"] == "cpu" and len(found["attribution"]) == 6
    assert {row["failed"] for row in found["steps"]} == {None} and len(found["steps"]) == 6
    assert all(row["credit_seconds"] > 0 for row in found["steps"] if row["credit"] != "uniform")
