"""Whether two answers are the same, by their text; what the text cannot tell, the workers are asked.

`same_text` decides what is exact, and `judge` takes option letters, units, names and lists apart until every piece is
decided by its text or by a worker.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from tokencredit.answers.constants import plainly_different
from tokencredit.answers.formula import UnjudgedError
from tokencredit.answers.plain_numbers import GROUPED, number
from tokencredit.answers.spelling import TEXT, clean
from tokencredit.answers.units import same_unit, split_unit, unit_name
from tokencredit.answers.worker import ask

__all__ = ["IN_BASE", "RELATION", "has_words", "judge", "parts", "same_text", "unnamed", "within"]

_FUNCTION = r"sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan|sqrt|frac|max|min|gcd|lcm|det|binom"
_LETTERS = rf"\\(?!(?:{_FUNCTION})\b)[A-Za-z]+|[A-Za-z]{{1,4}}|\{{[A-Za-z ]+\}}"
_INDEX = r"(?:_(?:\w|\{\\?\w+(?: \w+)?\}))?(?:\^\{(?:\\prime|-1)\})?(?:\([A-Za-z\d,=|<>]{1,12}\))?"
_CORNERS = r"\\(?:angle|triangle)\s*[A-Z](?: ?[A-Z](?:_\d)?)*"
_NAME = rf"{_CORNERS}|(?:\\(?:overline|bar|vec|hat|mathrm|text)\s*)?(?:{_LETTERS}){_INDEX}"
# an answer that is given with its name: "x = 5", "f(x) = 2x", "x \in [0, 1]", "\angle ABC = 60"
_NAMED = re.compile(rf"({_NAME}|\\frac\{{d\w*\}}\{{d\w\}})\s*(?:=|\\in\b)([^=<>,;]+(?:=[^=<>,;]+)+|[^=<>]+)")
_HALF_OPEN = re.compile(r"([A-Za-z])(\([^()\[\]]*[,;][^()\[\]]*\]|\[[^()\[\]]*[,;][^()\[\]]*\))")
_TUPLE = re.compile(r"\(([A-Za-z](?:_\w)?(?:[,;][A-Za-z](?:_\w)?)+)\)=(\(.*\))")
_METRES = re.compile(r"(.*[\d)}]) ([mgsJNWVL](?:\^\{?[23]\}?)?)")
_NOT_ONE = re.compile(r"\\(?:pm|mp|cup|cap|leq|geq|in|begin|text|setminus|mathbb)(?![A-Za-z])|[<>]")
_NOT_WORDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|_\{\w+\}"
    r"|(?<![A-Za-z])(?:degree|percent|(?:arc)?(?:sin|cos|tan)h?|log|exp)(?![A-Za-z])"
)
_OPTION = re.compile(r"(?:\(([A-J])\)|([A-J])(?:\)|[.:](?=[\s\\])|(?=\\text\{)))[\s:.)]*(.*)", re.DOTALL)
IN_BASE = re.compile(r"-?\d[^\W_]*_(?:\w+|\{\w+\}|\{\\text\{\w+\}\})")
RELATION = re.compile(r"[<>]|\\[lg]eq(?![A-Za-z])")
_STRUCTURE = re.compile(r"\\(?:cup|begin|leq|geq)(?![A-Za-z])|[<>]")  # of what is no number
_SET = re.compile(r"\\(?:emptyset|\{)")
_SPACE = re.compile(r" (?!\d)|(?<!\d) ")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?: ?\\text\{)? ?((?:[ap]\.?m\b\.?)?)\}?", re.IGNORECASE)
_OPEN, _CLOSE = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}, (")", "]", r"\}", r"\rangle")
_BRACKET = re.compile(r"\\[{}]|\\[lr]angle(?![A-Za-z])|[(){}\[\],;]")


def parts(text: str) -> tuple[str, list[str]]:
    """The outer brackets (such as "(]", "" without) and the items between the separators at the top level."""
    level, cuts, first_close = 0, [], -1
    for match in _BRACKET.finditer(text):
        sign = match.group()
        level += (sign in _OPEN or sign == "{") - (sign in _CLOSE or sign == "}")
        if sign in _CLOSE and level == 0 and first_close < 0:
            first_close = match.end()
        cuts += [(level, match.start())] * (sign in (",", ";"))
    opening = next((sign for sign in _OPEN if text.startswith(sign)), "")
    closing = next((sign for sign in _CLOSE if text.endswith(sign)), "")
    wrapped = opening and closing and first_close == len(text)
    begin, end = (len(opening), len(text) - len(closing)) if wrapped else (0, len(text))
    edges = [begin - 1, *(at for depth, at in cuts if depth == (1 if wrapped else 0)), end]
    if any(text[at] == ";" for at in edges[1:-1]):  # the commas beside may separate thousands
        firm = [edges[0], *(at for at in edges[1:-1] if text[at] == ";"), end]
        numbers = [(a, b) for a, b in pairwise(firm) if GROUPED.fullmatch(text[a + 1 : b].strip())]
        edges = [at for at in edges if not any(a < at < b for a, b in numbers)]
    items = [text[a + 1 : b].strip() for a, b in pairwise(edges)]
    items = [half for item in items for half in _both_signs(item)]
    kind = (opening + closing).replace(r"\langle", "(").replace(r"\rangle", ")").replace("\\", "")
    return kind if wrapped else "", items


def _both_signs(item: str) -> list[str]:
    if item.count(r"\pm") != 1 or item.count(r"\mp"):
        return [item]
    return [re.sub(r"\\pm\s*", sign, item).removeprefix("+") for sign in "+-"]


def same_text(gold: str, answer: str) -> bool | None:
    """Whether two cleaned answers are equal, as far as their text alone can tell; None: ask the workers."""
    if _SPACE.sub("", gold) == _SPACE.sub("", answer):
        return True
    numbers = number(gold), number(answer)
    if None not in numbers:
        if numbers[0] == numbers[1]:
            return True
        return None if GROUPED.fullmatch(gold) or GROUPED.fullmatch(answer) else False
    clocks = _CLOCK.fullmatch(gold), _CLOCK.fullmatch(answer)
    if any(clocks):
        return all(clocks) and _same_clock(*clocks)  # type: ignore[arg-type]
    in_base = IN_BASE.fullmatch(gold), IN_BASE.fullmatch(answer)
    if all(in_base):
        return re.sub(r"[{}]", "", gold) == re.sub(r"[{}]", "", answer)
    if any(in_base):
        return gold.partition("_")[0] == answer  # a base on the gold alone is ignored
    sides = [TEXT.sub(r"\1", text).split("=") for text in (gold, answer)]
    if len(sides[0]) == 2 and sides[0] == [side.strip() for side in sides[1][::-1]]:
        return True
    words = [re.sub(r"[\s().,]+", " ", TEXT.sub(r" \1", text)).strip() for text in (gold, answer)]
    if re.fullmatch(r"[^\W\d_][\w ]*", words[0]) and not re.search("[,;]", gold + answer):
        fold = str.casefold if len(words[0]) > 2 or words[0].casefold() == "no" else str
        if fold(words[0]) == fold(words[1]):
            return True
    return False if any(map(has_words, words)) else None


def has_words(text: str) -> bool:
    """Whether a cleaned text has words that no formula holds, so that it is compared as text."""
    return bool(re.search(r"[^\W\d_]{4,}|[^\W\d_]{2,} \d", _NOT_WORDS.sub(" ", text)))


def _same_clock(gold: re.Match[str], answer: re.Match[str]) -> bool:
    halves = [match[3].replace(".", "").casefold() for match in (gold, answer)]
    return (
        int(gold[1]) == int(answer[1]) and gold[2] == answer[2] and ("" in halves or halves[0] == halves[1])
    )


def judge(gold: str, answer: str) -> bool:
    """Whether two cleaned answers are equal: option letters and units apart, names and lists split, algebra last."""
    gold, answer = _named_items(gold), _named_items(answer)
    verdict = same_text(gold, answer)
    if verdict:
        return True
    bare = _bare(gold, answer)
    if bare != (gold, answer):
        return judge(*bare)
    options = _option(gold), _option(answer)
    if any(options):
        return _judge_options(gold, answer, *options)
    units = split_unit(gold), split_unit(answer)
    units = _matching_letter(gold, answer, *units)
    if not any(units):
        return verdict if verdict is not None else _judge_parts(gold, answer)
    bodies = [unit[0] if unit else text for unit, text in zip(units, (gold, answer), strict=True)]
    names = [unit_name(unit[1]) if unit else "" for unit in units]
    if all(names) and not same_unit(*names):
        return False
    if judge(*(clean(body) for body in bodies)):
        return True
    if sorted(names) != ["", "percent^1"]:
        return False
    return ask(*(f"({body})/100" if name else body for body, name in zip(bodies, names, strict=True)))


def _option(text: str) -> tuple[str, str] | None:
    """The letter of an option and what stands after it."""
    match = _OPTION.fullmatch(TEXT.sub(r"\1 ", text).strip() if r"\text" in text else text)
    if match is None or match[3].startswith((",", ";", "/", r"\&")):  # several letters
        return None
    return match[1] or match[2], match[3].strip()


def _judge_options(
    gold: str, answer: str, gold_option: tuple[str, str] | None, option: tuple[str, str] | None
) -> bool:
    """Option letters must agree, and so must what is said after them where both say something."""
    letters = [
        o[0] if o else t if re.fullmatch("[A-J]", t) else ""
        for o, t in ((gold_option, gold), (option, answer))
    ]
    texts = [
        clean(o[1]) if o else "" if letter else t
        for o, letter, t in ((gold_option, letters[0], gold), (option, letters[1], answer))
    ]
    if all(letters):
        return letters[0] == letters[1] and (not all(texts) or judge(texts[0], texts[1]))
    return all(texts) and judge(texts[0], texts[1])


def _matching_letter(
    gold: str, answer: str, *units: tuple[str, str] | None
) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
    """Both units; a short one without \\text counts where the other side has the very same, or is a plain number."""
    found = list(units)
    for side, text in ((0, gold), (1, answer)):
        other = found[1 - side]
        if found[side] is None and other is not None:
            match = re.fullmatch(r"(.*[\d)}])\s*([A-Za-z]{1,2}(?:/[A-Za-z]+)?(?:\^\{?\d\}?)?)", text)
            if match and unit_name(match[2]) == unit_name(other[1]):
                found[side] = (match[1], match[2])
    metres = _METRES.fullmatch(answer) if not any(found) and number(gold) is not None else None
    if metres and number(metres[1]) is not None:
        found[1] = metres[1], metres[2]
    return found[0], found[1]


def unnamed(text: str) -> tuple[str, str]:
    """The name and the rest of "x = 5" or "x in [0, 1]"; "" and the text where no name is given."""
    match = _NAMED.fullmatch(text) or _HALF_OPEN.fullmatch(text)
    if match is None:
        return "", text
    name = re.sub(r"[{}\s]|\\(?:max|min)(?=\})", "", match[1])
    return name, match[2].rpartition("=")[2].strip()


def _named_items(text: str) -> str:
    """(x,y)=(1,2) as (x=1,y=2)."""
    match = _TUPLE.fullmatch(text)
    kind, items = parts(match[2]) if match else ("", [])
    names = re.split("[,;]", match[1]) if match else []
    if kind != "()" or len(names) != len(items):
        return text
    return f"({','.join(f'{name}={item}' for name, item in zip(names, items, strict=True))})"


def _bare(gold: str, answer: str) -> tuple[str, str]:
    """Both without their name, where at most one name is given."""
    named = unnamed(gold), unnamed(answer)
    if len({name for name, _ in named if name}) != 1:
        return gold, answer
    if any(not name and re.search(r"[=<>]", rest) for name, rest in named):
        return gold, answer
    return named[0][1], named[1][1]


def _judge_parts(gold: str, answer: str) -> bool:
    """Compares what the brackets and the separators at the top level part, item by item."""
    if r"\cup" in gold and r"\cup" in answer and RELATION.search(gold + answer):
        return _judge_unordered(gold.split(r"\cup"), answer.split(r"\cup"))
    (gold_kind, gold_items), (kind, items) = parts(gold), parts(answer)
    listed = [
        outer == "{}" or (outer == "" and len(each) > 1)
        for outer, each in ((gold_kind, gold_items), (kind, items))
    ]
    between = [bool(RELATION.search(text)) for text in (gold, answer)]
    if between in ([True, False], [False, True]) and listed[between.index(False)]:
        return False  # single values are not all that lie between two
    if len(gold_items) == len(items) == 1:
        pairs = (gold, gold_kind, gold_items[0]), (answer, kind, items[0])
        inner = tuple(
            item if outer in ("()", "{}") and not _SET.match(item) else text for text, outer, item in pairs
        )
        if inner != (gold, answer):
            return judge(*inner)
        if any(
            number(text) is not None and _STRUCTURE.search(other)
            for text, other in ((gold, answer), (answer, gold))
        ):
            return False
        return not plainly_different(gold, answer) and ask(gold, answer)
    if len(gold_items) != len(items):
        single = gold if len(gold_items) == 1 else answer if len(items) == 1 else ""
        return bool(_NOT_ONE.search(single)) and ask(gold, answer)
    if {gold_kind, kind} <= {"", "{}"}:
        return _judge_unordered(gold_items, items)
    if (
        gold_kind != kind
        and gold_kind
        and kind
        and (len(items) == 2 or not {gold_kind, kind} <= {"()", "[]"})
    ):
        return False  # a set, or open and closed ends
    return all(judge(g, a) for g, a in zip(gold_items, items, strict=True))


def _judge_unordered(gold_items: list[str], items: list[str]) -> bool:
    """Whether the items are the same in some order; each counts once."""
    if len(gold_items) != len(items):
        return False
    left = list(items)
    for item in gold_items:
        match = next((other for other in left if _decided(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _decided(gold: str, answer: str) -> bool:
    """`judge`, where an item that cannot be compared with this one may still be another."""
    try:
        return judge(gold, answer)
    except UnjudgedError:
        return False


def within(gold: str, answer: str, tolerance: Fraction) -> bool:
    """Whether two cleaned answers differ by at most the tolerance, item by item in their order."""
    (gold_kind, gold_items), (kind, items) = parts(gold), parts(answer)
    if len(gold_items) != len(items) or (gold_kind != kind and gold_kind and kind):
        return False
    if len(items) > 1:
        return all(within(g, a, tolerance) for g, a in zip(gold_items, items, strict=True))
    bodies = [unit[0] if (unit := split_unit(text)) else text for text in (gold, unnamed(answer)[1])]
    values = [number(body) for body in bodies]
    if all(isinstance(value, Fraction) for value in values):
        return abs(values[0] - values[1]) <= tolerance  # type: ignore[operator]
    return ask(bodies[0], bodies[1], str(tolerance))
