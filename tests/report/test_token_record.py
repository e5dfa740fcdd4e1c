"""A completion's tokens as the report shows them."""

from __future__ import annotations

from tokencredit.report.token_record import _pieces


def test_pieces_join_to_the_text():
    # Three tokens for the bytes of one character, then a token with a leading space, then one without text.
    text = "三 ab"
    offsets = [(0, 1), (0, 1), (0, 1), (1, 3), (3, 3), (3, 4)]
    assert _pieces(text, offsets) == ["三", "", "", " a", "", "b"]
    assert "".join(_pieces(text, offsets)) == text
