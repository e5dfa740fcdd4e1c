"""In a browser: tables that sort, and files that the page saves."""

from __future__ import annotations

import csv
import io
import json

import pytest
from page_helpers import HOSTILE, ROLES, TOKENS, choose, download, keys, one, said, texts

from tokencredit.report import Number, Shown, Table, render_report

FORMULAS = ["=1+1", "+1", "-1", "@A1", "\tx", "\rx", "==", "a=1"]
DEFUSED = ["'=1+1", "'+1", "'-1", "'@A1", "'\tx", "'\rx", "'==", "a=1"]


def number(value, **ends):
    return Number(f"{value:.1f}", value, **ends)


TABLE = Table(
    "Some <b>figures</b>",
    ["value", "words", ""],
    [
        ["two", number(2.04, low=1.5, high=2.5), "b10", "–"],
        ["ten", number(10.0), "–", "x"],
        ["none", "–", "b9", "x"],
        ["minus", number(-3.0), 'say "b9", twice', "x"],
        ["also two", number(2.04), "a", HOSTILE[2]],
    ],
    head="strategy",
)


@pytest.fixture
def page(visit, tmp_path, make_record):
    other = Table("Formulas", ["cell"], [[text, text] for text in FORMULAS])
    truth = {"roles": ROLES, "on_path": [True] * 7, "right": [None] * 7}
    shown = [
        Shown(name, make_record([*TOKENS[:-1], answer], reward=reward, row=row, **truth))
        for row, (answer, reward) in enumerate([("2", 1.0), ("=3", 0.0)])
        for name in ("oar-g", "=oar-p")
    ]
    hostile = make_record([*HOSTILE, "ans", "\ud800"], prompt='a "prompt",\n' + HOSTILE[0], row=2)
    shown.append(Shown("__proto__", hostile))
    tables = [TABLE, other]
    return visit(render_report(tmp_path / "a.html", title="Tables", tables=tables, completions=shown))


def order(browser) -> list[str]:
    return texts(browser, ".tables table:first-of-type tbody th")[:5]


def press(browser, column):
    one(browser, f".tables thead th:nth-child({column}) button").click()


def sorts(browser) -> list[str]:
    heads = browser.find_elements("css selector", ".tables .scroll:first-child thead th")
    return [head.get_attribute("aria-sort") for head in heads]


def test_numbers_sort_as_numbers_with_missing_ones_last(page):
    assert sorts(page) == ["none"] * 4
    press(page, 2)
    assert order(page) == [
        "minus",
        "two",
        "also two",
        "ten",
        "none",
    ]  # the two are equal and stay as they were
    assert sorts(page) == ["none", "ascending", "none", "none"]
    assert said(page) == "sorted by value, ascending"
    press(page, 2)
    assert order(page) == ["ten", "two", "also two", "minus", "none"]
    assert sorts(page)[1] == "descending"
    press(page, 2)
    assert order(page) == ["two", "ten", "none", "minus", "also two"]
    assert sorts(page) == ["none"] * 4


def test_texts_sort_by_the_numbers_in_them(page):
    press(page, 3)
    assert order(page) == ["also two", "none", "two", "minus", "ten"]
    press(page, 1)
    assert order(page) == ["also two", "minus", "none", "ten", "two"]
    assert sorts(page) == ["ascending", "none", "none", "none"]


def test_the_keyboard_sorts_too(page):
    page.execute_script("document.querySelector('.tables thead button').focus()")
    keys(page, "TAB", "ENTER")
    assert order(page)[0] == "minus"
    keys(page, "SPACE")
    assert order(page)[0] == "ten"


def test_tables_show_markup_as_text(page):
    assert texts(page, "caption")[0] == "Some <b>figures</b>"
    assert HOSTILE[2] in texts(page, ".tables td")


def saved(page, folder, name):
    path = download(page, folder, one(page, f"button[aria-label='Download {name}']"))
    return path, path.read_bytes().decode("utf-8")


