"""Which part of a completion is its answer, and is it right?

One rule set serves the rewards and the token spans: `extract` finds the answer's characters, `verify` judges
exactly these. Text alone decides where it can (`same_text`, exact); what needs algebra goes to math-verify in
a worker process with a time and a memory limit, which is killed and replaced when it exceeds them, so that no
completion can hang or bloat a training run. This file imports neither torch nor transformers: the worker runs
it by itself and starts quickly.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

__all__ = ["Answer", "Verdict", "accuracy_reward", "check_gold", "extract", "opens_thinking", "verify"]

TIME_LIMIT = 4.0  # seconds for one pair in the worker
START_LIMIT = 120.0  # seconds for the worker's imports
MEMORY_LIMIT = 2 << 30  # bytes of address space for the worker
LENGTH_LIMIT = 10_000  # characters of an answer that are still worth parsing


@dataclass(frozen=True)
class Answer:
    """A final answer: completion[start:end] is its text, its marker begins at completion[marker_start]."""

    text: str
    start: int
    end: int
    marker_start: int
    rule: str


@dataclass(frozen=True)
class Verdict:
    """What `verify` found: the verdict, the answer that was judged (None without one), and why."""

    verdict: Literal["right", "wrong", "no-answer"]
    answer: str | None
    reason: str


# --- where the answer is -----------------------------------------------------------------------------------

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\boxed\s*([+-]?\d+(?:[./,]\d+)*|[A-J](?![A-Za-z]))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(?=[^A-Za-z\s#]|\S+[ \t]*$)(?!\d+[.)][ \t]+[A-Za-z])", re.MULTILINE)
_PHRASE = re.compile(
    r"(?:\b(?:the|my|our)\s+)?(?:\b(?:final|correct)\s+)?\banswer\b"
    r"(?:\s+to\s[^.:\n]{1,80}?)?[*_]*\s*(?:\bis\b|\bare\b|=|[:：])+|\bfinal\s+answer\b[*_]*[ \t]*\n"
    r"|(?:最终|最后)?答案\s*(?:是|为|[:：])+",
    re.IGNORECASE,
)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(?=\S)([^$\n]*[^$\s])\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_STOP = re.compile(
    r"\n|[.;!?](?=\s|[*_$`\"')\]]*(?:\s|$))|[。，；！？]|,\s*(?!and\b|or\b)(?=[A-Za-z]{2})|<\|[^|>\n]*\|>|</?[a-z_]+>"
    r"|\s+(?:because|since|which|where)\b"
)
_LEAD = re.compile(r"[\s:：*_`\"']*")
_OPEN_THINK = re.compile(r"(?:^|[\n>])[ \t]*<think>|<think>\s*\Z")


def opens_thinking(prompt: str) -> bool:
    """Whether the prompt leaves a think block open that the completion has to close.

    A tag counts where a chat template puts it: at the start of a line, after another tag, or at the very end;
    one that an instruction merely names inside a sentence does not.
    """
    return bool(_OPEN_THINK.search(prompt.rpartition("</think>")[2]))


def extract(completion: str, *, marker: str | None = None, thinking: bool = False) -> Answer | None:
    r"""The final answer of a completion, or None.

    Only the text after the last `</think>` counts; a think block that was opened, here or in the prompt
    (`thinking`), and never closed leaves no answer. With a `marker` (a word or sign of the task) the answer
    is the rest of the line after its last occurrence and no other rule applies. Otherwise, in order:
    1. the last non-empty `\boxed{}` (also `\fbox{}`, `\boxed 7`) or `<answer></answer>`, whichever is later;
       of boxes in boxes the innermost text counts and the outermost marker; a box that was begun after all
       of them and never closed was cut off while answering: no answer, whatever stands before it;
    2. the last line that begins with `####`, or "(the final) answer is", "Answer:", whichever comes later.
    """
    start = completion.rfind("</think>")
    start = 0 if start < 0 else start + len("</think>")
    opened = completion.find("<think>", start) >= 0 or (thinking and start == 0)
    if opened or not completion[start:].strip():
        return None
    if marker is not None:
        return _after_marker(completion, start, marker)
    explicit, cut_off = _last_box(completion, start)
    for match in _TAG.finditer(completion, start):
        tagged = _answer(completion, *match.span(1), match.start(), "<answer>")
        if tagged and (explicit is None or tagged.marker_start > explicit.marker_start):
            explicit = tagged
    if cut_off > (explicit.marker_start if explicit else -1):
        return None
    return explicit or _phrased(completion, start)


def _answer(text: str, start: int, end: int, marker_start: int, rule: str) -> Answer | None:
    """The Answer at text[start:end] without the white space around it; None where nothing is left."""
    inner = text[start:end].strip()
    if not inner:
        return None
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return Answer(inner, start, start + len(inner), marker_start, rule)


def _after_marker(text: str, start: int, marker: str) -> Answer | None:
    """The rest of the line after the last occurrence of the marker, a whole word where it is one."""
    left = r"(?<!\w)" if marker[:1].isalnum() else ""
    right = r"(?!\w)" if marker[-1:].isalnum() else ""
    matches = list(re.compile(left + re.escape(marker) + right).finditer(text, start))
    if not matches:
        return None
    begin = _skip(text, matches[-1].end(), re.compile(r"[\s:：]*"))
    stop = re.compile(r"\n|<\|[^|>\n]*\|>|</?[a-z_]+>").search(text, begin)
    return _answer(text, begin, stop.start() if stop else len(text), matches[-1].start(), "marker")


def _skip(text: str, position: int, pattern: re.Pattern[str]) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _last_box(text: str, start: int) -> tuple[Answer | None, int]:
    """The last non-empty box, and where the last box without an end begins (-1: there is none)."""
    closing: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACE.finditer(text, start):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closing[stack.pop()] = match.start()
    last, cut_off, outer, outer_end = None, -1, start, start
    for match in _BOX.finditer(text, start):
        begin, end = match.span(1) if match.group(1) else (match.end(), closing.get(match.end() - 1, -1))
        if end < 0:
            cut_off = match.start()
            continue
        if match.start() >= outer_end:
            outer, outer_end = match.start(), end
        last = _answer(text, begin, end, outer, "boxed") or last
    return last, cut_off


def _phrased(text: str, start: int) -> Answer | None:
    """The last answer that a line with #### or a phrase such as "the answer is" announces."""
    marks = [(match, "####") for match in _HASHES.finditer(text, start)]
    marks += [(match, "phrase") for match in _PHRASE.finditer(text, start)]
    for match, rule in sorted(marks, key=lambda mark: mark[0].start(), reverse=True):
        marker_start = match.end() - len(match.group().lstrip()) if rule == "####" else match.start()
        begin = _skip(text, match.end(), _LEAD)
        if math := _MATH.match(text, begin):
            begin, end = math.span(math.lastindex or 0)
        else:
            stop = _STOP.search(text, begin)
            end = stop.start() if stop else len(text)
            end = begin + len(text[begin:end].rstrip(" \t*_`\"'.,;:。$"))
        if answer := _answer(text, begin, end, marker_start, rule):
            return answer
    return None


