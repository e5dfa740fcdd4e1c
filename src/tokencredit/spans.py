"""Where the reasoning and the answer are, in indices of the token ids as sampled.

The text comes from the ids by incremental decoding and is never encoded again: decoding and encoding need not
give the same ids back. Token values are looked at once, to leave the special tokens that close a completion
out of both spans; which tokens are real is the caller's knowledge, never guessed from pad or EOS ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tokencredit.answers import extract, opens_thinking
from tokencredit.errors import UsageError

__all__ = ["Spans", "find_spans", "span_masks", "token_offsets"]

_CONTEXT = (
    8  # tokens before the current one that its decoding may depend on (a character has at most 4 bytes)
)
_WINDOW = 24  # tokens decoded together before the window moves on
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MOST_PAIRS = 1 << 17
# The text that a token adds after another, by tokenizer.
_pairs: WeakKeyDictionary[Any, dict[tuple[int | None, int], str]] = WeakKeyDictionary()
_UNFINISHED = "�"  # what decoders write for the bytes of an incomplete character


@dataclass(frozen=True)
class Spans:
    """Half-open token ranges of one completion.

    `reasoning` ends at the first token that overlaps the answer's marker; `answer` covers the tokens that
    overlap the answer's text (None without an answer; the reasoning is then every token but the special ones
    that close the completion). `rule` names the rule that found the answer, "none" without one.
    """

    reasoning: tuple[int, int]
    answer: tuple[int, int] | None
    rule: str


def token_offsets(ids: Sequence[int], tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The text of the ids and each token's [start, end) in its characters.

    The text is `tokenizer.decode` of all ids, special tokens included and spaces not cleaned up. Starts and
    ends never decrease and the tokens cover the text. Tokens that hold bytes of one character share that
    character; a token that adds no text (a stripped leading space) has an empty range.
    Linear in the number of ids: each is decoded in a window of bounded length.
    """
    ids = [int(i) for i in ids]
    text = _decode(ids, tokenizer)
    offsets = _tiled_offsets(ids, tokenizer, text)
    if offsets is not None:
        return text, offsets
    offsets = _windowed_offsets(ids, tokenizer)
    if offsets and offsets[-1][1] != len(text):
        offsets = _prefix_offsets(ids, tokenizer, text)
    return text, offsets


def _decode(ids: list[int], tokenizer: Any) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def _tiled_offsets(ids: list[int], tokenizer: Any, text: str) -> list[tuple[int, int]] | None:
    """Offsets from what each token adds to its predecessor's text: neighbours recur, so most are remembered.

    None where these pieces don't tile the whole text, or hold a broken character, which could hide that.
    """
    pairs = _pairs.setdefault(tokenizer, {})
    if len(pairs) > _MOST_PAIRS:
        pairs.clear()
    offsets, place = [], 0
    for pair in zip([None, *ids], ids, strict=False):
        added = pairs.get(pair)
        if added is None:
            before = _decode([pair[0]], tokenizer) if pair[0] is not None else ""
            both = _decode([i for i in pair if i is not None], tokenizer)
            added = pairs[pair] = both[len(before) :] if both.startswith(before) else _UNFINISHED
        if added.count(_UNFINISHED) or not text.startswith(added, place):
            return None
        offsets.append((place, place + len(added)))
        place += len(added)
    return offsets if place == len(text) else None


def _windowed_offsets(ids: list[int], tokenizer: Any) -> list[tuple[int, int]]:
    """Offsets from decoding each token after its last few predecessors; only differences of lengths count.

    A window's text up to a trailing unfinished character is settled: `done` counts the settled characters of
    the whole text, so that the next token starts there.
    """
    runs = _byte_runs(ids, tokenizer)
    offsets: list[tuple[int, int]] = []
    first, before, done = 0, "", 0  # the window's first token, its text so far, characters settled
    position = previous = 0
    while position < len(ids):
        stop, data = runs.get(position, (position + 1, b""))
        if position - first > _WINDOW:
            first = min(position - _CONTEXT, previous)  # never within the byte run just decoded
            before = _decode(ids[first:position], tokenizer)
        now = _decode(ids[first:stop], tokenizer)
        start = len(_settled(before))
        if start < len(before) and _stays_broken(before, now, _decode(ids[position:stop], tokenizer)):
            start, done = len(before), done + 1
        grown = max(len(_settled(now)) - start, 0)
        count = grown + now.endswith(_UNFINISHED)
        offsets += _run_offsets(done, count, data) if data else [(done, done + count)]
        done += grown
        before, previous, position = now, position, stop
    return offsets


