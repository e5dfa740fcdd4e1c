r"""The `\boxed{}` and `\fbox{}` of a text: which close, which are nested, which belong together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Box", "find_boxes", "neighbours", "outside_words", "without_boxes"]

# without braces a box holds what follows up to the end of the formula, or a number or letter in prose
_IN_FORMULA = (
    r"(?=[-+]?[\dA-Za-z\\(|]|\.\d)"
    r"(?:[^$\n{}\\A-Za-z]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|\\[A-Za-z]+|\\[ ,;:!{}]"
    r"|\{(?:[^{}\n]|\{[^{}\n]*\})*\}){1,60}?"
    r"(?=\s*(?:\$|\\\)|\\\]))"
)
_IN_PROSE = r"[+-]?\d+(?:[./,]\d+)*(?![A-Za-z\d^_({]|[./,]\d|\s*[-+*/=^<>]|\s*\\[A-Za-z])|[A-J](?![A-Za-z])"
_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{|\\(?:boxed|fbox)(?![A-Za-z])\s*({_IN_FORMULA}|{_IN_PROSE})")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_LISTING = (
    r"[\s$,;&、，和或与及]|\*\*|\\[()\[\],;:! \\]|\\q?quad|\\text\s*\{[\s,]*(?:and|or)?\s*\}"
    r"|\n[ \t]*[-•](?=[ \t])|\b(?:and|or|also|as\s+well\s+as|together\s+with|along\s+with)\b"
    r"|(?:\\[A-Za-z]+|[A-Za-z])(?:_\{?\w{1,9}\}?)?(?:\(\w{1,9}\))?\s*="
)
_LISTED = re.compile(rf"(?:{_LISTING})*")
_BETWEEN = re.compile(rf"(?:{_LISTING}|[:+*/^{{}}]|\\(?:times|cdot|sqrt)(?![A-Za-z]))*")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT_MACRO = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{")
_OPENING = re.compile(r"\\(?:boxed|fbox)\s*\{")


@dataclass(frozen=True)
class Box:
    """text[start:end] is what stands in the box that text[marker_start:close] is."""

    marker_start: int
    start: int
    end: int
    close: int


def find_boxes(text: str, start: int = 0, limit: int | None = None) -> tuple[list[list[Box]], int]:
    """The boxes of text[start:limit] in groups of neighbours, and where the last one without an end begins (-1).

    Of a box that holds nothing but a box, the content is the inner one's. Linear in the length of the text.
    """
    limit = len(text) if limit is None else limit
    closing = _closing_braces(text, start, limit)
    groups: list[list[Box]] = []
    cut_off = -1
    for match in _BOX.finditer(text, start, limit):
        if match.group(1):
            begin, end, close = *match.span(1), match.end()
        else:
            begin, end = match.end(), closing.get(match.end() - 1, -1)
            close = end + 1
        if end < 0:
            cut_off = match.start()
            continue
        last = groups[-1][-1] if groups else None
        if last and match.start() < last.close:
            if not text[last.start : match.start()].strip() and not text[close : last.end].strip():
                groups[-1][-1] = Box(last.marker_start, begin, end, last.close)
            continue
        box = Box(match.start(), begin, end, close)
        if last and match.start() - last.close < 60 and _BETWEEN.fullmatch(text, last.close, match.start()):
            groups[-1].append(box)
        else:
            groups.append([box])
    return groups, cut_off


def _closing_braces(text: str, start: int, limit: int) -> dict[int, int]:
    """Where each opening brace closes."""
    closing: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACE.finditer(text, start, limit):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closing[stack.pop()] = match.start()
    return closing


def outside_words(text: str, start: int, end: int, groups: list[list[Box]]) -> bool:
    """Whether text[start:end] has words outside its boxes, so that it is prose around them and no formula."""
    outside, at = "", start
    for box in (box for group in groups for box in group):
        outside += text[at : box.marker_start] + " "
        at = box.close
    outside += text[at:end]
    return bool(_WORD.search(_TEXT_MACRO.sub(" ", outside)))


def neighbours(text: str) -> list[str]:
    """What stands in each of the neighbouring boxes that the text consists of; the text itself if it is no such."""
    groups, _ = find_boxes(text)
    if len(groups) != 1 or (groups[0][0].marker_start, groups[0][-1].close) != (0, len(text)):
        return [text]
    if not all(_LISTED.fullmatch(text, a.close, b.marker_start) for a, b in pairwise(groups[0])):
        return [text]  # one formula with several boxes in it
    return [text[box.start : box.end].strip() for box in groups[0] if text[box.start : box.end].strip()]


def without_boxes(text: str) -> str:
    """The text with the content of each box in its place."""
    for _ in range(20):
        closing = _closing_braces(text, 0, len(text))
        match = _OPENING.search(text)
        if match is None or match.end() - 1 not in closing:
            break
        end = closing[match.end() - 1]
        text = text[: match.start()] + text[match.end() : end] + text[end + 1 :]
    return re.sub(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", "", text)
