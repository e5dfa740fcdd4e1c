"""Problems and golds as the data sets write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokencredit.errors import UsageError
from tokencredit.evaluation.grading import grade
from tokencredit.evaluation.tasks import BENCHMARKS, fingerprint, load

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def write(tmp_path: Path):
    """Writes a task's file, and the one with further fields, into a folder."""

    def written(task: str, rows: list[dict[str, Any]], meta: list[dict[str, Any]] | None = None) -> Path:
        for suffix, content in ((".jsonl", rows), (".meta.jsonl", meta)):
            if content is not None:
                text = "".join(json.dumps(row) + "\n" for row in content)
                (tmp_path / f"{BENCHMARKS[task].file}{suffix}").write_text(text)
        return tmp_path

    return written


def only(task: str, folder: Path):
    (problem,), left_out = load(task, folder)
    assert not left_out
    return problem


def stated(tolerance: str | None) -> dict[str, Any]:
    """Further fields of a row of OlympiadBench."""
    return {"id": "o", "answer_type": "Numerical", "error": tolerance}


def boxed(answer: str) -> str:
    return f"So it is \\boxed{{{answer}}}."


def test_leading_zeros(write):
    problem = only("aime2024", write("aime2024", [{"id": "a", "problem": "p", "answer": "025"}]))
    assert grade(boxed("25"), problem).verdict == "right"
    assert grade(boxed("025"), problem).verdict == "right"
    assert grade(boxed("250"), problem).verdict == "wrong"


def test_gsm8k_of_the_hub(write):
    row = {"question": "How many?", "answer": "3*7=21\n#### 1,021"}
    problem = only("gsm8k", write("gsm8k", [row]))
    assert problem.golds == ("1,021",) and problem.text == "How many?" and problem.id == "0"
    assert grade(boxed("1021"), problem).verdict == "right"


def test_several_answers_are_all_needed(write):
    rows = [{"id": "o", "problem": "p", "answer": "$69$,$84$"}]
    problem = only("olympiadbench", write("olympiadbench", rows, [stated(None)]))
    assert grade(boxed("84, 69"), problem).verdict == "right"
    assert grade(boxed("69"), problem).verdict == "wrong"


def test_olympiadbench_of_the_hub(write):
    row = {"question": "p", "final_answer": ["4.2"], "solution": ["long"]} | stated("1e-1")
    problem = only("olympiadbench", write("olympiadbench", [row]))
    assert (problem.id, problem.golds, problem.tolerance) == ("o", ("4.2",), "1e-1")


def test_tolerance_only_where_it_is_stated(write):
    rows = [{"id": "o", "problem": "p", "answer": "4.2"}]
    near = only("olympiadbench", write("olympiadbench", rows, [stated("1e-1")]))
    assert grade(boxed("4.3"), near).verdict == "right"
    assert grade(boxed("4.31"), near).verdict == "wrong"
    assert grade("I do not know", near).verdict == "no-answer"
    exact = only("olympiadbench", write("olympiadbench", rows, [stated(None)]))
    assert grade(boxed("4.3"), exact).verdict == "wrong"


def test_numbers_as_floats(write):
    problem = only("amc", write("amc", [{"id": 0, "problem": "p", "answer": 142.0}]))
    assert grade(boxed("142"), problem).verdict == "right"


def test_a_spelling_that_can_be_judged_stands_in_for_one_that_cannot(write):
    rows = [{"id": "m", "problem": "p", "answer": "\\frac{1}{"}]
    problem = only("minerva", write("minerva", rows, [{"id": "m", "alt_answers": ["\\frac{", "0.5"]}]))
    assert problem.golds == ("0.5",)


def test_other_spellings_of_a_gold(write):
    rows = [{"id": "m", "problem": "p", "answer": "6630"}]
    folder = write("minerva", rows, [{"id": "m", "alt_answers": ["6630.65", "6630"]}])
    problem = only("minerva", folder)
    assert grade(boxed("6630.65"), problem).verdict == "right"
    assert grade(boxed("6630"), problem).verdict == "right"
    assert grade(boxed("6631"), problem).verdict == "wrong"


