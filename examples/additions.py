"""Additions of two two-digit numbers as problems for `--dataset`, split so that no test problem is trained on.

python examples/additions.py FOLDER      # writes FOLDER/train.jsonl and FOLDER/test.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

TEST_PROBLEMS = 640


def additions(seed: int = 0) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """All 8,100 sums a + b with 10 <= a, b <= 99 in an order drawn from the seed: for training, and for testing."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(seed).shuffle(pairs)
    rows = [{"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]
    return rows[TEST_PROBLEMS:], rows[:TEST_PROBLEMS]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("train", "test"), additions(), strict=True):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows):,} problems")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "additions"))
