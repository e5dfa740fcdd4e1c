"""Where in a completion the answer is: `extract` finds its characters and the rule that found them."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MATH", "Answer", "extract", "opens_thinking"]

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
# math between dollar signs or LaTeX delimiters; the one group that matched is what stands inside
MATH = re.compile(r"\$\$(.+?)\$\$|\$(?=\S)([^$\n]*[^$\s])\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_STOP = re.compile(
    r"\n|[.;!?](?=\s|[*_$`\"')\]]*(?:\s|$))|[。，；！？]|,\s*(?!and\b|or\b)(?=[A-Za-z]{2})"
    r"|<\|[^|>\n]*\|>|</?[a-z_]+>"
    r"|\s+(?:because|since|which|where)\b"
)
_LEAD = re.compile(r"[\s:：*_`\"']*")
_OPEN_THINK = re.compile(r"(?:^|[\n>])[ \t]*<think>|<think>\s*\Z")


@dataclass(frozen=True)
class Answer:
    """A final answer: completion[start:end] is its text, its marker begins at completion[marker_start]."""

    text: str
    start: int
    end: int
    marker_start: int
    rule: str


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
        if math := MATH.match(text, begin):
            begin, end = math.span(math.lastindex or 0)
        else:
            stop = _STOP.search(text, begin)
            end = stop.start() if stop else len(text)
            end = begin + len(text[begin:end].rstrip(" \t*_`\"'.,;:。$"))
        if answer := _answer(text, begin, end, marker_start, rule):
            return answer
    return None
