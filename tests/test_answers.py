"""What is the answer, and is it right; by kind of trouble seen in the wild."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tokencredit.answers import (
    Verdict,
    accuracy_reward,
    accuracy_reward_for,
    check_gold,
    extract,
    format_reward,
    format_reward_for,
    opens_thinking,
    verify,
    verify_all,
)
from tokencredit.errors import UsageError

EXTRACTED = [
    ("so \\boxed{\\frac{\\sqrt{2}}{3}}", "\\frac{\\sqrt{2}}{3}", "boxed", "\\boxed{"),
    ("so \\boxed{1}. No: \\boxed{ 2 } is it", "2", "boxed", "\\boxed{ "),
    ("so \\fbox{8}", "8", "boxed", "\\fbox{"),
    ("so $\\boxed 7$", "7", "boxed", "\\boxed "),
    ("so \\boxed{\\boxed{5}}", "5", "boxed", "\\boxed{\\boxed{"),
    ("a set \\boxed{\\{1, 2\\}} here", "\\{1, 2\\}", "boxed", "\\boxed{"),
    ("a stray { and \\boxed{4}", "4", "boxed", "\\boxed{"),
    ("\\boxed{3}, written in a \\boxed{}", "3", "boxed", "\\boxed{"),
    ("<answer> 8 </answer>", "8", "<answer>", "<answer> "),
    ("<answer>It is \\boxed{42} m</answer>", "42", "boxed", "\\boxed{"),
    ("\\boxed{8}? Rather <answer>9</answer>", "9", "<answer>", "<answer>"),
    ("\\boxed{9} as <answer></answer> says", "9", "boxed", "\\boxed{"),
    ("2+40=42\n#### 42\nand that is all", "42", "####", "#### "),
    ("#### Step 1\nadd\n#### -3", "-3", "####", "#### "),
    ("The answer is $29.00.", "$29.00", "phrase", "The answer is "),
    ("hence the final answer is $\\frac{1}{2}$, as hoped", "\\frac{1}{2}", "phrase", "the final answer is $"),
    ("**Answer:** 4.", "4", "phrase", "Answer:** "),
    ("Final Answer: **73**", "73", "phrase", "Final Answer: **"),
    ("The answer is 3, 11, 33, because they fit.", "3, 11, 33", "phrase", "The answer is "),
    ("The answer to the riddle is 1,234 coins", "1,234 coins", "phrase", "The answer to the riddle is "),
    ("the answer is 4<|im_end|>", "4", "phrase", "the answer is "),
    ("所以最终答案：$\\frac{3}{4}$。", "\\frac{3}{4}", "phrase", "最终答案：$"),
    ("<think>\\boxed{8}</think> the answer is \\boxed{9}", "9", "boxed", "\\boxed{"),
    ("added up.</think>\n\\boxed{4}", "4", "boxed", "\\boxed{"),
]


@pytest.mark.parametrize(("completion", "text", "rule", "marker"), EXTRACTED)
def test_extract(completion: str, text: str, rule: str, marker: str) -> None:
    answer = extract(completion)
    assert answer is not None
    assert (answer.text, answer.rule) == (text, rule)
    assert completion[answer.start : answer.end] == text
    assert completion[answer.marker_start : answer.start] == marker


NO_ANSWER = [
    "",
    " \n\n ",
    "I could not work it out.",
    "the result goes inside \\boxed{}. Let me",
    "it is \\boxed{\\frac{3}{",
    "first \\boxed{12}, no, recounting \\boxed{1",  # the retracted one must not be paid
    "<think>so</think><answer></answer>",
    "<think>so \\boxed{3}",
    "<think>a</think> \\boxed{3} <think> or",
    "the answer is ",
]


@pytest.mark.parametrize("completion", NO_ANSWER)
def test_no_answer(completion: str) -> None:
    assert extract(completion) is None
    assert verify(completion, "3") == Verdict("no-answer", None, "no answer found")


def test_a_marker_of_the_task_excludes_other_rules() -> None:
    answer = extract("answers: ans 1 ; \\boxed{3} ; ans 2 5", marker="ans")
    assert answer is not None and (answer.text, answer.rule, answer.marker_start) == ("2 5", "marker", 29)
    assert extract("answers \\boxed{3}", marker="ans") is None
    assert verify("Result => 7", "7", marker="=>").verdict == "right"


def test_thinking_opened_in_the_prompt() -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("Think inside <think> tags, then answer.")
    assert not opens_thinking("<think>\n\n</think>\n\n")
    assert extract("\\boxed{3}", thinking=True) is None
    assert extract("so</think>\\boxed{3}", thinking=True) is not None


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{",
        "<answer>",
        "the answer is ",
        "\n#### 1",
        "{",
        "$",
        "answer to ",
        "\\(",
        "the answer is \\(",
        "the answer is \\[\n",
        "the answer is 5" + " " * 399_000 + "x",
        "\\boxed{5}" + " " * 399_000 + "x",
        "<answer>" + " " * 399_000 + "x",
        "#### " + "x" * 399_000 + " y",
        "wait, " * 7,
        "final ",
        "\\boxed{\\boxed{",
        "\\boxed{5}, ",
        "\\boxed x{",
        "\\boxed 1",
        "\\boxed{5}\n - ",
        "the answer is }",
        "not ",
        "A: ",
        "<answer>The sum is ",
        " ",
    ],
)
def test_extraction_takes_linear_time(text: str) -> None:
    """Of the processor's time, which other programs do not use up; in quadratic time it would take minutes."""
    began = time.thread_time()
    extract(text * (400_000 // len(text)))
    assert time.thread_time() - began < 20


RIGHT = [
    ("\\dfrac{\\sqrt{3}}{2}", "\\frac{\\sqrt{3}}{2}"),
    ("1,234,567", "1234567"),
    ("45,\\!045", "45045"),
    ("\\$1,250.50", "1250.5"),
    ("54\\text{ gallons}", "54"),
    ("12\\text{ cm}^2", "12"),
    ("5 miles", "5\\text{ mile}"),
    ("60^\\circ", "60"),
    ("28\\%", "28"),
    ("25\\%", "\\frac14"),
    ("\\frac12", "1/2"),
    ("\\tfrac{3}{4}", "0.75"),
    ("2\\frac{1}{2}", "2.5"),
    ("-1\\frac{1}{2}", "-\\frac{3}{2}"),
    ("0.\\overline{3}", "\\frac{1}{3}"),
    ("033", "33"),
    ("1.6 × 10^3", "1600"),
    ("4.5\\times 10^{-3}", "4.5e-3"),
    ("3, 11, 33", "33,3,11"),
    ("(1, 4.5)", "(1,\\frac{9}{2})"),
    ("\\{2, 1\\}", "\\{1,2\\}"),
    ("2 \\text{ and } 3", "2, 3"),
    ("2, -2", "\\pm 2"),
    ("x \\in [0, 1]", "[0,1]"),
    ("x = 5", "5"),
    ("5", "x=5"),
    ("\\sqrt 8", "2\\sqrt{2}"),
    ("-1 + e^{16}", "e^{16} - 1"),
    ("(x-1)(x+1)", "x^2-1"),
    ("(3,\\infty)\\cup(-\\infty,1)", "(-\\infty,1) \\cup (3,\\infty)"),
    ("\\begin{pmatrix}1\\\\-2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ -2 \\end{pmatrix}"),
    ("2516_{8}", "2516_8"),
    ("Evelyn", "\\text{Evelyn}"),
    ("\\textbf{(B)}", "\\text{B}"),
    ("\\text{13}", "13"),
    ("6, 8\\text{, and }10", "6,8,10"),
    ("-1+\\frac{2}{3}", "-\\frac{1}{3}"),
    ("2^3\\frac{1}{2}", "4"),
    ("\\$5", "5\\text{ dollars}"),
    ("10 000", "10000"),
    ("x>3", "(3,\\infty)"),
    ("y=2x+1", "1+2x"),
    ("e^{-100}", "\\frac{1}{e^{100}}"),
    ("1" + "0" * 5000, "1" + "0" * 5000 + ".0"),
]
WRONG = [
    ("31133", "3,11,33"),
    ("5\\text{ cm}", "5\\text{ m}"),
    ("28\\%", "2.8\\%"),
    ("3", "-3"),
    ("2\\frac{1}{2}", "1"),
    ("0.333", "\\frac{1}{3}"),
    ("1.41421356", "\\sqrt{2}"),
    ("\\frac{1000001}{1000000}", "1"),
    ("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}"),
    ("e^{-100}", "e^{-101}"),
    ("4.5\\times 10^{-33}", "4.5e33"),
    ("(-1, 3)", "(3,-1)"),
    ("(2,5)", "[2,5)"),
    ("1728", "1331, 1728"),
    ("1", "1, 1"),
    ("21, 36, 82", "19, 46, 82"),
    ("2021", "\\pm 2021"),
    ("3x-y+13=0", "3x + 4y + 14=0"),
    ("n = 1, 2, 3", "n=2, 3, 4"),
    ("4\\sqrt(2)", "4"),
    ("4xyz", "4"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
    ("1:00", "12:00"),
    ("1 2", "12"),
    ("\\$5", "£5"),
    ("\\$5\\text{ million}", "5"),
    ("5\\text{ or more}", "5"),
    ("10010_2", "10010_3"),
    ("\\text{odd}", "\\text{even}"),
    ("\\text{October 31}", "\\text{October 30}"),
    ("12 +", "12"),
    ("\\foo{7}", "7"),
    ("\\infty", "-\\infty"),
    ("7" * 5000, "7"),
]


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_right(answer: str, gold: str) -> None:
    verdict = verify(f"So \\boxed{{{answer}}}.", gold)
    assert (verdict.verdict, verdict.answer) == ("right", answer)
    assert check_gold(gold) is None


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong(answer: str, gold: str) -> None:
    verdict = verify(f"So \\boxed{{{answer}}}.", gold)
    assert (verdict.verdict, verdict.answer) == ("wrong", answer)
    assert verdict.reason


CASE_FILES = sorted(Path(__file__).resolve().parents[2].glob("*/cases/verify_cases.jsonl"))


@pytest.mark.skipif(not CASE_FILES, reason="no file of further cases beside the repository")
def test_further_cases() -> None:
    names = {True: "right", False: "wrong", None: "no-answer"}
    cases = [json.loads(line) for line in CASE_FILES[0].read_text(encoding="utf-8").splitlines()]
    failed = [c["id"] for c in cases if verify(c["completion"], c["gold"]).verdict != names[c["expected"]]]
    assert failed == []


def test_golds_that_cannot_be_judged_are_refused() -> None:
    for gold in ("72", "\\frac{1}{2}", "\\text{(C)}", "x=5", "12\\text{ cm}", "(1,2), (3,4)", "Monday"):
        assert check_gold(gold) is None
    assert check_gold(" ") == "the gold is empty"
    assert "brackets of the gold" in str(check_gold("\\frac{1}{"))
    assert "cannot be parsed" in str(check_gold("5 +"))
    assert "cannot be parsed" in str(check_gold("\\foo{7}"))
    assert "longer" in str(check_gold("x+" * 10_000))


def test_accuracy_reward() -> None:
    chat = [{"role": "user", "content": "\\boxed{3}"}, {"role": "assistant", "content": "\\boxed{4}"}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "\\boxed{4}"}]}]
    completions = ["\\boxed{4}", "\\boxed{5}", "none", chat, parts, "\\boxed{4}", "\\boxed{4}", "\\boxed{4}"]
    golds = ["4", "4", "4", "4", 4, None, "\\frac{", "4"]
    prompts = [*["p"] * 7, "p\n<think>\n"]
    assert accuracy_reward(completions, golds, prompts=prompts) == [1.0, 0.0, 0.0, 1.0, 1.0, None, None, 0.0]
    assert accuracy_reward([], [], trainer_state=None) == []


