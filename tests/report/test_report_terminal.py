from __future__ import annotations

import io

import pytest
from rich.console import Console

from tokencredit.report import Number, Table, heat_map, in_terminal, top_table, top_tokens
from tokencredit.report.terminal import heat_text

TOKENS = ["The", " sum", " [bold]7[/bold]", "\n", "\x1b[2J", " is", " 12"]


def printed(thing, **options) -> str:
    out = io.StringIO()
    Console(file=out, width=400, **options).print(thing)
    return out.getvalue()


def test_the_plain_text_is_the_tokens(make_record):
    record = make_record(TOKENS)
    assert heat_text(record).plain == "The sum [bold]7[/bold]↵\n⟨U+001B⟩[2J is 12"


def test_word_level_tokens_are_spaced(make_record):
    assert heat_text(make_record(["7", "+", "5", "ans", "2"])).plain == "7 + 5 ans 2"


def test_with_colour_the_text_is_unchanged_and_the_background_shows_importance(make_record):
    record = make_record(["7", "+", "5", "ans", "2"], importance=[4.0, 0.2, 0.1, None, None])
    shown = printed(heat_map(record), force_terminal=True, color_system="truecolor", no_color=False)
    styles = {span.start: str(span.style) for span in heat_text(record).spans}
    assert "on #f2664a" in styles[0] and "on #fff0b8" in styles[2]
    assert "on" not in styles.get(4, "").split()
    assert styles[10] == "bold underline"
    assert "48;2;242;102;74m7" in shown


@pytest.mark.parametrize("options", [{"no_color": True, "force_terminal": True}, {"color_system": None}])
def test_without_colour_the_top_tokens_stand_in_brackets(make_record, options):
    record = make_record([" 7", "+", "5", "=", "\n", " ans", " 2"], importance=[4, 1, None, 0, 3, None, None])
    assert "[7]+5=[↵]\n ans 2" in printed(heat_map(record, k=2), **options).replace("\x1b[1;4m", "").replace(
        "\x1b[0m", ""
    )


def test_no_color_in_the_environment_is_honoured(make_record, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = printed(heat_map(make_record(["7", "+", "5", "ans", "2"]), k=1), force_terminal=True)
    assert "[5]" in shown and "48;" not in shown


def test_top_tokens_are_ordered_and_leave_out_what_has_no_importance(make_record):
    record = make_record(["a", "b", "c", "d", "e", "f"], importance=[0.5, 2.0, 0.0, 2.0, None, None])
    assert top_tokens(record, 9) == [
        (1, "b", 2.0, record["weights"][1]),
        (3, "d", 2.0, record["weights"][3]),
        (0, "a", 0.5, record["weights"][0]),
    ]
    assert [index for index, *_ in top_tokens(record, 1)] == [1]


def test_the_table_shows_markup_and_control_characters_as_text(make_record):
    record = make_record(TOKENS, roles=["r[i]"] * 7, credit="oar-g [red]")
    shown = printed(top_table(record, 5))
    for text in ("[bold]7[/bold]", "⟨U+001B⟩[2J", "r[i]", "oar-g [red]", "1.25"):
        assert text in shown
    assert "\x1b[2J" not in shown


def test_a_completion_without_importance_is_plain_text(make_record):
    record = make_record(["7", "+", "ans", "2"], importance=[None] * 4, answer=None)
    assert heat_text(record).plain == "7 + ans 2"
    assert top_tokens(record) == []


def test_a_report_s_table_shows_markup_and_control_characters_as_text():
    rows = [["[red]a[/red]", Number("0.82 ±0.03", 0.82)], ["b\x1b[2J", "–"]]
    shown = printed(in_terminal(Table("[i]t[/i]", ["[b]AUROC"], rows, "strategy")))
    for text in ("[i]t[/i]", "[b]AUROC", "[red]a[/red]", "0.82 ±0.03", "b⟨U+001B⟩[2J", "–", "strategy"):
        assert text in shown
