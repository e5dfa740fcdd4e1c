"""`tokencredit fidelity`: tables, numbers, a folder for the report, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tokencredit.fidelity.baselines import BASELINES
from tokencredit.report.files import read_lines
from tokencredit.report.records import record_problem

FEW = ("--completions", 4, "--seed", 3)


def numbers(path: str = "a.json") -> dict:
    return json.loads(Path(path).read_text())


def test_tasks_tables_and_numbers(cli):
    flags = ("--task", "query,serial", "--credit", "oar-g,oar-p:m=4", *FEW)
    outcome = cli("fidelity", *flags, "--json", "a.json", "--out", "out")
    assert outcome.code == 0
    for title in ("query, warm: importance and blame", "serial, warm: agreement", "mean weight by role"):
        assert title in outcome.out
    found = numbers()
    assert found == numbers("out/fidelity.json")
    assert [(each["source"], each["policy"]) for each in found["results"]] == [
        ("query", "warm"),
        ("serial", "warm"),
    ]
    names = ["oar-g", "oar-p:m=4", *BASELINES]
    for each in found["results"]:
        assert list(each["strategies"]) == names
        assert (
            each["completions"] == 4
            and each["strategies"]["uniform"]["metrics"]["path_auroc"]["value"] == 0.5
        )
    assert found["settings"]["strategies"]["oar-p:m=4"]["m"] == 4
    assert found["settings"]["seed"] == 3 and found["versions"]["torch"]
    assert found["machine"]["device"] and found["machine"]["threads"] >= 1


def test_the_folder_is_for_machines(cli):
    flags = ("--task", "query", "--credit", "bias", "--no_reference", "--draws", 1, *FEW, "--records", 2)
    assert cli("fidelity", *flags, "--out", "out").code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "fidelity.html",
        "fidelity.json",
        "records.jsonl",
        "values.jsonl",
    ]
    assert "Fidelity on query" in Path("out/fidelity.html").read_text()
    records = [record for _, record in read_lines("out/records.jsonl")]
    assert {(record["row"], record["credit"]) for record in records} == {
        (row, name) for row in range(2) for name in ("bias", *BASELINES)
    }
    for record in records:
        assert record_problem(record) is None
        assert (record["source"], record["policy"]) == ("query", "warm")
        assert len(record["roles"]) == len(record["tokens"])
    values = [value for _, value in read_lines("out/values.jsonl")]
    each = numbers("out/fidelity.json")["results"][0]
    assert len(values) == each["measured"] * 5
    for name in ("bias", "position"):
        own = [value["figures"]["path_auroc"] for value in values if value["credit"] == name]
        assert sum(own) / len(own) == pytest.approx(
            each["strategies"][name]["metrics"]["path_auroc"]["value"]
        )
    assert "exact_spearman" not in each["strategies"]["bias"]["metrics"]


def test_the_seed_decides(cli):
    def metrics(*flags) -> dict:
        cli(
            "fidelity", "--task", "query", "--credit", "oar-g", "--completions", 3, *flags, "--json", "a.json"
        )
        return {name: each["metrics"] for name, each in numbers()["results"][0]["strategies"].items()}

    assert metrics() == metrics()
    assert metrics() != metrics("--seed", 1)


def test_trained_policies_are_measured_on_their_own_task(cli, model):
    """A folder whose run says which, and a checkpoint of it; one that says nothing goes with every task."""
    trained = Path(shutil.copytree(model, "trained"))
    (trained / "run.json").write_text(json.dumps({"task": "query"}))
    shutil.copytree(model, "trained/checkpoint-1")
    policies = f"warm,trained,trained/checkpoint-1,{model}"
    flags = ("--task", "query", "--policy", policies, "--completions", 2, "--no_reference", "--draws", 1)
    assert cli("fidelity", *flags, "--json", "a.json").code == 0
    found = [(each["source"], each["policy"]) for each in numbers()["results"]]
    assert found == [("query", name) for name in policies.split(",")]
    outcome = cli("fidelity", "--task", "serial", "--policy", "trained", *FEW)
    assert outcome.code == 2
    assert "--policy trained was trained on query, which --task does not name" in outcome.error


def test_any_model_and_data(cli, model, rows):
    """Without truth and golds: agreement and causal checks, but no AUROC and no roles."""
    flags = ("--model", model, "--data", rows, "--prompt_template", "{problem}", "--marker", "ans", *FEW)
    outcome = cli("fidelity", *flags, "--credit", "oar-p,span-masking", "--json", "a.json", "--out", "out")
    assert outcome.code == 0
    said = " ".join(outcome.out.split())  # a long path breaks the titles
    assert "agreement with exact oar-p" in said and "against the truth" not in said
    (each,) = numbers()["results"]
    assert (each["source"], each["policy"], each["failed"]) == ("rows.jsonl", str(model), None)
    metrics = {name: found["metrics"] for name, found in each["strategies"].items()}
    assert metrics["oar-p"]["insertion_area"]["value"] < metrics["random"]["insertion_area"]["value"]
    assert "path_auroc" not in metrics["oar-p"] and "by_role" not in each["strategies"]["oar-p"]
    curves, random = (each["strategies"][name]["curves"] for name in ("oar-p", "random"))
    assert curves["deletion"][1]["value"] > random["deletion"][1]["value"]
    assert len(curves["shares"]) == len(curves["deletion"]) == len(curves["insertion"])
    assert curves["deletion"][-1]["value"] == pytest.approx(curves["insertion"][0]["value"])
    assert "roles" not in read_lines("out/records.jsonl")[0][1]


def test_a_short_file_is_said(cli, model, rows):
    flags = ("--model", model, "--data", rows, "--prompt_template", "{problem}", "--marker", "ans")
    outcome = cli("fidelity", *flags, "--completions", 10, "--no_reference", "--draws", 1)
    assert outcome.code == 0
    assert "rows.jsonl has 8 problems, not 10" in outcome.err


def test_names_of_files_are_text(cli, model, rows):
    rows = rows.rename(rows.with_name("[red]\x1b[2J.jsonl"))
    flags = ("--model", model, "--data", rows, "--prompt_template", "{problem}", "--marker", "ans")
    outcome = cli("fidelity", *flags, "--completions", 2, "--no_reference", "--draws", 1)
    assert outcome.code == 0
    assert "[red]⟨U+001B⟩[2J.jsonl" in outcome.out


def test_options_for_one_and_for_all(cli):
    def options(*flags) -> dict:
        cli(
            "fidelity",
            "--task",
            "query",
            "--completions",
            2,
            "--no_reference",
            "--draws",
            1,
            *flags,
            "--json",
            "a.json",
        )
        return numbers()["settings"]["strategies"]

    found = options("--credit", "oar-g:gradient=labels:labels=2,oar-g", "--option", "outcome=answer_kl")
    assert found["oar-g:gradient=labels:labels=2"]["labels"] == 2
    assert found["oar-g"]["gradient"] is None
    assert {each["outcome"] for each in found.values()} == {"answer_kl"}


def test_generations_of_a_problem(cli):
    flags = ("--task", "query", "--completions", 6, "--generations", 3, "--no_reference", "--draws", 1)
    assert cli("fidelity", *flags, "--out", "out").code == 0
    values = [value for _, value in read_lines("out/values.jsonl") if value["credit"] == "uniform"]
    assert [value["problem"] for value in values] == [0, 0, 0, 1, 1, 1]


def interrupt(monkeypatch, after: int) -> None:
    """Ctrl-C once so many batches have had their causal checks."""
    from tokencredit.fidelity import batch

    original, calls = batch.causal_curves, []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) > after:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(batch, "causal_curves", interrupted)


def test_an_interruption_without_a_folder_writes_nothing(cli, monkeypatch):
    interrupt(monkeypatch, after=1)
    outcome = cli("fidelity", "--task", "query", *FEW, "--batch_size", 2, "--json", "a.json")
    assert outcome.code == 130
    assert "nothing is written; with --out what is finished is kept" in outcome.err
    assert list(Path().iterdir()) == []


def test_an_interrupted_measurement_goes_on(cli, monkeypatch):
    """In the second of two tasks; in the end its figures are those of one that was not interrupted."""
    command = ("fidelity", "--task", "query,serial", "--credit", "oar-g", *FEW, "--batch_size", 2)
    assert cli(*command, "--out", "whole").code == 0
    with monkeypatch.context() as patch:
        interrupt(patch, after=3)
        outcome = cli(*command, "--out", "out")
    assert outcome.code == 130
    assert "6 completions are measured and kept in out; the same command goes on" in outcome.err
    assert [path.name for path in Path("out").iterdir()] == ["progress.jsonl"]
    refused = cli(*command, "--out", "out", "--draws", 3)
    assert refused.code == 2 and "whose draws is 2, not 3" in refused.error
    with Path("out/progress.jsonl").open("a") as file:
        file.write('{"subject": 1, "ba')  # what a kill would leave
    with monkeypatch.context() as patch:
        interrupt(patch, after=1)
        assert cli(*command, "--out", "out").code == 0
    for name in ("values.jsonl", "records.jsonl"):
        assert Path("out", name).read_text() == Path("whole", name).read_text()
    first, second = (numbers(f"{folder}/fidelity.json")["results"] for folder in ("out", "whole"))
    for one, other in zip(first, second, strict=True):
        for name, found in one["strategies"].items():
            expected = other["strategies"][name] | {"seconds_per_completion": None}
            assert found | {"seconds_per_completion": None} == expected
    assert not Path("out/progress.jsonl").exists()


def test_an_earlier_measurement_stays_unless_told(cli):
    Path("out").mkdir()
    Path("out/fidelity.json").write_text("{}")
    flags = (
        "fidelity",
        "--task",
        "query",
        "--completions",
        2,
        "--no_reference",
        "--draws",
        1,
        "--out",
        "out",
    )
    assert "holds a measurement" in cli(*flags).error
    assert Path("out/fidelity.json").read_text() == "{}"
    assert cli(*flags, "--overwrite").code == 0
    assert numbers("out/fidelity.json")["results"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "give either --task, or --model and --data"),
        (("--task", "query", "--model", "query"), "give either --task, or --model and --data"),
        (("--model", "query"), "--data is missing"),
        (("--data", "rows.jsonl"), "--model is missing"),
        (("--model", "query", "--data", "x.jsonl", "--policy", "d"), "--policy goes with --task"),
        (("--model", "query", "--data", "none.jsonl"), "no data file none.jsonl"),
        (("--task", "other"), "no built-in task 'other'; there are query"),
        (("--task", "query", "--credit", "oar-x"), "unknown credit strategy 'oar-x'"),
        (("--task", "query", "--credit", ","), "--credit ,: give names"),
        (("--task", "query", "--credit", "oar-p:m"), "--credit m: give NAME=VALUE with one of outcome"),
        (("--task", "query", "--credit", "oar-p:m=x"), "'x' is no int"),
        (("--task", "query", "--option", "q=2"), "q must lie in [0, 1]"),
        (("--task", "query", "--credit", "sibling"), "--credit sibling compares completions of one problem"),
        (("--task", "query", "--credit", "fipo"), "--credit fipo compares the policy with an older one"),
        (
            ("--model", "m", "--data", "x.jsonl", "--credit", "sibling"),
            "which --data does not tell; use --task",
        ),
        (("--task", "query", "--policy", "none/such/folder"), "no model folder"),
        (("--task", "query", "--completions", "0"), "--completions must be at least 1"),
        (("--task", "query", "--completions", "5", "--generations", "2"), "no multiple of --generations"),
        (
            ("--task", "query", "--generations", "2", "--temperature", "0"),
            "--generations needs --temperature",
        ),
        (("--task", "query", "--temperature", "-1"), "--temperature must be 0 or more"),
        (("--task", "query", "--max_new_tokens", "500"), "has room for"),
        (("--task", "query", "--json", "file/a.json"), "cannot write file/a.json"),
        (("--task", "query", "--out", "file"), "--out file is a file"),
        (("--task", "query", "--out", "run"), "--out run holds a training run"),
        (("--task", "query", "--out", "comparison"), "--out comparison holds a comparison"),
        (("--task", "query", "--max_new_tokens", "2"), "none of the 100 completions of warm for query"),
    ],
)
def test_refusals(cli, flags, message):
    Path("file").write_text("")
    Path("run").mkdir()
    Path("run/run.json").write_text("{}")
    Path("comparison").mkdir()
    Path("comparison/plan.json").write_text("{}")
    before = sorted(Path().rglob("*"))
    outcome = cli("fidelity", *flags)
    assert outcome.code == 2
    assert message in outcome.error
    assert sorted(Path().rglob("*")) == before


def test_the_policy_must_speak_the_task(cli, model):
    path = model / "tokenizer.json"
    path.write_text(path.read_text().replace('"S1"', '"T1"'))
    outcome = cli("fidelity", "--task", "query", "--policy", model, *FEW)
    assert outcome.code == 2
    assert "are not the words of the task query" in outcome.error