def test_spellings_that_contradict_the_gold_do_not_count(write):
    """They belong to another part of the problem."""
    rows = [{"id": "m", "problem": "p", "answer": "0.53"}]
    problem = only("minerva", write("minerva", rows, [{"id": "m", "alt_answers": ["4.4e7"]}]))
    assert problem.golds == ("0.53",)


def test_a_row_that_cannot_be_judged_is_left_out_with_its_place(write):
    broken = "\\frac{1}{"
    rows = [{"problem": "p", "answer": "1"}, {"problem": "q", "answer": broken}]
    problems, left_out = load("gsm8k", write("gsm8k", rows))
    assert [problem.text for problem in problems] == ["p"]
    assert len(left_out) == 1 and "row 2" in left_out[0] and broken in left_out[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "problem": "p", "answer": "1"}] * 2, "two rows have the id 'a'"),
        ([{"id": "a", "problem": "", "answer": "1"}], "'problem' is empty"),
        ([{"id": "a", "problem": "p"}], "no column for the gold"),
        (
            [{"id": "a", "problem": "p", "answer": "1", "tolerance": "much"}],
            "line 1: the tolerance 'much' is no number",
        ),
    ],
)
def test_bad_rows(write, rows, message):
    with pytest.raises(UsageError, match=message):
        load("gsm8k", write("gsm8k", rows))


def test_bad_meta(write):
    folder = write("gsm8k", [{"id": "a", "problem": "p", "answer": "1"}])
    for content in ("[]\n", '{"error": "1"}\n'):
        (folder / "gsm8k_test.meta.jsonl").write_text(content)
        with pytest.raises(UsageError, match=r"gsm8k_test.meta.jsonl, line 1"):
            load("gsm8k", folder)


def test_unknown_task_and_missing_file(tmp_path):
    with pytest.raises(UsageError, match="no evaluation task 'gsm9k'; there are gsm8k, math500"):
        load("gsm9k")
    with pytest.raises(UsageError, match=r"holds no aime2025.jsonl, the file of the task aime2025"):
        load("aime2025", tmp_path)


def test_the_hub_is_asked_for_the_tasks_data_set(monkeypatch):
    asked = []

    def load_dataset(*source: Any, **settings: Any) -> list[dict[str, Any]]:
        asked.append((*source, settings["split"]))
        return [{"question": "p", "answer": "1+1=2\n#### 2"}] * 3

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    problems, _ = load("gsm8k", limit=2)
    assert asked == [("openai/gsm8k", "main", "test")]
    assert [(problem.id, problem.golds) for problem in problems] == [("0", ("2",)), ("1", ("2",))]


def test_fingerprint_tells_data_apart(write):
    rows = [{"id": "a", "problem": "p", "answer": "1"}, {"id": "b", "problem": "q", "answer": "2"}]
    problems, _ = load("gsm8k", write("gsm8k", rows))
    assert fingerprint(problems) != fingerprint(problems[:1])
    assert fingerprint(problems) == fingerprint(load("gsm8k", write("gsm8k", rows))[0])


def test_limit(write):
    rows = [{"problem": f"p{n}", "answer": str(n)} for n in range(5)]
    problems, _ = load("gsm8k", write("gsm8k", rows), limit=2)
    assert [problem.text for problem in problems] == ["p0", "p1"]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the data sets")
@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("gsm8k", 1319),
        ("aime2024", 30),
        ("aime2025", 30),
        ("amc2023", 40),
        ("amc", 83),
        pytest.param("math500", 500, marks=pytest.mark.slow),
        pytest.param("minerva", 272, marks=pytest.mark.slow),
        pytest.param("olympiadbench", 675, marks=pytest.mark.slow),
    ],
)
def test_real_golds_verify_against_themselves(task, rows):
    problems, left_out = load(task, DATA)
    assert len(problems) == rows and not left_out
    assert [p.golds for p in problems if grade(boxed(p.golds[0]), p).verdict != "right"] == []
