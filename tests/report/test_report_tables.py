from __future__ import annotations

from tokencredit.report import Number, Table, load_run
from tokencredit.report.tables import settings_table, show_setting, show_value, summary_tables


def test_a_summary_of_any_form_becomes_tables(tmp_path, make_run):
    summaries = [
        {
            "seed": 1234,
            "accuracy": {"before": 0.5, "after": None},
            "share_by_role": {"operand": {"share": 0.25}},
            "list": [{"a": 1}, {"b": True}],
        },
        {"seed": 5, "accuracy": {"before": 0.25, "greedy": 1}},
    ]
    runs = {
        name: load_run(make_run(tmp_path / name, [], summary=s))
        for name, s in zip("ab", summaries, strict=True)
    }
    tables = {table.title: table for table in summary_tables(runs)}
    assert tables["Summary"].rows == [["seed", "1,234", "5"]]
    assert tables["Accuracy"].columns == ["a", "b"]
    assert tables["Accuracy"].rows == [["before", "0.5", "0.25"], ["after", "–", "–"], ["greedy", "–", "1"]]
    assert tables["Share by role"].columns == ["share"] and tables["Share by role"].head == "role"
    assert tables["Share by role"].rows == [["operand", "0.25"]]
    assert tables["List"].rows == [["1", "1", "–"], ["2", "–", "yes"]]


def test_values_are_short():
    shown = [show_value(value) for value in (0.123456, 12345.6, 1e-7, 1234, None, True, "x\n")]
    assert shown == ["0.123", "12,346", "1e-07", "1,234", "–", "yes", "x\n"]
    assert [cell.value for cell in shown if isinstance(cell, Number)] == [0.123456, 12345.6, 1e-7, 1234]
    assert show_value(float("nan")) == "nan" and not isinstance(show_value(float("nan")), Number)


def test_settings_are_shown_in_full():
    shown = [show_setting(value) for value in (0.00002, 12345, True, None, "1")]
    assert shown == ["2e-05", "12345", "True", "–", "1"]
    assert [isinstance(cell, Number) for cell in shown] == [True, True, False, False, False]


def test_settings_of_runs_side_by_side(tmp_path, make_run):
    runs = {name: load_run(make_run(tmp_path / name, [], x=name)) for name in "ab"}
    table = settings_table(runs)
    rows = {row[0]: row for row in table.rows}
    assert rows["settings.lora.r"][1:] == ["8", "8"] and not table.differs(rows["settings.lora.r"])
    assert rows["x"][1:] == ["a", "b"] and table.differs(rows["x"])


def test_a_table_is_made_visible_and_keeps_its_numbers():
    table = Table("\u202et", ["c\x00"], [["r\x1b", Number("1", 1.25, 1, 2)]], "h\u2028").visible()
    assert (table.title, table.columns, table.head) == ("⟨U+202E⟩t", ["c⟨U+0000⟩"], "h⟨U+2028⟩")
    assert table.rows == [["r⟨U+001B⟩", "1"]]
    cell = table.rows[0][1]
    assert isinstance(cell, Number) and (cell.value, cell.low, cell.high) == (1.25, 1, 2)
