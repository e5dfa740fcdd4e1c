"""Problems in every form that is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokencredit.errors import UsageError
from tokencredit.tasks.data import load_problems


@pytest.fixture
def write(tmp_path: Path):
    """Writes rows (objects, or raw lines) to a JSON lines file."""

    def writer(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return writer


@pytest.mark.parametrize(
    ("row", "problem", "answer"),
    [
        ({"problem": "1+1?", "answer": "2"}, "1+1?", "2"),
        ({"prompt": "1+1?", "answer": 2}, "1+1?", "2"),
        ({"question": "1+1?", "answer": "One and one.\n#### 1,002"}, "1+1?", "1,002"),
        ({"problem": "1+1?", "solution": r"So \boxed{1}. No, \boxed{\frac{4}{2}}."}, "1+1?", r"\frac{4}{2}"),
        ({"question": "1+1?", "final_answer": ["$2$", "$3$"], "solution": ["a"]}, "1+1?", "$2$, $3$"),
        ({"problem": "x^2=1?", "solution": r"So \boxed{1} or \boxed{-1}."}, "x^2=1?", "1, -1"),
        (
            {"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"},
            [{"role": "user", "content": "1+1?"}],
            "2",
        ),
    ],
)
def test_forms(write, row, problem, answer):
    (found,) = load_problems(write(row))
    assert (found["problem"], found["answer"]) == (problem, answer)


def test_other_columns_stay_and_the_order_holds(write):
    rows = [{"problem": f"{i}?", "answer": i, "level": i} for i in range(5)]
    found = load_problems(write(*rows), limit=3)
    assert [(row["answer"], row["level"]) for row in found] == [("0", 0), ("1", 1), ("2", 2)]


def test_answer_goes_before_solution(write):
    (found,) = load_problems(write({"problem": "?", "solution": r"\boxed{1}", "answer": "2"}))
    assert found["answer"] == "2"


def test_tolerances(write):
    rows = [{**GOOD, "tolerance": 0.5}, {**GOOD, "tolerance": None}]
    assert [row["tolerance"] for row in load_problems(write(*rows))] == ["0.5", None]
    rows = [{**GOOD, "error": "1e-1", "answer_type": "Numerical"}, {**GOOD, "error": "timeout"}]
    assert load_problems(write(rows[0]))[0]["tolerance"] == "1e-1"
    assert "tolerance" not in load_problems(write(rows[1]))[0]
    with pytest.raises(UsageError, match="line 1: the tolerance 'small' is no number"):
        load_problems(write({**GOOD, "tolerance": "small"}))


def test_blank_lines_and_a_byte_order_mark_are_no_rows(write):
    found = load_problems(write("\ufeff" + json.dumps({"problem": "a", "answer": "1"}), "", "  "))
    assert len(found) == 1


def test_other_files(tmp_path: Path):
    (tmp_path / "rows.csv").write_text("question,answer\n1+1?,2\n")
    (tmp_path / "rows.json").write_text(json.dumps([{"question": "1+1?", "answer": "2"}]))
    for name in ("rows.csv", "rows.json"):
        (found,) = load_problems(tmp_path / name)
        assert (found["problem"], found["answer"]) == ("1+1?", "2")


def test_saved_data_set(tmp_path: Path):
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list([{"problem": "1+1?", "answer": "2"}])
    DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "saved"))
    assert load_problems(tmp_path / "saved")[0]["answer"] == "2"
    with pytest.raises(UsageError, match="no split 'test'; it has train"):
        load_problems(tmp_path / "saved", split="test")


GOOD = {"problem": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, '{"problem": '], "line 2: not JSON"),
        ([GOOD, "", "[1]"], "line 3: expected a JSON object, found list"),
        ([GOOD, {"problem": " ", "answer": "2"}], "line 2: 'problem' is empty"),
        ([{"prompt": [], "answer": "2"}], "line 1: 'prompt' is empty"),
        ([{"problem": None, "answer": "2"}], "line 1: 'problem' is neither text"),
        ([GOOD, {"problem": "a", "answer": " "}], "line 2: the gold in 'answer' is empty"),
        ([GOOD, {"problem": "a", "answer": None}], "line 2: 'answer' is neither text nor a number"),
        ([{"problem": "a", "answer": "Hm.\n#### "}], "line 1: the gold in 'answer' is empty"),
        ([{"problem": "a", "solution": "no box"}], "line 1: no .*boxed.* in 'solution'"),
        ([GOOD, {"problem": "a"}], "line 2: no column 'answer', which the first row has"),
        ([{"text": "a", "answer": "2"}], "needs one of problem, prompt, question, and has 'text', 'answer'"),
        (
            [{"problem": "a", "gold": "2"}],
            "needs one of answer, final_answer, solution, and has 'problem', 'gold'",
        ),
        ([{**GOOD, "completions": "x"}], "column 'completions', which clashes"),
        ([{**GOOD, "image": "x"}], "column 'image', but multimodal"),
        ([GOOD, {"problem": "a", "answer": r"\frac{1}{"}], "line 2: the gold .* cannot be judged"),
        ([], "has no rows"),
    ],
)
def test_refusals(write, rows, message):
    with pytest.raises(UsageError, match=message):
        load_problems(write(*rows))


def test_unjudged_golds_can_be_left_out(write):
    skipped: list[str] = []
    path = write(GOOD, {"problem": "a", "answer": r"\frac{1}{"}, GOOD)
    assert len(load_problems(path, on_unjudged=skipped.append)) == 2
    assert len(skipped) == 1 and "line 2" in skipped[0]


def test_golds_are_not_asked_for_where_rewards_do_without(write):
    (found,) = load_problems(write({"prompt": "Write a poem."}), golds=False)
    assert found["problem"] == "Write a poem."


def test_sources_that_are_not_there(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no data file .*none\.jsonl"):
        load_problems(tmp_path / "none.jsonl")
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(UsageError, match=r"cannot tell the form of .*it must end in"):
        load_problems(tmp_path / "rows.txt")
    with pytest.raises(UsageError, match="'nobody/no-such-data'"):
        load_problems("nobody/no-such-data")


def test_bytes_that_are_no_text(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    with pytest.raises(UsageError, match="line 2: not JSON"):
        load_problems(path)
