"""Where in a completion the answer is: `extract` finds its characters and the rule that found them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tokencredit.answers.boxes import Box, find_boxes, outside_words
from tokencredit.answers.retraction import is_not_meant, is_placeholder, is_plain_value, taken_back

__all__ = ["MATH", "Answer", "extract", "opens_thinking"]

_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_OPEN_TAG = re.compile(r"<answer>(?!\s{0,9}(?:tags?\b|and\b)|\W{0,9}</?answer>)", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</answer>", re.IGNORECASE)
_ENDING = r"(?:<\|[^|>\n]*\|>|</?(?:s|eos|bos|pad|answer|think|end_of_turn|start_of_turn|im_end)>|</[a-z_]+>)"
_HASHES = re.compile(
    rf"(?:^|(?<=<answer>))[ \t]*####[ \t]*(?=[^A-Za-z\s#]|\S+(?:\s|{_ENDING})*\Z)(?!\d+[.)][ \t]+[A-Za-z])",
    re.MULTILINE,
)
_PHRASE = re.compile(
    r"(?:\b(?:the|my|our)\s+)?(?:\b(?:final|correct)\s+)?(?<![$\w])(?:answers?|correct\s+(?:option|choice))\b"
    r"(?:\s+to\s[^.:\n]{1,80}?)?[*_]*\s*"
    r"(?:\b(?:is|are|was|equals|(?:should|must|would|will)\s+be)\b|=|[:：])+(?!\s+not\b)"
    r"|^[#*_ \t]*(?:final\s+)?answer\b[*_:]*[ \t]*\n|\bfinal\s+answer\b[*_]*[ \t]*\n"
    r"|(?:最终|最后)?(?:的)?答案\s*(?:是|为|[:：])+|故选\s*[:：]?",
    re.IGNORECASE | re.MULTILINE,
)
# math between dollar signs or LaTeX delimiters; the one group that matched is what stands inside
MATH = re.compile(r"\$\$(.+?)\$\$|\$(?=\S)([^$\n]*[^$\s])\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_STOP = re.compile(
    r"\n|[.;!?](?=\s|[*_$`\"')\]]*(?:\s|$))|[。；！？]|，(?!\s*[-−+\d$\\(（])|,\s*(?!and\b|or\b)(?=[A-Za-z]{2})"
    rf"|{_ENDING}|(?<!\s)\s+\(?(?:because|since|which|where|as|so|for)\b|(?<!\s)\s+\((?!or\b|and\b)(?=[A-Za-z]{{2}})"
)
_LEAD = re.compile(
    r"(?:[\s:：*_`\"'}]|\b(?:therefore|thus|then|simply|just|clearly|exactly|given\s+by|equal\s+to|option|choice)"
    r"(?=[\s:]))*"
)
_JOINED = re.compile(r"\s*(?:,|;|\band\b|\bor\b|,\s*and\b|,\s*or\b)\s*(?=\$|\\\()")
_OPEN_THINK = re.compile(r"(?:^|[\n>])[ \t]*<think>|<think>\s*\Z")
_SIGN = re.compile(r"(?:[=$(:]|\bis)[ \t]*([-−])[ \t]*\Z|(?:\A|\s)([-−])\Z|(\\pm)\s*\Z")
# a turn that was opened last and left empty, as at the end of a prompt
_OPEN_TURN = re.compile(
    r"(?:(?:^|\n)[ \t*#]*(?:A|Answer|Solution|Response|Assistant|Output|答|解答)[ \t*]*[:：][ \t*]*"
    r"|(?:<\|im_start\|>|<\|start_header_id\|>)assistant(?:<\|end_header_id\|>)?|<\|assistant\|>|<start_of_turn>model"
    rf"|\[/INST\])(?:\s*{_ENDING})*\Z"
)
_STATED = re.compile(r"[A-Z][^.,;:$\\\d\n]{0,80}\b(?:is|are|equals)\s+(?=\S)")
_HOLDS_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_MARKS = 50  # announcements without a value that are passed over
_QUOTED = re.compile(r"[:：*]*[\"'”’`]")


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
    1. the last `\boxed{}` (also `\fbox{}`, `\boxed 7`) or `<answer></answer>`, whichever is later. Empty ones and
       those that only repeat the instruction (`\boxed{answer}`, "for example \boxed{42}") do not count. Neighbouring
       boxes, with nothing but a comma, "and" or a name between them, are one answer of several values; its text runs
       from the first box to the last. A box or tag that was begun after all of them and never closed was cut off
       while answering: no answer, whatever stands before it;
    2. a plain value that a line with `####` or a phrase such as "the answer is" announces after that; where the
       box is taken back ("wait, that is wrong") and nothing replaces it, there is no answer;
    3. without 1., the last line that begins with `####`, or "(the final) answer is", "Answer:", whichever comes
       later; where nothing follows it, it was cut off: no answer.
    """
    start = completion.rfind("</think>")
    start = 0 if start < 0 else start + len("</think>")
    opened = completion.find("<think>", start) >= 0 or (thinking and start == 0)
    if opened or not completion[start:].strip() or _OPEN_TURN.search(completion[start:].rstrip()[-200:]):
        return None
    if marker is not None:
        return _after_marker(completion, start, marker)
    explicit, cut_off = _explicit(completion, start)
    if cut_off > (explicit.marker_start if explicit else -1):
        return None
    after = _after(completion, explicit.end) if explicit else start
    found = _phrased(completion, after, len(completion), plain=explicit is not None) or explicit
    return None if found is None or taken_back(completion, _after(completion, found.end)) else found