# --- the same answer, by its text --------------------------------------------------------------------------

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
    r"([+-]?)(\d{1,3}(?:[, ]\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+)|\\times 10\^\{?([+-]?\d+)\}?)?"
)
_RATIO = re.compile(r"([+-]?)(?:\\frac\{(-?\d{1,50})\}\{(\d{1,50})\}|(\d{1,50})/(\d{1,50}))")
_MIXED = re.compile(
    r"([+-]?)(?:\((\d{1,50})\+\\frac\{(\d{1,50})\}\{(\d{1,50})\}\)|(\d{1,50}) (\d{1,50})/(\d{1,50}))"
)
_UNIT = re.compile(
    r"(.*[\w)}.])\s*\\text\{\s*([^{}]*?)\s*\}((?:\^\{?\d\}?)?)"
    r"|(.*[\d)}])\s+((?!(?i:[abcnxyz]+)$)[A-Za-z]{3,}(?:\s[A-Za-z]+)*|[ckm]m|kg|ft|lb)()"
)
_NAMED = re.compile(r"([A-Za-z]{1,3}(?:_\w)?(?:\([a-z]\))?)\s*(?:=|\\in\b)([^=<>]+)")
_NOT_ONE = re.compile(r"\\(?:pm|mp|cup|cap|le|ge|leq|geq|in|begin|text|setminus)(?![A-Za-z])|[<>]")
_NOT_WORDS = re.compile(
    r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+|(?<![A-Za-z])(?:and|or|degree|percent|(?:arc)?(?:sin|cos|tan)h?|log|exp)(?![A-Za-z])"
)
_NO_UNIT = re.compile(
    r"\b(?:or|and|more|less|fewer|least|most|than|not|mod|if|when|only|approx\w*|hundred|thousand|[mbtr]+illion|dozen)\b",
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


def _clean(text: str) -> str:
    """One spelling for what is written in several ways; the value stays what it was."""
    text = text.strip().strip("`").rstrip(".,;。 ") if not text.endswith("...") else text
    while wrapped := _MATH.fullmatch(text) or _TEXT.fullmatch(text):
        inner = wrapped.group(wrapped.lastindex or 0).strip().rstrip(".,;")
        if "$" in inner:
            break
        text = inner
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"\s*([-+=<>,^_(){}\[\]/]|\\times )\s*", r"\1", text.strip())
    alone = _TEXT.fullmatch(text)
    return alone.group(1).strip() if alone else text