def test_a_table_is_saved_as_it_is_sorted(page, tmp_path):
    press(page, 2)
    path, text = saved(page, tmp_path / "files", "Some <b>figures</b> as CSV")
    assert path.name == "some-b-figures-b.csv"
    assert text.endswith("\r\n") and text.count("\r\n") == 6
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["strategy", "value", "value low", "value high", "words", ""],
        ["minus", "-3", "", "", 'say "b9", twice', "x"],
        ["two", "2.04", "1.5", "2.5", "b10", ""],
        ["also two", "2.04", "", "", "a", HOSTILE[2]],
        ["ten", "10", "", "", "", "x"],
        ["none", "", "", "", "b9", "x"],
    ]
    path, text = saved(page, tmp_path / "files", "Some <b>figures</b> as JSON")
    content = json.loads(text)
    assert content["columns"] == ["strategy", "value", "words", ""]
    assert content["rows"][:2] == [
        ["minus", -3, 'say "b9", twice', "x"],
        ["two", {"value": 2.04, "low": 1.5, "high": 2.5}, "b10", None],
    ]


def test_no_cell_is_a_formula_in_a_spreadsheet(page, tmp_path):
    _, text = saved(page, tmp_path / "files", "Formulas as CSV")
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    shown = [cell.replace("\t", "⇥").replace("\r", "⟨U+000D⟩") for cell in FORMULAS]
    assert [row[1] for row in rows] == ["'" + c if c[0] in "=+-@" else c for c in shown]


def test_the_chosen_completions_are_saved_as_records(page, tmp_path):
    _, text = saved(page, tmp_path / "files", "the chosen completions as JSON")
    records = json.loads(text)
    assert [record["credit"] for record in records] == ["oar-g", "=oar-p"] * 2 + ["__proto__"]
    assert records[4]["tokens"] == [*HOSTILE, "ans", "\ud800"]
    assert records[4]["prompt"] == 'a "prompt",\n' + HOSTILE[0]
    first = records[0]
    assert first["importance"] == [0.25, 0.5, 0.75, 1.0, 1.25, None, None]
    assert (first["roles"], first["reward"], first["reasoning"], first["answer"]) == (
        ROLES,
        1,
        [0, 5],
        [6, 7],
    )
    choose(page, "#verdict", "wrong")
    choose(page, "#strategy", "=oar-p")
    [record] = json.loads(saved(page, tmp_path / "wrong", "the chosen completions as JSON")[1])
    assert (record["tokens"][-1], record["credit"], record["row"]) == ("=3", "=oar-p", 1)


def test_the_chosen_completions_are_saved_token_by_token(page, tmp_path):
    _, text = saved(page, tmp_path / "files", "the chosen completions as CSV")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == 4 * 7 + 12
    first = rows[0]
    assert first["prompt"] == "S1 7 + 5 ; ? S1" and rows[1]["prompt"] == ""
    wanted = {"completion": "1", "credit": "oar-g", "position": "1", "token": "7", "part": "reasoning"}
    wanted |= {"role": "operand", "on_path": "true", "right": "", "importance": "0.25", "weight": "0.5"}
    wanted |= {"advantage": "1", "probability": "0.9", "sequence_advantage": "2", "reward": "1"}
    assert {name: first[name] for name in wanted} == wanted
    assert (rows[1]["token"], rows[7]["credit"], rows[20]["token"]) == ("'+", "'=oar-p", "'=3")
    assert (rows[5]["importance"], rows[6]["part"]) == ("", "answer")
    assert [row["token"] for row in rows[28:38]] == HOSTILE
    assert rows[28]["prompt"] == 'a "prompt",\n' + HOSTILE[0]


@pytest.mark.parametrize("text, kept", zip(FORMULAS, DEFUSED, strict=True))
def test_tokens_that_look_like_formulas_stay_text(visit, tmp_path, make_record, text, kept):
    path = render_report(
        tmp_path / "a.html", title="t", completions=[Shown("a", make_record([text, "ans", "2"]))]
    )
    _, content = saved(visit(path), tmp_path / "files", "the chosen completions as CSV")
    assert next(csv.DictReader(io.StringIO(content, newline="")))["token"] == kept