def _answer(text: str, start: int, end: int, marker_start: int, rule: str) -> Answer | None:
    """The Answer at text[start:end] without the white space around it; None where nothing is said."""
    inner = text[start:end].strip()
    if not inner or is_placeholder(inner):
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
    stop = re.compile(rf"\n|{_ENDING}").search(text, begin)
    return _answer(text, begin, stop.start() if stop else len(text), matches[-1].start(), "marker")


def _skip(text: str, position: int, pattern: re.Pattern[str]) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _after(text: str, position: int) -> int:
    """The position behind what closes a box or tag."""
    return _skip(text, position, re.compile(r"\s*(?:\}|</answer>)*"))


def _explicit(text: str, start: int) -> tuple[Answer | None, int]:
    """The last answer in a box or tag, and where the last one that is not closed begins (-1: there is none)."""
    boxes, cut_off = find_boxes(text, start)
    found = _boxed(text, boxes)
    for match in _TAG.finditer(text, start):
        tagged = _answer(text, *match.span(1), match.start(), "<answer>")
        if is_not_meant(text, match.start()):
            continue
        if tagged and (found is None or tagged.marker_start > found.marker_start):
            found = _narrowed(text, tagged)
    opened = [match.start() for match in _OPEN_TAG.finditer(text, start)]
    if opened and not _CLOSE_TAG.search(text, opened[-1]):
        cut_off = max(cut_off, opened[-1])
    return found, cut_off


def _boxed(text: str, groups: list[list[Box]]) -> Answer | None:
    """The answer of the last group of boxes in which something is said."""
    for group in reversed(groups):
        if is_not_meant(text, group[0].marker_start):
            continue
        said = [_answer(text, box.start, box.end, box.marker_start, "boxed") for box in group]
        answers = [answer for answer in said if answer is not None]
        if not answers:
            continue
        if len({answer.text for answer in answers}) == 1:
            sign = _SIGN.search(text, max(group[-1].marker_start - 20, 0), group[-1].marker_start)
            if sign:  # one that was left outside belongs to the answer
                start, close = sign.start(sign.lastindex or 0), group[-1].close
                return Answer(text[start:close], start, close, start, "boxed")
            return _narrowed(text, answers[-1])
        first, last = group[0], group[-1]
        whole = text[first.marker_start : last.close]
        return Answer(whole, first.marker_start, last.close, first.marker_start, "boxed")
    return None


def _narrowed(text: str, answer: Answer) -> Answer:
    """Without what only leads to the answer inside its box or tag: an inner box, "the answer is"."""
    inner, _ = find_boxes(text, answer.start, answer.end)
    if inner and outside_words(text, answer.start, answer.end, inner):
        found = _boxed(text, inner)
        return replace(found, marker_start=answer.marker_start) if found else answer
    phrased = _phrased(text, answer.start, answer.end)
    if phrased:
        return replace(phrased, marker_start=answer.marker_start, rule=answer.rule)
    stated = _STATED.match(text, answer.start, answer.end) if answer.rule == "<answer>" else None
    if stated:
        begin, end = _value(text, stated.end(), answer.end)
        if is_plain_value(text[begin - 1 : end + 1], text[begin:end]):
            return replace(answer, text=text[begin:end], start=begin, end=end)
    return answer


def _phrased(text: str, start: int, limit: int, *, plain: bool = False) -> Answer | None:
    """The last answer that a line with #### or a phrase announces in text[start:limit].

    With `plain` only a number, math or a single letter counts, for prose after a box may say anything.
    """
    marks = [(match, "####") for match in _HASHES.finditer(text, start, limit)]
    marks += [(match, "phrase") for match in _PHRASE.finditer(text, start, limit)]
    marks.sort(key=lambda mark: mark[0].start(), reverse=True)
    if marks and not plain and not text[marks[0][0].end() : limit].strip(" \t\n:*_$"):
        return None  # cut off while answering
    for match, rule in marks[:_MARKS]:
        if rule == "phrase" and _QUOTED.match(text, match.end()) and "答案" not in match.group():
            quote = text[max(match.start() - 1, 0) : match.start()]
            if quote in tuple("\"'“‘`"):
                continue  # an instruction that names the phrase
        marker_start = match.end() - len(match.group().lstrip()) if rule == "####" else match.start()
        begin, end = _value(text, match.end(), limit)
        answer = _answer(text, begin, end, marker_start, rule)
        if answer and _HOLDS_BOX.search(answer.text):
            continue  # one that says nothing, or it would be the answer
        if answer and (not plain or is_plain_value(text[begin - 1 : end + 1], answer.text)):
            return answer
    return None


def _value(text: str, position: int, limit: int) -> tuple[int, int]:
    """The range of the value that follows an announcement."""
    begin = _skip(text, position, _LEAD)
    math = MATH.match(text, begin, limit)
    if math:
        end = math.end()
        while (joint := _JOINED.match(text, end, limit)) and (more := MATH.match(text, joint.end(), limit)):
            end = more.end()
        if end > math.end():
            return begin, end
        return math.span(math.lastindex or 0)
    stop = _STOP.search(text, begin, limit)
    end = stop.start() if stop else limit
    value = text[begin:end].rstrip(" \t*_`\"'.,;:。$")
    surplus = value.count("}") - value.count("{")
    if surplus > 0:  # they close what was opened before the announcement
        value = value[: max(len(value) - surplus, len(value.rstrip("}")))].rstrip()
    return begin, begin + len(value)