def _number(text: str) -> Fraction | Decimal | None:
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


def _parts(text: str) -> tuple[str, list[str]]:
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
    numbers = _number(gold), _number(answer)
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


def _judge(gold: str, answer: str) -> bool:
    """Whether two cleaned answers are equal: units apart, names and lists split, math-verify for the rest."""
    verdict = same_text(gold, answer)
    units = [_with_unit(text) for text in (gold, answer)]
    if verdict or not any(units):
        return verdict if verdict is not None else _judge_parts(gold, answer)
    bodies = [(u[1] or u[4]) if u else text for u, text in zip(units, (gold, answer), strict=True)]
    names = [_unit_name((u[2] or u[5] or "") + (u[3] or "")) if u else "" for u in units]
    if all(names) and names[0] != names[1]:
        return False
    if _judge(*(_clean(body) for body in bodies)):
        return True
    if sorted(names) != ["", "percent"]:
        return False
    return _ask(*(f"({body})/100" if name else body for body, name in zip(bodies, names, strict=True)))


def _with_unit(text: str) -> re.Match[str] | None:
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
    texts, named = (gold, answer), [_NAMED.fullmatch(text) for text in (gold, answer)]
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
        return _judge(*unnamed)
    (gold_kind, gold_items), (kind, items) = _parts(gold), _parts(answer)
    if len(gold_items) == len(items) == 1:
        inner = (
            gold_items[0] if gold_kind in ("()", "{}") else gold,
            items[0] if kind in ("()", "{}") else answer,
        )
        return _judge(*inner) if inner != (gold, answer) else _ask(gold, answer)
    if len(gold_items) != len(items):
        single = gold if len(gold_items) == 1 else answer if len(items) == 1 else ""
        return bool(_NOT_ONE.search(single)) and _ask(gold, answer)
    if {gold_kind, kind} <= {"", "{}"}:
        return _judge_unordered(gold_items, items)
    if gold_kind != kind and "" not in (gold_kind, kind) and len(items) == 2:  # open and closed ends
        return False
    return all(_judge(g, a) for g, a in zip(gold_items, items, strict=True))


