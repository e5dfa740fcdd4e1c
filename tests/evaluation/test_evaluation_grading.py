"""Verdicts over several golds, and votes."""

from __future__ import annotations

from tokencredit.evaluation.grading import grade, score, votes
from tokencredit.evaluation.tasks import Problem


def test_any_gold_will_do():
    problem = Problem("a", "p", ("1/3", "0.333"))
    assert grade("\\boxed{0.333}", problem).verdict == "right"
    assert grade("\\boxed{\\frac{1}{3}}", problem).verdict == "right"
    assert grade("\\boxed{0.33}", problem).verdict == "wrong"
    assert grade("who knows", problem).verdict == "no-answer"


def test_tolerance_is_exact_at_its_edge():
    """4.2 + 0.1 is above 4.3 in binary floating point."""
    problem = Problem("a", "p", ("4.2",), tolerance="1e-1")
    assert grade("\\boxed{4.3}", problem).verdict == "right"
    assert grade("\\boxed{4.1}", problem).verdict == "right"
    assert grade("\\boxed{4.30001}", problem).verdict == "wrong"
    assert grade("\\boxed{x}", problem).verdict == "wrong"


def test_an_open_think_block_leaves_no_answer():
    problem = Problem("a", "p", ("3",))
    assert grade("hm, \\boxed{3}", problem, thinking=True).verdict == "no-answer"
    assert grade("hm</think>\\boxed{3}", problem, thinking=True).verdict == "right"


def test_equal_answers_vote_together():
    assert votes(["1/2", "0.5", None, "\\frac12", "2", "1/2"]) == [0, 0, None, 0, 1, 0]


def test_long_answers_vote_by_their_text():
    long = "+".join(["x"] * 150)
    assert votes([long, long, long + "+0"]) == [0, 0, 1]


def test_samples_as_scores():
    fields = {"verdict": "right", "answer": "4", "finish": "stop", "tokens": 7}
    cut = {"verdict": "no-answer", "answer": None, "finish": "length", "tokens": 9}
    unknown = {"verdict": "wrong", "answer": "5", "finish": None, "tokens": None}
    scored = score([fields, cut, unknown])
    assert [(s.right, s.vote, s.truncated, s.tokens) for s in scored] == [
        (True, 0, False, 7),
        (False, None, True, 9),
        (False, 1, None, None),
    ]
