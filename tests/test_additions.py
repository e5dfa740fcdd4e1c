"""The additions of `examples/additions.py`."""

import subprocess
import sys
from pathlib import Path

from tokencredit.tasks.data import load_problems

SCRIPT = Path(__file__).parents[1] / "examples" / "additions.py"


def test_every_sum_once_and_none_of_the_test_in_training(tmp_path):
    subprocess.run([sys.executable, SCRIPT, tmp_path], check=True)
    train, test = (load_problems(tmp_path / f"{name}.jsonl") for name in ("train", "test"))
    problems = [row["problem"] for row in train + test]
    assert len(problems) == len(set(problems)) == 90 * 90
    assert len(test) == 640
    for row in train[:50]:
        a, b = row["problem"].removeprefix("What is ").removesuffix("?").split(" + ")
        assert int(row["answer"]) == int(a) + int(b)