def _judge_unordered(gold_items: list[str], items: list[str]) -> bool:
    left = list(items)
    for item in gold_items:
        match = next((other for other in left if _judge(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


# --- the worker --------------------------------------------------------------------------------------------

_BOOT = (
    "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_path(sys.argv[1], run_name='worker')"
)


class _Worker:
    """One process that compares pairs; killed when a pair exceeds its time, replaced at the next pair."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: list[str]) -> str:
        """The worker's reply: "same", "different", or the reason why there is none."""
        with self.lock:
            try:
                if self.process is None or self.process.poll() is not None:
                    self._start()
                reply = self._exchange(json.dumps(request).encode() + b"\n", TIME_LIMIT)
            except OSError:
                reply = ""
            except BaseException:  # an unread reply must not answer the next request
                self.stop()
                raise
            if not reply:
                self.stop()
            return reply or f"not comparable within {TIME_LIMIT:g} s and {MEMORY_LIMIT >> 30} GB"

    def _start(self) -> None:
        self.stop()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if self._exchange(b"", START_LIMIT) != "ready":
            self.stop()
            raise RuntimeError("the answer worker did not start: check that math-verify can be imported")

    def _exchange(self, line: bytes, limit: float) -> str:
        """Sends a line and reads one; "" if the worker ended first or had to be killed."""
        assert self.process and self.process.stdin and self.process.stdout
        process, late = self.process, threading.Event()

        def expire() -> None:
            late.set()
            process.kill()

        guard = threading.Timer(limit, expire)
        guard.start()
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
            reply = self.process.stdout.readline().decode().strip()
        finally:
            guard.cancel()
            guard.join()
        return "" if late.is_set() else reply

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
        self.process = None

    def forget(self) -> None:
        """In a forked child: the worker stays the parent's, the child starts its own."""
        self.__init__()  # type: ignore[misc]


_WORKER = _Worker()
atexit.register(_WORKER.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKER.forget)


class _UnjudgedError(Exception):
    """A pair that could not be compared: the message says why."""


@lru_cache(maxsize=4096)
def _reply(gold: str, answer: str) -> str:
    """The worker's reply; a pair that once cost the worker its life is not tried again."""
    return _WORKER.ask([gold, answer])


def _ask(gold: str, answer: str) -> bool:
    reply = _reply(gold, answer)
    if reply not in ("same", "different"):
        raise _UnjudgedError(reply)
    return reply == "same"


def _parse(latex: str) -> Any:
    """The sympy object of the whole text, decimals as exact fractions; None where it does not parse."""
    from math_verify import LatexExtractionConfig, parse
    from sympy import Float, Rational

    found = parse(f"${latex}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    if not found:
        return None
    value: Any = found[0]
    floats = value.atoms(Float) if hasattr(value, "atoms") else ()
    return value.xreplace({f: Rational(str(f)) for f in floats}) if floats else value


def _compare(request: list[str]) -> str:
    """In the worker: compares a pair (gold, answer), or says whether a lone gold parses."""
    from math_verify import verify as math_verify
    from sympy import Expr

    gold, answer = _parse(request[0]), _parse(request[-1])
    if gold is None or answer is None:
        return f"the {'gold' if gold is None else 'answer'} cannot be parsed"
    if all(isinstance(value, Expr) and value.is_number for value in (gold, answer)):
        return "same" if _same_constant(gold, answer) else "different"
    return (
        "same"
        if math_verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True)
        else "different"
    )


def _same_constant(gold: Any, answer: Any) -> bool:
    """Exact for rationals; else equal to 60 digits relative to their size, so that tiny numbers differ."""
    gold, answer = gold.doit(), answer.doit()
    if gold == answer or (gold.is_Rational and answer.is_Rational):
        return bool(gold == answer)
    if gold.is_finite is False or answer.is_finite is False:
        return False
    difference, size = (gold - answer).evalf(15, maxn=200), abs(gold.evalf(15))
    return bool(difference == 0 or abs(difference) <= size * 10**-60)


def _serve() -> None:
    """The worker's loop: one JSON list a line in, one line out, until the input ends."""
    import logging
    import signal

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a parser prints stays out of the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    except (ImportError, ValueError, OSError):  # no such limits on this system
        pass
    _compare(["1"])  # loads the modules and the parser's tables
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        if hasattr(signal, "alarm"):
            signal.alarm(int(2 * TIME_LIMIT))  # ends a worker whose parent is gone
        try:
            reply = _compare(json.loads(line))
        except (Exception, MemoryError) as error:
            reply = f"not comparable: {type(error).__name__}"
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        print(reply, file=replies, flush=True)


# --- verdicts ----------------------------------------------------------------------------------------------


def verify(completion: str, gold: str, *, marker: str | None = None, thinking: bool = False) -> Verdict:
    """Judges a completion's answer (see `extract`) against the gold.

    Right at once where the texts agree or both are plain numbers of equal value; a unit on one side only is
    ignored, two different units are wrong; lists without brackets and sets have no order, and their lengths
    must agree. There is no tolerance: 0.333 is not 1/3. What cannot be parsed or compared within the limits
    is wrong, with a reason that says so.
    """
    found = extract(completion, marker=marker, thinking=thinking)
    if found is None:
        return Verdict("no-answer", None, "no answer found")
    if found.text.strip() == gold.strip():
        return Verdict("right", found.text, "same text")
    if max(len(found.text), len(gold)) > LENGTH_LIMIT:
        return Verdict("wrong", found.text, f"longer than {LENGTH_LIMIT} characters")
    try:
        same = _judge(_clean(gold), _clean(found.text))
    except _UnjudgedError as reason:
        return Verdict("wrong", found.text, str(reason))
    except RecursionError:
        return Verdict("wrong", found.text, "nested too deeply")
    return Verdict("right", found.text, "equal") if same else Verdict("wrong", found.text, f"not {gold[:80]}")


@lru_cache(maxsize=4096)
def check_gold(gold: str) -> str | None:
    """None if answers can be judged against this gold, else the reason why not."""
    if not isinstance(gold, str) or not _clean(gold):
        return "the gold is empty"
    if len(gold) > LENGTH_LIMIT:
        return f"the gold is longer than {LENGTH_LIMIT} characters"
    text = _clean(gold)
    if _number(text) is not None or re.fullmatch(r"[\w\s().,:-]+", text):
        return None
    units = _with_unit(text)
    items = _parts((units[1] or units[4]) if units else text)[1]
    bodies = [(match[2] if (match := _NAMED.fullmatch(item)) else item) for item in items]
    replies = [_WORKER.ask([body]) for body in bodies if _number(body) is None]
    return next((reply for reply in replies if reply not in ("same", "different")), None)


def accuracy_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """A reward function for TRL: 1.0 for a right answer, 0.0 for a wrong one or none, None without a gold.

    `completions` are strings or chat messages (the last assistant message counts); `answer` is the data set's
    column of golds. Plain prompts that end in an open think block are taken into account.
    """
    prompts = kwargs.get("prompts") or [""] * len(completions)
    rewards: list[float | None] = []
    for prompt, completion, gold in zip(prompts, completions, answer, strict=True):
        if gold is None or check_gold(str(gold)) is not None:
            rewards.append(None)
            continue
        thinking = isinstance(prompt, str) and opens_thinking(prompt)
        rewards.append(float(verify(_content(completion), str(gold), thinking=thinking).verdict == "right"))
    return rewards


def _content(completion: Any) -> str:
    """The text of a completion: itself, or the content of its last assistant message ("" without one)."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") or "" for message in completion if message.get("role") == "assistant"]
    last = said[-1] if said else ""
    return last if isinstance(last, str) else "".join(part.get("text", "") for part in last)


if __name__ == "worker":
    _serve()
