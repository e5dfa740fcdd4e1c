"""What may be handed to the parser, and in which spelling.

A parser can drop what it does not know and go on with the rest, or compute a number of a billion digits. What it
would misread is refused here, by the text alone, and so is what cannot be computed.
"""

from __future__ import annotations

import math
import re

from tokencredit.answers.spelling import TEXT
from tokencredit.answers.units import ANGLE

__all__ = ["DEPTH", "LENGTH", "UnjudgedError", "depth", "prepared"]

LENGTH = 2000  # characters of a formula that are still worth parsing
DEPTH = 40  # brackets in brackets
DIGITS = 20_000  # of a number that a power or factorial may have
TOWER = 3  # exponents in exponents
REPEATED = 20  # logarithms and bars

_COMMAND = re.compile(r"\\([A-Za-z]+)")
_KNOWN = frozenset(
    re.findall(
        r"\w+",
        "arccos arccosh arccot arccsc arcosh arcsec arcsin arcsinh arctan arctanh arsinh artanh begin binom "
        "bar hat vec dot ddot tilde overline underline cap ceil choose cos cosh cot csc cup cdot det div "
        "emptyset end exp floor frac gcd in infty int langle lceil lcm lfloor lim ln log mathbb mathbf "
        "mathcal mathrm mathit max min neq notin odot oint partial pi pm mp prime prod rangle rceil rfloor "
        "rightarrow to sec setminus sin sinh sqrt sum tan tanh text times leq geq lt gt approx hbar ell mid "
        "circ subset supset forall exists infinity Re Im angle triangle alpha beta gamma delta epsilon "
        "varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi "
        "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega mho",
    )
)
_UNKNOWN_SIGN = re.compile(
    r"[^\w\s\\{}()\[\]|+\-*/^_=<>,;.!%:&]|(?<!\\)[&%]|[\u2e80-\u9fff]|\d\s+\d|\d\.\d+\.\d|!\s*\d|(?<=})_\{?[-+]|\d_"
)
_POWER = re.compile(r"(?<![\w.])(\d+)\^(?:\{-?(\d+)\}|(\d+))(?!\^)")
_EXPONENT = re.compile(r"\^(?:\{-?(\d{5,})\}|(\d{5,}))|\\binom\{(\d{5,})\}")
_FACTORIAL = re.compile(r"(\d+)!")
_MATRIX = re.compile(r"\\begin\{[pbvB]?matrix\}.*?\\end\{[pbvB]?matrix\}", re.DOTALL)


class UnjudgedError(Exception):
    """A pair that could not be compared: the message says why."""


def prepared(text: str, whose: str) -> str:
    """A cleaned text as the parser reads it aright; `whose` ("answer", "gold") names it in the error.

    Raises UnjudgedError for what the parser would misread or not finish.
    """
    if len(text) > LENGTH:
        raise UnjudgedError(f"the {whose} is a formula longer than {LENGTH} characters")
    if not balanced(text) or depth(text) > DEPTH:
        raise UnjudgedError(f"the brackets of the {whose} do not match or are nested more than {DEPTH} deep")
    if text.count("|") > REPEATED or len(re.findall(r"\\(?:log|ln)(?![A-Za-z])", text)) > REPEATED:
        raise UnjudgedError(f"the {whose} has more than {REPEATED} logarithms or bars")
    text = re.sub(r"(?<=\d)[eE]([+-]?\d+)", r"\\times 10^{\1}", text)
    _check_size(text, whose)
    text = re.sub(r"(\\(?:text|mathrm|mathbf))\s+\{", r"\1{", text).replace(";", ",")
    text = re.sub(r"_(?:\{\\(max|min|odot|infty)\s*\}|\\(max|min|odot|infty)(?![A-Za-z]))", r"_{\1\2}", text)
    text = re.sub(r"\\(?:vec|mathbf|overrightarrow)\s*\{?\s*([ijk])\s*\}?(?![A-Za-z])", r"v_{\1}", text)
    if ANGLE.search(text):
        text = re.sub(r"(\d+(?:\.\d+)?)\\text\{degree\}", r"(\\frac{\1\\pi}{180})", text)
    text = TEXT.sub(lambda m: _symbol(m[1]), text)
    text = re.sub(r"\\langle", "(", re.sub(r"\\rangle", ")", text))
    text = re.sub(r"\\[A-Za-z]+|E(?:_(?:\{(\w+)\}|(\w)))?", _rename_e, text)
    text = re.sub(r"_(\w)(?!\w)", r"_{\1}", text)
    text = re.sub(r"(?<=\d)\s*(?=[(])|(?<=[)])\s*(?=[\d(])", r"\\times ", text)
    outside = _MATRIX.sub(" ", text)
    unknown = next((name for name in _COMMAND.findall(text) if name not in _KNOWN), "")
    if re.search(r"\[\s*-\\infty|\\infty\s*\]", text):
        raise UnjudgedError(f"an interval of the {whose} is closed at infinity")
    unknown = unknown or (_UNKNOWN_SIGN.search(outside) or [""])[0]
    if unknown or not text.strip():
        raise UnjudgedError(f"the {whose} cannot be parsed{f': {unknown!r}' if unknown else ''}")
    return text


