"""Whether two answers are the same, by their text; what the text cannot tell, the worker is asked.

`clean` gives one spelling to what is written in several ways, `same_text` decides what is exact, and `judge`
takes units, names and lists apart until every piece is decided by its text or by the worker.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import pairwise
from typing import Any

from tokencredit.answers.extraction import MATH
from tokencredit.answers.worker import ask

__all__ = ["NAMED", "clean", "judge", "number", "parts", "same_text", "with_unit"]

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_SPELLINGS: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|displaystyle|Big|big)(?![A-Za-z])|(?<!\\)\\[!,;:]|\*\*", ""),
        (r"(?<!\\)\\ |~|\\q?quad\b|\s+", " "),
        (r"[−–]", "-"),
        (r"×|\\cdot(?![A-Za-z])", r"\\times "),
        (r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*", ","),
        (r"\\varnothing|∅", r"\\emptyset "),
        (r"∞|\binfinity\b", r"\\infty "),
        (r"π", r"\\pi "),
        (r"∪", r"\\cup "),
        (r"±", r"\\pm "),
        (r"√|(?<![\\A-Za-z])sqrt\b", r"\\sqrt"),
        (r"°|\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\s*\bdegrees?\b", r"\\text{degree}"),
        (r"(?:\\?%|\bpercent\b)", r"\\text{percent}"),
        (r"^(-?)(\\?\$|[€£¥])\s*(-?[\d.,]+)", lambda m: f"{m[1]}{m[3]}\\text{{{_CURRENCIES[m[2][-1]]}}}"),
        (r"\{,\}", ","),
        (r"\\operatorname\*?\s*\{([a-z]+)\}", r"\\\1 "),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac\s*(\d)\s*(?=[\d{])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
        (r"_\{(\w)\}|(?<=\d)_\{(\w+)\}", r"_\1\2"),
        (r"(?<![\d.}^_])(\d+)\s*(\\frac\{\d+\}\{\d+\})", r"(\1+\2)"),
    ]
]
_NUMBER = re.compile(
    r"([+-]?)(\d{1,3}(?:[, ]\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)"
    r"(?:[eE]([+-]?\d+)|\\times 10\^\{?([+-]?\d+)\}?)?"
)
_RATIO = re.compile(r"([+-]?)(?:\\frac\{(-?\d{1,50})\}\{(\d{1,50})\}|(\d{1,50})/(\d{1,50}))")
_MIXED = re.compile(
    r"([+-]?)(?:\((\d{1,50})\+\\frac\{(\d{1,50})\}\{(\d{1,50})\}\)|(\d{1,50}) (\d{1,50})/(\d{1,50}))"
)
_UNIT = re.compile(
    r"(.*[\w)}.])\s*\\text\{\s*([^{}]*?)\s*\}((?:\^\{?\d\}?)?)"
    r"|(.*[\d)}])\s+((?!(?i:[abcnxyz]+)$)[A-Za-z]{3,}(?:\s[A-Za-z]+)*|[ckm]m|kg|ft|lb)()"
)
# an answer that is given with its name: "x = 5", "f(x) = 2x", "x \in [0, 1]"
NAMED = re.compile(r"([A-Za-z]{1,3}(?:_\w)?(?:\([a-z]\))?)\s*(?:=|\\in\b)([^=<>]+)")
_NOT_ONE = re.compile(r"\\(?:pm|mp|cup|cap|le|ge|leq|geq|in|begin|text|setminus)(?![A-Za-z])|[<>]")
_NOT_WORDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+"
    r"|(?<![A-Za-z])(?:and|or|degree|percent|(?:arc)?(?:sin|cos|tan)h?|log|exp)(?![A-Za-z])"
)
_NO_UNIT = re.compile(
    r"\b(?:or|and|more|less|fewer|least|most|than|not|mod|if|when|only"
    r"|approx\w*|hundred|thousand|[mbtr]+illion|dozen)\b",
    re.IGNORECASE,
)
_UNIT_NAMES = {
    **{"feet": "ft", "foot": "ft", "inches": "in", "inch": "in", "hour": "hr", "minute": "min"},
    **{"centimeter": "cm", "meter": "m", "kilometer": "km", "mile": "mi", "second": "sec"},
}
_REPEATING = re.compile(r"(\d{0,50})\.(\d{0,50})\\overline\{(\d{1,50})\}")
_IN_BASE = re.compile(r"\d[^\W_]*_\w+")
_SPACE = re.compile(r" (?!\d)|(?<!\d) ")
_CLOCK = re.compile(r"\d{1,2}:\d\d")
_OPEN, _CLOSE = {"(": ")", "[": "]", r"\{": r"\}"}, (")", "]", r"\}")


def clean(text: str) -> str:
    """One spelling for what is written in several ways; the value stays what it was."""
    text = text.strip().strip("`").rstrip(".,;。 ") if not text.endswith("...") else text
    while wrapped := MATH.fullmatch(text) or _TEXT.fullmatch(text):
        inner = wrapped.group(wrapped.lastindex or 0).strip().rstrip(".,;")
        if "$" in inner:
            break
        text = inner
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"\s*([-+=<>,^_(){}\[\]/]|\\times )\s*", r"\1", text.strip())
    alone = _TEXT.fullmatch(text)
    return alone.group(1).strip() if alone else text


def number(text: str) -> Fraction | Decimal | None:
    """The exact value of a plain number, fraction or mixed number; a Decimal if it is very long."""
    if match := _RATIO.fullmatch(text) or _MIXED.fullmatch(text):
        *whole, top, bottom = (int(part) for part in match.groups()[1:] if part)
        return (sum(whole) + Fraction(top, bottom)) * (-1 if match[1] == "-" else 1) if bottom else None
    if match := _REPEATING.fullmatch(text):
        fixed, period = int(f"0{match[1]}{match[2]}"), Fraction(int(match[3]), 10 ** len(match[3]) - 1)
        return (fixed + period) / 10 ** len(match[2])
    if match := _NUMBER.fullmatch(text):
        try:
            value = Decimal(f"{match[1]}{re.sub('[, ]', '', match[2])}e{match[3] or match[4] or 0}")
        except InvalidOperation:
            return None
        return Fraction(value) if len(text) < 400 and abs(value.adjusted()) < 400 else value
    return None


def parts(text: str) -> tuple[str, list[str]]:
    """The outer brackets (such as "(]", "" without) and the items between the commas at the top level."""
    depth, cuts, first_close = 0, [], -1
    for match in re.finditer(r"\\[{}]|[(){}\[\],]", text):
        sign = match.group()
        depth += (sign in _OPEN or sign == "{") - (sign in _CLOSE or sign == "}")
        if sign in _CLOSE and depth == 0 and first_close < 0:
            first_close = match.end()
        cuts += [(depth, match.start())] * (sign == ",")
    opening = next((sign for sign in _OPEN if text.startswith(sign)), "")
    closing = next((sign for sign in _CLOSE if text.endswith(sign)), "")
    wrapped = opening and closing and first_close == len(text)
    begin, end = (len(opening), len(text) - len(closing)) if wrapped else (0, len(text))
    edges = [begin - 1, *(at for level, at in cuts if level == (1 if wrapped else 0)), end]
    items = [text[a + 1 : b].strip() for a, b in pairwise(edges)]
    items = [half for item in items for half in _both_signs(item)]
    return (opening + closing).replace("\\", "") if wrapped else "", items


def _both_signs(item: str) -> list[str]:
    if item.count(r"\pm") != 1:
        return [item]
    return [re.sub(r"\\pm\s*", sign, item).removeprefix("+") for sign in "+-"]


def same_text(gold: str, answer: str) -> bool | None:
    """Whether two cleaned answers are equal, as far as their text alone can tell; None: ask math-verify."""
    if _SPACE.sub("", gold) == _SPACE.sub("", answer):
        return True
    numbers = number(gold), number(answer)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if _CLOCK.fullmatch(gold) or _CLOCK.fullmatch(answer):
        return False
    if _IN_BASE.fullmatch(gold) and _IN_BASE.fullmatch(answer):
        return False
    words = [re.sub(r"[\s().,]+", " ", _TEXT.sub(r" \1", text)).strip() for text in (gold, answer)]
    if re.fullmatch(r"[^\W\d_][\w ]*", words[0]) and "," not in gold + answer:
        fold = str.casefold if len(words[0]) > 2 else str
        if fold(words[0]) == fold(words[1]):
            return True
    if any(re.search(r"[^\W\d_]{4,}|[^\W\d_]{2,} \d", _NOT_WORDS.sub("", text)) for text in words):
        return False
    return None


def judge(gold: str, answer: str) -> bool:
    """Whether two cleaned answers are equal: units apart, names and lists split, math-verify for the rest."""
    verdict = same_text(gold, answer)
    units = [with_unit(text) for text in (gold, answer)]
    if verdict or not any(units):
        return verdict if verdict is not None else _judge_parts(gold, answer)
    bodies = [(u[1] or u[4]) if u else text for u, text in zip(units, (gold, answer), strict=True)]
    names = [_unit_name((u[2] or u[5] or "") + (u[3] or "")) if u else "" for u in units]
    if all(names) and names[0] != names[1]:
        return False
    if judge(*(clean(body) for body in bodies)):
        return True
    if sorted(names) != ["", "percent"]:
        return False
    return ask(*(f"({body})/100" if name else body for body, name in zip(bodies, names, strict=True)))


def with_unit(text: str) -> re.Match[str] | None:
    """The match of a quantity and its unit; words such as "or more" are no unit."""
    match = _UNIT.fullmatch(text)
    if match is None or _NO_UNIT.search(match[2] or match[5] or ""):
        return None
    body = match[1] or match[4]
    return match if len(body) == 1 or re.search(r"\d|\\(?!text)", body) else None


def _unit_name(unit: str) -> str:
    """A unit in one spelling; enough to tell units apart, not to convert them."""
    name = re.sub(r"[\s.{}^]+", "", unit.casefold())
    return _UNIT_NAMES.get(name, _UNIT_NAMES.get(name.removesuffix("s"), name.removesuffix("s")))


def _unnamed(gold: str, answer: str) -> tuple[str, str]:
    """Both without the name in "x = 5" or "x in [0, 1]", where at most one name is given."""
    texts, named = (gold, answer), [NAMED.fullmatch(text) for text in (gold, answer)]
    if len({match[1] for match in named if match}) != 1:
        return texts
    if any(match is None and re.search(r"[=<>]", text) for match, text in zip(named, texts, strict=True)):
        return texts
    bare = [match[2].strip() if match else text for match, text in zip(named, texts, strict=True)]
    return bare[0], bare[1]


def _judge_parts(gold: str, answer: str) -> bool:
    """Compares what the brackets and the commas at the top level separate, item by item."""
    unnamed = _unnamed(gold, answer)
    if unnamed != (gold, answer):
        return judge(*unnamed)
    (gold_kind, gold_items), (kind, items) = parts(gold), parts(answer)
    if len(gold_items) == len(items) == 1:
        inner = (
            gold_items[0] if gold_kind in ("()", "{}") else gold,
            items[0] if kind in ("()", "{}") else answer,
        )
        return judge(*inner) if inner != (gold, answer) else ask(gold, answer)
    if len(gold_items) != len(items):
        single = gold if len(gold_items) == 1 else answer if len(items) == 1 else ""
        return bool(_NOT_ONE.search(single)) and ask(gold, answer)
    if {gold_kind, kind} <= {"", "{}"}:
        return _judge_unordered(gold_items, items)
    if gold_kind != kind and "" not in (gold_kind, kind) and len(items) == 2:  # open and closed ends
        return False
    return all(judge(g, a) for g, a in zip(gold_items, items, strict=True))


def _judge_unordered(gold_items: list[str], items: list[str]) -> bool:
    left = list(items)
    for item in gold_items:
        match = next((other for other in left if judge(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True
