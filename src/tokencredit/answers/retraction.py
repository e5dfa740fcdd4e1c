"""What looks like an answer and is none: an instruction repeated, a value that is taken back."""

from __future__ import annotations

import re

__all__ = ["is_placeholder", "is_plain_value", "taken_back"]

_SIGNS = (
    r"(?:\\(?:boxed|fbox|text|mathrm|textbf|mbox|q?quad)\b|\\[hv]?phantom\{[^{}]*\}"
    r"|[\s$\\()\[\]{}<>*`\"'“”.,:;!…_?=~—-]|\\l?dots|\\cdots)*"
)
_PLACEHOLDER = re.compile(
    rf"{_SIGNS}(?:(?:(?:your|the|my|insert|final|numerical|numeric|correct)\b{_SIGNS})*"
    rf"(?:answer|letter)\b{_SIGNS}(?:here\b)?{_SIGNS})?",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"[-+−]?\s*(?:\\?\$|[€£¥])?\s*[-+−]?\d[\d.,/^×x*{}\s]*(?:\s*(?:\\?%|°|[A-Za-z]{1,12}))?"
    r"|\(?[A-J]\)?|\\[a-z]+.*|\*\*.+\*\*"
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|no|actually|hold\s+on|oops|hmm+|sorry|oh)\b[^.?!\n]{0,60}(?<!not )(?<!n't )"
    r"\b(?:wrong|incorrect|not\s+(?:right|correct)|mistaken|(?<!no )(?<!any )(?:mistake|error))\b(?![^.\n]{0,20}\?)"
    r"|\b(?:(?:scratch|ignore|disregard)\s+(?:that|this|the\s+(?:above|box))|I\s+(?:retract|take\s+that\s+back))\b"
    r"|不对|错了",
    re.IGNORECASE,
)


def is_placeholder(text: str) -> bool:
    """Whether the text is empty but for signs, or stands for an answer as instructions do ("your answer", "...")."""
    if len(text) > 200:
        return False
    if re.fullmatch(r"[A-J]|\(?[A-J]\)?", text):
        return False
    return bool(_PLACEHOLDER.fullmatch(text)) and not re.fullmatch(r"\\\{\s*\\\}", text)


def is_plain_value(around: str, text: str) -> bool:
    """Whether an announced text is plainly a value: math, a number with a unit, or a letter."""
    return around[:1] == "$" or (around[:1] in "([" and around[-1:] in ")]") or bool(_PLAIN.fullmatch(text))


def taken_back(text: str, start: int) -> bool:
    """Whether text[start:] says that what stands before is wrong."""
    return bool(_TAKEN_BACK.search(text, start))