def test_accuracy_reward_as_configured() -> None:
    texts, golds = ["hm", "\\boxed{4.25}", "\\boxed{5}"], ["4", "4.2", "4"]
    assert accuracy_reward_for(no_answer=None)(texts, golds) == [None, 0.0, 0.0]
    assert accuracy_reward(texts, golds, tolerance=[None, "0.1", None]) == [0.0, 1.0, 0.0]
    with pytest.raises(UsageError, match="the tolerance 'x' is no number"):
        accuracy_reward(texts, golds, tolerance=[None, "x", None])


def test_format_reward() -> None:
    texts = ["\\boxed{4}", "<answer>4</answer>", "The answer is 4", "\\boxed{}", "a</think>\\boxed{4}"]
    assert format_reward(texts) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert format_reward_for(thinking=True)(texts) == [0.0, 0.0, 0.0, 0.0, 1.0]
    twice = ["<think>a</think>\\boxed{4}", "<think>a</think><think>b</think>\\boxed{4}", "<think>\\boxed{4}"]
    assert format_reward(twice, prompts=["p"] * 3) == [1.0, 0.0, 0.0]
    assert format_reward(["a</think>\\boxed{4}"], prompts=["p\n<think>\n"]) == [1.0]
    assert format_reward([[{"role": "assistant", "content": "\\boxed{4}"}]]) == [1.0]


