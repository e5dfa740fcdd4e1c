"""Values of formulas without letters, against sympy."""

from __future__ import annotations

import pytest
import sympy

from tokencredit.answers import worker
from tokencredit.answers.constants import constant, plainly_different
from tokencredit.answers.equality import judge

READ = {
    "2\\sqrt{3}": 2 * sympy.sqrt(3),
    "-\\frac{\\pi}{6}+1": 1 - sympy.pi / 6,
    "(1+2)(3-5)": sympy.Integer(-6),
    "2^{10}-3^{-2}": 1024 - sympy.Rational(1, 9),
    "\\sqrt[3]{2}\\times 10^{5}": 10**5 * sympy.cbrt(2),
    "8/3/2": sympy.Rational(4, 3),
    "\\frac{1+\\sqrt{5}}{2}": sympy.GoldenRatio,
    "-2^2": sympy.Integer(-4),
    "2^{1/3}": sympy.cbrt(2),
    "(-2)^{3}": sympy.Integer(-8),
}


@pytest.mark.parametrize("text", READ)
def test_what_is_read(text: str) -> None:
    value = constant(text)
    assert value is not None
    assert abs(sympy.Float(str(value), 50) - READ[text].evalf(50)) < 1e-40


@pytest.mark.parametrize(
    "text",
    [
        *(
            "x",
            "2x",
            "1/2\\pi",
            "\\sqrt{-4}",
            "5!",
            "2^3^4",
            "0^{0}",
            "\\frac{1}{0}",
            "(1",
            "1)",
            "2,3",
            "e^{2}",
        ),
        *("10^{5000}", "(-8)^{1/3}", "\\sin 2", "2^34", "", "+", "1+" * 200 + "1"),
    ],
)
def test_what_is_not(text: str) -> None:
    assert constant(text) is None


def test_values_that_differ_are_told_apart_without_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "reply_to", None)
    assert not judge("2\\sqrt{3}", "3\\sqrt{2}")
    assert not judge("\\frac{\\pi}{4}", "\\frac{\\pi}{3}")


def test_values_that_are_close_are_left_to_algebra() -> None:
    assert not plainly_different("\\sqrt{2}+10^{-30}", "\\sqrt{2}")
    assert not plainly_different("\\sqrt{8}", "2\\sqrt{2}")
    assert not plainly_different("10^{40}+1-10^{40}", "1")
    assert plainly_different("10^{-30}", "2\\times 10^{-30}")
