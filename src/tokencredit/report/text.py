"""Untrusted text made safe to look at: no character may move the cursor, vanish or reorder the line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Joiners shape legitimate text (Persian, emoji families) and can hide nothing by themselves.
_JOINERS = "\u200c\u200d"
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_SIGNS = {"\n": "↵\n", "\t": "⇥"}
EMPTY_TOKEN = "∅"


def visible(text: str) -> str:
    """Return `text` with control and format characters replaced by something one can see.

    A line feed becomes "↵" followed by a real line break, a tab "⇥", and every other control, direction
    override, invisible separator or lone surrogate its code point, as in "⟨U+202E⟩" (control pictures such as
    "␛" are missing from common fonts).
    """
    return text if text.isprintable() else "".join(_show(character) for character in text)


def _show(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if unicodedata.category(character) in _UNSEEN and character not in _JOINERS:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def visible_tokens(tokens: Sequence[str]) -> list[str]:
    """Return each token made `visible`; a token without text (a part of a longer character) shows as "∅"."""
    return [visible(token) or EMPTY_TOKEN for token in tokens]


def are_words(tokens: Sequence[str]) -> bool:
    """Say whether the tokens come from a word-level tokenizer, which leaves the spaces out of its tokens."""
    return len(tokens) > 1 and not any(character.isspace() for token in tokens for character in token)


def listed(names: Sequence[str]) -> str:
    """Return the names as one says them: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