def test_verify_within_a_stated_tolerance() -> None:
    assert verify("\\boxed{4.3}", "4.2", tolerance="1e-1").verdict == "right"
    assert verify("\\boxed{4.31}", "4.2", tolerance="1e-1").verdict == "wrong"
    assert verify("\\boxed{4.3\\%}", "4.2", tolerance=0.1).reason == "within 0.1"
    assert verify("\\boxed{\\sqrt{18}}", "4.2", tolerance=0.1).verdict == "right"
    assert verify("\\boxed{4.3, 1}", "4.2,1", tolerance=0.1).verdict == "right"
    assert verify("\\boxed{4.3}", "4.2,1", tolerance=0.1).verdict == "wrong"
    assert verify("\\boxed{x}", "4.2", tolerance=0.1).verdict == "wrong"
    assert verify("\\boxed{4.3}", "4.2", tolerance="").verdict == "wrong"


def test_no_answer_is_right_against_a_gold_that_cannot_be_judged() -> None:
    for gold in ("5 +", "\\foo{7}", ""):
        assert verify(f"\\boxed{{{gold}}}", gold).verdict != "right"


def test_verify_all_keeps_the_order() -> None:
    rows = [(f"\\boxed{{{i}+x}}", f"x+{i + i % 2}") for i in range(20)]
    assert [v.verdict for v in verify_all(rows)] == ["wrong" if i % 2 else "right" for i in range(20)]


def test_accuracy_reward_of_a_template_that_opens_a_think_block() -> None:
    texts = ["so \\boxed{5} let me check", "so \\boxed{4} </think> \\boxed{5}", "\\boxed{5}"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    prompts = [[{"role": "user", "content": "?"}]] * 3
    reward = accuracy_reward_for(thinking=True)
    assert reward.__name__ == "accuracy_reward"
    assert reward(chats, ["5"] * 3, prompts=prompts) == [0.0, 1.0, 0.0]
    assert reward(texts, ["5"] * 3, prompts=["plain prompts speak for themselves"] * 3) == [1.0, 1.0, 1.0]
    assert accuracy_reward_for(thinking=False)(chats, ["5"] * 3, prompts=prompts) == [1.0, 1.0, 1.0]
