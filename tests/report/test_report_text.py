from __future__ import annotations

import pytest

from tokencredit.report.text import are_words, listed, visible, visible_tokens


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 中 🙂", "plain é 中 🙂"),
        ("a\nb", "a↵\nb"),
        ("\x00\t\r\x1b[31m", "⟨U+0000⟩⇥⟨U+000D⟩⟨U+001B⟩[31m"),
        ("\x7f\x9b", "⟨U+007F⟩⟨U+009B⟩"),
        ("\u202eabc\u2066", "⟨U+202E⟩abc⟨U+2066⟩"),
        ("a\u2028b\u2029\u200b\ufeff\xad", "a⟨U+2028⟩b⟨U+2029⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+00AD⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("\U000e0041", "⟨U+E0041⟩"),
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("שלום عالم", "שלום عالم"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_shown(text, shown):
    assert visible(text) == shown


def test_an_empty_token_can_be_seen():
    assert visible_tokens(["a", "", "\n"]) == ["a", "∅", "↵\n"]


def test_word_level_tokens_have_no_spaces_among_them():
    assert are_words(["S1", "7", "+"])
    assert not are_words(["S1", " 7", "+"])
    assert not are_words(["one"])


def test_names_are_listed_as_one_says_them():
    assert [listed(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
