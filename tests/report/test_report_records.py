from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tokencredit.errors import UsageError
from tokencredit.report import (
    append_metrics,
    append_record,
    drop_after,
    load_run,
    read_records,
    render_run,
    share_by_role,
    write_atomic,
)
from tokencredit.report.records import annotate

TOKENS = ["7", "+", "5", "=", "2", "ans", "2"]


def test_a_run_directory_reads_back_what_was_written(tmp_path, make_record, make_run):
    record = make_record(TOKENS)
    run = load_run(make_run(tmp_path / "run", [record, record | {"row": 1}], [{"step": 1, "reward": 0.5}]))
    assert run.records == [record, record | {"row": 1}]
    assert run.metrics == [{"step": 1, "reward": 0.5}]
    assert run.info["settings"]["lora"] == {"r": 8}
    assert run.credit == "oar-g"


def test_metrics_and_records_may_be_missing(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    run = load_run(tmp_path)
    assert (run.metrics, run.records, run.credit) == ([], [], tmp_path.name)


def test_not_a_number_is_written_as_null(tmp_path):
    append_metrics(tmp_path / "m.jsonl", {"step": 1, "loss": float("nan"), "kl": [float("inf"), 1.5], "n": 3})
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {
        "step": 1,
        "loss": None,
        "kl": [None, 1.5],
        "n": 3,
    }


def test_tensors_are_written_as_plain_numbers(tmp_path):
    torch = pytest.importorskip("torch")
    append_record(
        tmp_path / "r.jsonl", {"weights": torch.tensor([0.5, float("nan")]), "reward": torch.tensor(1.0)}
    )
    assert json.loads((tmp_path / "r.jsonl").read_text()) == {"weights": [0.5, None], "reward": 1.0}


def test_not_a_number_from_other_writers_is_read_as_null(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n')
    assert load_run(tmp_path).metrics == [{"step": 1, "loss": None}]


def test_a_last_line_cut_off_is_ignored(tmp_path, make_record, make_run):
    run = make_run(tmp_path / "run", [make_record(TOKENS)] * 2)
    path = run / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert len(load_run(run).records) == 1


def test_a_writer_that_resumes_drops_what_was_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    append_metrics(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_writer_keeps_a_whole_last_line_without_line_feed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}')
    append_metrics(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_any_other_broken_line_is_named(tmp_path, make_record, make_run):
    run = make_run(tmp_path / "run", [make_record(TOKENS)])
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(UsageError, match=r"metrics\.jsonl, line 2: not JSON"):
        load_run(run)


def test_a_line_that_is_no_object_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(UsageError, match=r"line 1: expected a JSON object, found list"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"weights": [1.0]}, "'weights' has 1 entries for 7 tokens"),
        ({"importance": ["x"] * 7}, "'importance' is not a list of numbers"),
        ({"tokens": [1]}, "'tokens' is not a list of strings"),
        ({"prompt": None}, "'prompt' is not a string"),
        ({"step": "one"}, "'step' is not a whole number"),
        ({"reward": "good"}, "'reward' is neither a number nor null"),
        ({"answer": [5, 9]}, "'answer' is not a pair"),
        ({"reasoning": None}, "'reasoning' is not a pair"),
        ({"roles": ["a"] * 6}, "'roles' has 6 entries for 7 tokens"),
        ({"roles": [None] * 7}, "'roles' is not a list of strings"),
        ({"right": ["no"] * 7}, "'right' is not a list of truth values"),
    ],
)
def test_a_record_in_another_form_is_named(tmp_path, make_record, make_run, changes, problem):
    run = make_run(
        tmp_path / "run", [make_record(TOKENS), make_record(TOKENS) | changes, make_record(TOKENS)]
    )
    with pytest.raises(UsageError, match=r"records\.jsonl, line 2: ") as caught:
        load_run(run)
    assert problem in str(caught.value)


def test_a_records_file_is_read_by_itself(tmp_path, make_record, make_run):
    record = make_record(TOKENS, roles=["a"] * 7, on_path=[True] * 7, right=[None] * 7)
    run = make_run(tmp_path / "run", [record])
    assert read_records(run / "records.jsonl") == [record]
    assert read_records(run / "missing.jsonl") == []