def _symbol(words: str) -> str:
    """Words in a formula as one symbol."""
    name = re.sub(r"[^A-Za-z\d]", "", words)
    return name if len(name) < 2 or name.isdigit() else rf"\text{{{name}}}"


def _rename_e(match: re.Match[str]) -> str:
    """The letter E as an ordinary symbol, for the parser takes it for Euler's number."""
    if match.group().startswith("\\"):
        return match.group()
    return f"W_{{E{match[1] or match[2] or ''}}}"


def balanced(text: str) -> bool:
    """Whether every bracket closes, in order; round and square ones may pair, as in half-open intervals."""
    stack = []
    for sign in re.findall(r"\\[{}]|\\.|[(){}\[\]]", text):
        if sign in ("(", "[", "{", r"\{"):
            stack.append(sign)
        elif sign in (")", "]", "}", r"\}") and (not stack or (stack.pop() in "([") != (sign in ")]")):
            return False
    return not stack


def depth(text: str) -> int:
    """How deep the brackets are nested."""
    level = deepest = 0
    for sign in re.findall(r"[(){}\[\]]", text):
        level += 1 if sign in "({[" else -1
        deepest = max(deepest, level)
    return deepest


def _tower(text: str) -> int:
    """The most exponents in exponents."""
    inside: list[bool] = []
    highest = 0
    for sign in re.findall(r"\^\{?|[{}]|[^\^{}]+", text):
        if sign[0] == "^":
            height = sum(inside) + 1
            highest = max(highest, height)
        if sign[-1] == "{":
            inside.append(sign[0] == "^")
        elif sign == "}" and inside:
            inside.pop()
    return max(highest, *(len(run) // 2 for run in re.findall(r"(?:\^\w)+", text)), 0)


def _check_size(text: str, whose: str) -> None:
    """Refuses towers of powers and factorials of what has more digits than can be computed."""
    too_large = UnjudgedError(f"the {whose} is a number of more than {DIGITS} digits")
    plain = re.sub(r"[()]", lambda m: "{" if m[0] == "(" else "}", text)
    plain = re.sub(r"(?<![}\w])\{(\d+)\}(?=[\^!])", r"\1", plain)
    for _ in range(50):
        power, factorial = _POWER.search(plain), _FACTORIAL.search(plain)
        if power:
            base, exponent = int(power[1][:30]), power[2] or power[3]
            if base > 1 and (len(exponent) > 7 or int(exponent) * max(len(power[1]) - 0.7, 0.3) > DIGITS):
                raise too_large
            value = base ** int(exponent) if int(exponent) * len(power[1]) < 400 else 10**30
            plain = plain[: power.start()] + str(value) + plain[power.end() :]
        elif factorial:
            size = int(factorial[1][:9])
            if size > 6000:
                raise too_large
            value = math.factorial(size) if size < 30 else 10**30
            plain = plain[: factorial.start()] + str(value) + plain[factorial.end() :]
        elif _tower(plain) > TOWER or any(
            int("".join(filter(None, found))[:9]) > DIGITS for found in _EXPONENT.findall(plain)
        ):
            raise too_large
        else:
            return
        plain = re.sub(r"(?<![}\w])\{(\d+)\}(?=[\^!])", r"\1", plain)
        plain = re.sub(r"\{\{(\d+)\}\}", r"{\1}", plain)
    raise too_large
