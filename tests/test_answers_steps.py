"""The equations of a step, and whether they hold."""

from __future__ import annotations

import pytest

from tokencredit.answers.arithmetic_steps import arithmetic_verdicts, equations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So 3 + 4 = 7 apples.", [("3+4", "7")]),
        (r"$3 \times 4 = 12$, and \frac{1}{2} = 1/2", [("3*4", "12"), ("(1/2)", "1/2")]),
        ("2. 3 × 4 = 12 = 10 + 2; 1,200 ÷ 3 = 400.", [("3*4", "12"), ("12", "10+2"), ("1200/3", "400")]),
        ("5 − 8 = -3", [("5-8", "-3")]),
        ("-5 + 8 = 3", [("-5+8", "3")]),
        ("(2 + 3) * 2^2 = 20", [("(2+3)*2^2", "20")]),
        ("7 = 3 + 4\n8 + 1 = 9", [("7", "3+4"), ("8+1", "9")]),
        ("S1 3 + 4 = 7 ;", [("3+4", "7")]),
        ("x = 3 + 4 = 7", [("3+4", "7")]),
        # What goes on in letters is another equation than the numbers alone.
        ("2x = 6", []),
        ("x - 3 = 4", []),
        ("f(2) + 1 = 3", []),
        ("3 + 4 = 7x", []),
        ("20 / 2 = 10%", []),
        ("x2 + 1 = 5", []),
        ("5 = 5, and 3 apples + 4 apples = 7 apples", []),
        ("(3 + 4 = 7", [("3+4", "7")]),
        ("3 + = 7 and = 4", []),
    ],
)
def test_equations(text, expected):
    assert equations(text) == expected


def test_long_runs_take_no_time():
    assert equations("1 " * 20_000) == [] and equations("1+" * 10_000 + "1") == []


def test_verdicts():
    """In the answer workers; a step is wrong with its first wrong equation."""
    steps = [["We see.", "3 + 4 = 7.", "7 * 2 = 14 and 14 - 1 = 12.", "10 / 3 = 3.33"], [], ["10 / 3 = 3.34"]]
    assert arithmetic_verdicts(["", "", ""], steps) == [[None, True, False, True], [], [False]]