def test_a_record_without_a_field_is_named(tmp_path, make_record, make_run):
    record = make_record(TOKENS)
    del record["rule"]
    with pytest.raises(UsageError, match=r"line 1: a record without 'rule'"):
        load_run(make_run(tmp_path / "run", [record]))


def test_a_directory_without_run_json_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"is not a run directory: it has no run\.json"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json is not valid JSON"):
        load_run(tmp_path)


def test_a_task_adds_what_it_knows_of_each_token(tmp_path, make_record, make_run, monkeypatch):
    def truth_of(prompt, tokens):
        assert prompt == "S1 7 + 5 ; ? S1"
        return [
            SimpleNamespace(role="digit" if t.isdigit() else "word", on_path=t == "2", right=None)
            for t in tokens
        ]

    fake = ModuleType("tokencredit.tasks")
    fake.get_task = {"fake": SimpleNamespace(annotate=truth_of)}.__getitem__
    monkeypatch.setitem(sys.modules, "tokencredit.tasks", fake)
    [record] = load_run(make_run(tmp_path / "run", [make_record(TOKENS)], task="fake")).records
    assert record["roles"] == ["digit", "word", "digit", "word", "digit", "word", "digit"]
    assert record["on_path"] == [False] * 4 + [True, False, True]
    assert record["right"] == [None] * 7
    assert annotate([record], "fake") == [record]  # what is there already is replaced


def test_a_prompt_that_is_no_problem_of_the_task_has_no_truth(tmp_path, make_record, make_run):
    """A tokenizer that adds a sign of its own: the run still reads back, and its other records keep their roles."""
    record = make_record(TOKENS)
    strange = record | {"prompt": "<s> " + record["prompt"]}
    run = load_run(make_run(tmp_path / "run", [record, strange], task="query"))
    assert run.records[0]["roles"][-1] == "answer"
    assert run.records[1] == strange
    assert share_by_role(run.records)
    assert "<html" in render_run([run], tmp_path / "report.html").read_text()


def test_share_by_role_by_hand():
    rows = [
        # total 4: a has 1/4, b 3/4
        {"importance": [1.0, 3.0, None], "weights": [0.5, 1.5, 1.0], "roles": ["a", "b", "c"]},
        # total 4: a has all
        {"importance": [2.0, 2.0, None], "weights": [1.0, 1.2, 1.0], "roles": ["a", "a", "b"]},
        # skipped: counts nowhere
        {"importance": [None] * 3, "weights": [1.0] * 3, "roles": ["b", "b", "b"]},
        # without roles: counts nowhere
        {"importance": [5.0], "weights": [1.0]},
    ]
    shares = share_by_role(rows)
    assert list(shares) == ["a", "b", "c"]
    # Weights: a 0.5 + 1.0 + 1.2 = 2.7, b 1.5 + 1.0 = 2.5, c 1.0, in all 6.2.
    names = ("token_share", "importance_share", "credit_share", "mean_weight", "tokens")
    by_hand = {
        "a": (3 / 6, 0.625, 2.7 / 6.2, 0.9, 3),
        "b": (2 / 6, 0.375, 2.5 / 6.2, 1.25, 2),
        "c": (1 / 6, 0.0, 1.0 / 6.2, 1.0, 1),
    }
    for role, values in by_hand.items():
        assert shares[role] == pytest.approx(dict(zip(names, values, strict=True)))


def test_share_by_role_without_importance_still_has_weights():
    rows = [{"importance": [None, None], "weights": [1.0, 3.0], "roles": ["a", "b"]}]
    expected = {
        "token_share": 0.5,
        "importance_share": None,
        "credit_share": 0.75,
        "mean_weight": 3.0,
        "tokens": 1,
    }
    assert share_by_role(rows)["b"] == expected
    assert share_by_role([]) == {}


def test_drop_after_keeps_the_steps_up_to_a_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        append_metrics(path, {"step": step})
    drop_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    drop_after(tmp_path / "missing.jsonl", 2)
    assert not (tmp_path / "missing.jsonl").exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_atomic(path, "old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UsageError, match=r"cannot write .*report\.html: No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_atomic(tmp_path / "file" / "report.html", "text")
    assert write_atomic(tmp_path / "new" / "folder" / "a.txt", "é").read_bytes() == "é".encode()
