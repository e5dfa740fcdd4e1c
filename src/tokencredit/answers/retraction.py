"""What looks like an answer and is none: an instruction repeated, a value that is taken back."""

from __future__ import annotations

import re

__all__ = ["is_not_meant", "is_placeholder", "is_plain_value", "taken_back"]

_SIGNS = (
    r"(?:\\(?:boxed|fbox|text|mathrm|textbf|mbox|q?quad)\b|\\[hv]?phantom\{[^{}]*\}"
    r"|[\s$\\()\[\]{}<>*`\"'“”.,:;!…_?=~—-]|\\l?dots|\\cdots)*"
)
_PLACEHOLDER = re.compile(
    rf"{_SIGNS}(?:(?:(?:your|the|my|insert|final|numerical|numeric|correct)\b{_SIGNS})*"
    rf"(?:answer|letter|number|value|result)\b{_SIGNS}(?:here\b)?{_SIGNS})?",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"[-+−]?\s*(?:\\?\$|[€£¥])?\s*[-+−]?\d[\d.,/^×x*{}\s]*(?:\s*(?:\\?%|°|[A-Za-z]{1,12}))?"
    r"|\(?[A-J]\)?|\\[a-z]+.*|\*\*.+\*\*"
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|no|actually|hold\s+on|oops|hmm+|sorry|oh)\b[^.?!\n]{0,60}(?<!not )(?<!n't )"
    r"\b(?:wrong|incorrect|not\s+(?:right|correct)|mistaken|(?<!no )(?<!any )(?:mistake|error))\b(?![^.\n]{0,20}\?)"
    r"|\b(?:wait|no|actually|hold\s+on|oops|hmm+|sorry|oh)\b[\s,.!:-]{1,5}"
    r"(?:no\s*[,.!\n-]|no\Z|I\s+mean|(?:it|that|the\s+answer)\s+should\b)"
    r"|\bI(?:\s+have|\s+just)?\s+made\s+an?\s+(?:\w+\s+)?(?:mistake|error)\b(?![^.\n]{0,80}\b(?:correct|fix))"
    r"|\bcorrection\s*:|\bno,?\s+wait\b|\bI\s+was\s+wrong\b|\blet\s+me\s+(?:correct|fix)\s+(?:that|this|it)\b"
    r"|\b(?:my|the|this)\s+(?:(?:above|previous|boxed)\s+)?(?:answer|result|value)(?:\s+above)?\s+(?:is|was)\s+"
    r"(?:wrong|incorrect|not\s+(?:right|correct))\b(?![^.\n]{0,20}\?)"
    r"|\b(?:(?:scratch|ignore|disregard)\s+(?:that|this|the\s+(?:above|box))|I\s+(?:retract|take\s+that\s+back))\b"
    r"|不对|错了",
    re.IGNORECASE,
)
_AT_ONCE = re.compile(
    r"[\s$*.,()\\\]]{0,8}(?:\?[\s*]*no\b|(?<=\.\.\.)\s*no,|(?:(?:but|and|which|however,?)\s+)?(?:(?:that|this|it|which)(?:'s|\s+is|\s+was)|is|was|seems)"
    r"\s+(?:\w+ly\s+)?(?:wrong|incorrect|mistaken|a\s+mistake|not\s+(?:right|correct|(?:the|my)\s+(?:\w+\s+)?answer))\b"
    r"(?!-|\s+to\b|[^.\n]{0,20}\?))",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"(?:\bnot|n't|\brather\s+than|\binstead\s+of|不是)(?:\s+(?:be|equal(?:\s+to)?|just|simply))?[\s$*(\\\[=]*\Z",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"\b(?:e\.g\.|for (?:example|instance)|such as|example:|(?:in|of) the form(?:at)?(?: of)?|format(?: is)?)"
    r"[,:\s]*[$(\\`\"']*\s*\Z",
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
    return bool(_AT_ONCE.match(text, start) or _TAKEN_BACK.search(text, start))


def is_not_meant(text: str, position: int) -> bool:
    r"""Whether what begins there is refused or only shows the form: "not \boxed{12}", "for example \boxed{42}"."""
    before = max(position - 40, 0)
    return bool(_EXAMPLE.search(text, before, position) or _REFUSED.search(text, before, position))
