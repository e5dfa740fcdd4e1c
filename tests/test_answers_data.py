"""The golds of real data sets, where they lie beside the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokencredit.answers import check_gold, verify_all

FOLDERS = sorted(Path(__file__).resolve().parents[2].glob("*/data"))
DATA = [path for folder in FOLDERS for path in sorted(folder.glob("*.jsonl")) if ".meta." not in path.name]


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if "math_train" in p.name else []) for p in DATA],
)
def test_every_gold_in_a_box_is_right(path: Path) -> None:
    golds = [str(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").split("\n") if line]
    golds = [gold.rpartition("####")[2].strip() for gold in golds]
    verdicts = verify_all([(f"So it is $\\boxed{{{gold}}}$.", gold) for gold in golds])
    assert [g for g, v in zip(golds, verdicts, strict=True) if v.verdict != "right" or check_gold(g)] == []
    padded = verify_all(
        [(f"\\boxed{{ \\, {gold} . }}", gold) for gold in golds]
    )  # not the same text any more
    assert [g for g, v in zip(golds, padded, strict=True) if v.verdict != "right"] == []


@pytest.mark.parametrize("path", [p for p in DATA if p.name == "minervamath.jsonl"])
def test_other_spellings_of_minerva_golds(path: Path) -> None:
    """Of each list in which any spelling says what the gold says, nearly all do; other lists belong elsewhere."""
    golds = {row["id"]: row["answer"] for row in map(json.loads, path.read_text().splitlines())}
    meta = map(json.loads, path.with_name("minervamath.meta.jsonl").read_text().splitlines())
    rows = [(f"\\boxed{{{each}}}", golds[row["id"]]) for row in meta for each in row["alt_answers"]]
    wrong = [row for row, verdict in zip(rows, verify_all(rows), strict=True) if verdict.verdict != "right"]
    assert len(rows) > 300 and len(wrong) < 60
