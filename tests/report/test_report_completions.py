from __future__ import annotations

from tokencredit.report import Shown
from tokencredit.report.completions import payload, sample_evenly, together

TOKENS = ["7", "+", "5", "=", "2", "ans", "2"]


def names(groups):
    return [[each.strategy for each in group] for group in groups]


def test_records_of_one_completion_come_together(make_record):
    shown = [Shown(name, make_record(tokens)) for name in "ab" for tokens in (TOKENS, [*TOKENS[:-1], "3"])]
    assert names(together(shown)) == [["a", "b"], ["a", "b"]]


def test_what_differs_in_more_than_the_credit_stays_apart(make_record):
    record = make_record(TOKENS)
    for changed in (
        Shown("b", record | {"step": 2}),
        Shown("b", record | {"prompt": "other"}),
        Shown("b", record | {"reward": 0.0}),
        Shown("b", record | {"answer": None}),
        Shown("b", record | {"reasoning": [1, 5]}),
        Shown("b", record, "elsewhere"),
    ):
        assert names(together([Shown("a", record), changed])) == [["a"], ["b"]]
    assert names(together([Shown("a", record), Shown("b", record | {"row": 9, "weights": [1.0] * 7})])) == [
        ["a", "b"]
    ]


def test_a_completion_that_was_sampled_twice_is_there_twice(make_record):
    shown = [Shown(name, make_record(TOKENS, row=row)) for name in "ab" for row in (0, 1)]
    groups = together(shown)
    assert names(groups) == [["a", "b"], ["a", "b"]]
    assert [[each.record["row"] for each in group] for group in groups] == [[0, 0], [1, 1]]


def test_sampling_is_even_and_heeds_the_number_of_tokens(make_record):
    groups = [[Shown("a", make_record(["a"] * 100, row=row))] for row in range(10)]
    rows = [group[0].record["row"] for group in sample_evenly(groups, most=5)]
    assert rows == [0, 2, 4, 6, 8]
    assert len(sample_evenly(groups, most=10, most_tokens=450)) == 4
    assert len(sample_evenly(groups, most=10, most_tokens=5)) == 1
    twice = [group * 2 for group in groups]
    assert len(sample_evenly(twice, most=10, most_tokens=1000)) == 5
    assert sample_evenly([]) == []


def test_the_page_has_what_was_written_and_what_can_be_seen(make_record):
    found = payload([Shown("a", make_record(["x\n", " y", "ans", "2"], prompt="p\x00"))])
    assert found["tokens"] == ["x↵\n", " y", "ans", "2"] and found["raw"] == {0: "x\n"}
    assert (found["prompt"], found["raw_prompt"]) == ("p⟨U+0000⟩", "p\x00")
    assert "raw" not in payload([Shown("a", make_record(TOKENS))])


def test_a_probability_of_its_own_goes_with_the_view(make_record):
    """Two policies may have written the same."""
    first, second = make_record(TOKENS), make_record(TOKENS, probability=[0.123456] * 7)
    found = payload(
        [Shown("a", first), Shown("b", second), Shown("c", make_record(TOKENS, probability=None))]
    )
    assert found["probability"] == [0.9] * 7
    assert [view.get("probability") for view in found["views"]] == [None, [0.1235] * 7, [None] * 7]