def _stays_broken(before: str, now: str, alone: str) -> bool:
    """Whether the bytes that `before` ends with have no part in the text that the next token added.

    That token may have finished the character, or only added to its broken bytes: then it adds less than
    its own text `alone`.
    """
    return now.startswith(before) and len(now) - len(before) >= max(len(alone), 1)


def _settled(text: str) -> str:
    return text[:-1] if text.endswith(_UNFINISHED) else text


def _byte_runs(ids: list[int], tokenizer: Any) -> dict[int, tuple[int, bytes]]:
    """Start -> (stop, bytes) of each run of byte tokens such as <0xE4>.

    Decoders with such tokens turn a run into text as a whole: into characters, or, where the bytes are not
    UTF-8, into one replacement sign each.
    """
    runs: dict[int, tuple[int, bytes]] = {}
    values: dict[int, int] = {}
    for i in set(ids):
        token = tokenizer.convert_ids_to_tokens(i)
        match = _BYTE_TOKEN.fullmatch(token) if isinstance(token, str) else None
        if match and _decode([i], tokenizer) != token:
            values[i] = int(match.group(1), 16)
    position = 0
    while values and position < len(ids):
        stop = position
        while stop < len(ids) and ids[stop] in values:
            stop += 1
        if stop > position:
            runs[position] = stop, bytes(values[i] for i in ids[position:stop])
        position = stop + 1
    return runs


def _run_offsets(done: int, count: int, data: bytes) -> list[tuple[int, int]]:
    """Offsets of a run's byte tokens, given its text's start and number of characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        characters = list(range(len(data)))
    else:
        begins = [byte & 0xC0 != 0x80 for byte in data]
        characters = [sum(begins[:1]) - 1]
        for begin in begins[1:]:
            characters.append(characters[-1] + begin)
    missing = characters[-1] + 1 - count  # characters that the decoder stripped at the text's start
    clipped = [min(max(c - missing, -1), count - 1) for c in characters]
    return [(done + max(c, 0), done + c + 1) for c in clipped]


def _prefix_offsets(ids: list[int], tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Offsets from decoding every prefix: for decoders that look further than a window. Quadratic, rare."""
    offsets: list[tuple[int, int]] = []
    done = 0
    for stop in range(1, len(ids) + 1):
        prefix = text if stop == len(ids) else _decode(ids[:stop], tokenizer)
        same = takewhile(lambda pair: pair[0] == pair[1], zip(prefix, text, strict=False))
        shared = sum(1 for _ in same)
        offsets.append((done, max(done, shared)))
        done = max(done, shared)
    return offsets


def find_spans(
    ids: Sequence[int], tokenizer: Any, *, prompt_text: str = "", marker: str | None = None
) -> Spans:
    """The reasoning and answer spans of one completion, by the rules of `tokencredit.answers.extract`.

    `ids` are the completion's real tokens (no padding). Special tokens that close it (EOS, end of turn, pad)
    belong to neither span. `prompt_text` tells whether a think block was already open; thinking that never
    closes leaves no answer, and thinking that does is part of the reasoning. `marker` is a task's own sign.
    """
    ids = [int(i) for i in ids]
    specials = _closing_ids(tokenizer)
    length = len(ids)
    while length and ids[length - 1] in specials:
        length -= 1
    text, offsets = token_offsets(ids[:length], tokenizer)
    answer = extract(text, marker=marker, thinking=opens_thinking(prompt_text))
    if answer is None:
        return Spans((0, length), None, "none")
    first_marker = next(t for t, (start, end) in enumerate(offsets) if end > max(start, answer.marker_start))
    covering = [
        t for t, (start, end) in enumerate(offsets) if start < answer.end and end > max(start, answer.start)
    ]
    return Spans((0, first_marker), (covering[0], covering[-1] + 1), answer.rule)


def _closing_ids(tokenizer: Any) -> set[int]:
    """Special ids that may close a completion: all but the unknown token's, which stands for text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    kept = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    return special - ({tokenizer.unk_token_id} - kept)


def span_masks(spans: Sequence[Spans], length: int) -> tuple[Tensor, Tensor]:
    """reasoning_mask and answer_mask, both (B, T) bool on the CPU, for completions padded on the right to T.

    Raises UsageError for a span beyond `length`.
    """
    reasoning = torch.zeros(len(spans), length, dtype=torch.bool)
    answer = torch.zeros(len(spans), length, dtype=torch.bool)
    for row, span in enumerate(spans):
        last = max(span.reasoning[1], span.answer[1] if span.answer else 0)
        if last > length:
            raise UsageError(
                f"row {row} has a span that ends at token {last}: give a length of at least {last}"
            )
        reasoning[row, slice(*span.reasoning)] = True
        if span.answer:
            answer[row, slice(*span.answer)] = True
    return reasoning, answer
