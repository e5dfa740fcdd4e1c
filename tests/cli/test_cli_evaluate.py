"""`tokencredit evaluate`, from flags to tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import announce_answers

from fake_server import serving
from tokencredit.cli import evaluate
from tokencredit.tasks import HELD_OUT, get_task

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="needs lm-evaluation-harness, the extra eval"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder in which the file of gsm8k holds twelve problems of `query`, that of math500 four."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count, seed in (("gsm8k_test", 12, HELD_OUT), ("math500_test", 4, HELD_OUT + 1)):
        rows = get_task("query").problems(count, seed)
        lines = [
            json.dumps({"id": f"q{number}", "problem": row["prompt"], "answer": row["answer"]})
            for number, row in enumerate(rows)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def flags(model: Path, data: Path) -> list[Any]:
    """Flags of an evaluation of a second or two; the policy announces its answers so that they can be read."""
    announce_answers(model)
    return ["--model", model, "--data-dir", data, "--prompt-template", "{problem}", "--batch-size", 5]


@pytest.fixture
def server():
    with serving() as fake:
        yield fake


def numbers(folder: str) -> dict[str, Any]:
    return json.loads(Path(folder, "evaluation.json").read_text())


def lines(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "samples.jsonl").read_text().splitlines()]


@needs_harness
def test_greedy(cli, flags):
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k,math500", "--out", "out")
    assert outcome.code == 0
    found = numbers("out")
    assert {task: each["problems"] for task, each in found["results"].items()} == {"gsm8k": 12, "math500": 4}
    kept = lines("out")
    for task, each in found["results"].items():
        right = [sample["verdict"] == "right" for sample in kept if sample["task"] == task]
        assert each["metrics"]["pass@1"]["value"] == pytest.approx(sum(right) / len(right))
        assert each["metrics"]["no-answer"]["value"] == 0 and each["left_out"] == 0
    assert {sample["finish"] for sample in kept} == {"stop"}
    assert "pass@1" in outcome.out and "95% interval" in outcome.out and "maj" not in outcome.out
    assert found["settings"]["temperature"] == 0 and found["versions"]["lm_eval"]


@needs_harness
def test_sampled_and_gone_on_with(cli, flags):
    """A run that was killed ends with the samples and numbers of one that was not."""
    settings = [*flags, "--tasks", "gsm8k", "--samples", 4, "--seed", 3]
    assert cli("evaluate", *settings, "--out", "whole").code == 0
    assert set(numbers("whole")["results"]["gsm8k"]["metrics"]) == {
        *("pass@1", "pass@2", "pass@4", "avg@4", "maj@4", "no-answer", "truncated", "tokens")
    }
    assert numbers("whole")["settings"]["temperature"] == 1
    cli("evaluate", *settings, "--out", "killed")
    whole, path = Path("whole/samples.jsonl").read_bytes(), Path("killed/samples.jsonl")
    path.write_bytes(whole[: len(whole) // 2])
    assert cli("evaluate", *settings, "--out", "killed").code == 0
    assert path.read_bytes() == whole
    assert numbers("killed")["results"] == numbers("whole")["results"]
    assert cli("evaluate", *settings, "--seed", 4, "--out", "other").code == 0
    assert [s["completion"] for s in lines("other")] != [s["completion"] for s in lines("whole")]


@needs_harness
def test_an_interruption_says_that_it_can_go_on(cli, flags, monkeypatch):
    from tokencredit.evaluation.harness import Backend

    generate, calls = Backend.generate, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(Backend, "generate", interrupted)
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k", "--out", "out")
    assert outcome.code == 130 and "the same command goes on from there" in outcome.err
    assert len(lines("out")) == 5
    assert cli("evaluate", *flags, "--tasks", "gsm8k", "--out", "out").code == 0
    assert len(lines("out")) == 12 and len(calls) == 2 + 2


@needs_harness
def test_a_server(cli, data, server):
    outcome = cli(
        *("evaluate", "--model", "m", "--tasks", "math500", "--data-dir", data, "--out", "out"),
        *("--backend", "local-chat-completions", "--samples", 2),
        *("--backend-args", f"base_url={server.url}/chat/completions,num_concurrent=4,auth_token=secret"),
    )
    assert outcome.code == 0
    assert len(server.asked) == 8 and {payload["temperature"] for payload in server.asked} == {1.0}
    assert len({payload["seed"] for payload in server.asked}) == 2, "one seed for each sample number"
    assert "secret" not in Path("out/evaluation.json").read_text()
    assert numbers("out")["results"]["math500"]["metrics"]["tokens"]["value"] == 5
    assert "Requesting API" not in outcome.out


@needs_harness
def test_other_settings_are_refused(cli, flags, model):
    settings = [*flags, "--tasks", "gsm8k", "--limit", 3, "--out", "out"]
    assert cli("evaluate", *settings).code == 0
    before = Path("out/samples.jsonl").read_bytes()
    outcome = cli("evaluate", *settings, "--temperature", 0.5)
    assert outcome.code == 2 and "whose temperature is 0.0, not 0.5" in outcome.error
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the model was trained on, in place
    weights.write_bytes(content)
    outcome = cli("evaluate", *settings)
    assert outcome.code == 2 and "whose weights is" in outcome.error
    assert Path("out/samples.jsonl").read_bytes() == before
    assert cli("evaluate", *settings, "--temperature", 0.5, "--overwrite").code == 0


@needs_harness
def test_against(cli, flags):
    settings = [*flags, "--tasks", "gsm8k"]
    cli("evaluate", *settings, "--out", "first")
    outcome = cli("evaluate", *settings, "--samples", 2, "--out", "second", "--against", "first")
    assert outcome.code == 0
    found = numbers("second")["differences"]["gsm8k"]
    first = numbers("first")["results"]["gsm8k"]["metrics"]["pass@1"]["value"]
    second = numbers("second")["results"]["gsm8k"]["metrics"]["pass@1"]["value"]
    assert found["value"] == pytest.approx(second - first)
    covers = found["low"] <= 0 <= found["high"]
    assert ("no difference shown" in outcome.out) or not covers
    assert f"gsm8k: {found['words']}" in outcome.out

    same = cli("evaluate", *settings, "--out", "first", "--against", "first")
    assert "gsm8k: no difference shown (0 problems better, 0 worse, of 12)" in same.out


@needs_harness
def test_against_what_cannot_be_compared(cli, flags):
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k", "--out", "out", "--against", "nowhere")
    assert outcome.code == 2 and "nowhere holds no evaluation" in outcome.error
    assert not Path("out").exists()
    cli("evaluate", *flags, "--tasks", "math500", "--out", "other")
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k", "--out", "out", "--against", "other")
    assert outcome.code == 2 and "has other tasks: math500, not gsm8k" in outcome.error


@needs_harness
def test_rows_that_cannot_be_judged_are_told(cli, flags, data):
    path = data / "gsm8k_test.jsonl"
    broken = json.dumps({"id": "x", "problem": "S1 1 + 1 ; ? S1", "answer": "\\frac{1}{"})
    path.write_text(path.read_text() + broken + "\n")
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k", "--out", "out")
    assert "gsm8k: left out 1 rows whose gold cannot be judged" in outcome.err and "row 13" in outcome.err
    assert numbers("out")["results"]["gsm8k"]["left_out"] == 1


@needs_harness
def test_truncation_and_room(cli, flags):
    assert cli("evaluate", *flags, "--tasks", "gsm8k", "--max-new-tokens", 5, "--out", "out").code == 0
    metrics = numbers("out")["results"]["gsm8k"]["metrics"]
    assert metrics["truncated"]["value"] == 1 and metrics["tokens"]["value"] == 5
    assert metrics["no-answer"]["value"] == 1
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k", "--max-new-tokens", 5000, "--out", "more")
    assert outcome.code == 2 and "not for --max_new_tokens 5000" in outcome.error


@needs_harness
def test_no_chat_template(cli, flags):
    outcome = cli("evaluate", *flags, "--tasks", "gsm8k", "--chat")
    assert outcome.code == 2 and "no chat template" in outcome.error


@needs_harness
def test_a_model_that_is_not_there(cli, data):
    outcome = cli("evaluate", "--model", "./nowhere", "--tasks", "gsm8k", "--data-dir", data)
    assert outcome.code == 2 and "no model folder './nowhere'" in outcome.error


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--tasks", "gsm9k"], "no evaluation task 'gsm9k'"),
        (["--tasks", ","], "--tasks names no task"),
        (["--samples", 2, "--k", "1,4"], "--k 4: pass@k needs 1 <= k <= samples, and --samples is 2"),
        (["--k", "0"], "--k 0"),
        (["--k", "one"], "give numbers with commas between them"),
        (["--samples", 2, "--temperature", 0], "at 0 all samples are the same"),
        (["--samples", 0], "--samples must be at least 1, not 0"),
        (["--limit", 0], "--limit must be at least 1"),
        (["--temperature", "nan"], "--temperature must be 0 or more"),
        (["--seed", -1], "--seed must be 0 or more, not -1"),
        (["--top-p", 0], "--top_p must be above 0"),
        (["--prompt-template", "no problem"], "has no {problem} in it"),
        (["--backend", "vllm", "--dtype", "float16"], "others take them in --backend_args"),
        (["--backend-args", "url"], "give NAME=VALUE pairs"),
        (["--backend-args", "trust_remote_code=True"], "code that comes with a model is not run here"),
    ],
)
def test_bad_flags(cli, wrong, message):
    outcome = cli(
        "evaluate", "--model", "query", *([] if "--tasks" in wrong else ["--tasks", "gsm8k"]), *wrong
    )
    assert outcome.code == 2 and message in outcome.error
    assert not Path("runs").exists()


def test_without_the_harness(cli, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lm_eval" else found(name))
    outcome = cli("evaluate", "--model", "query", "--tasks", "gsm8k")
    assert outcome.code == 2
    assert outcome.error.endswith("evaluate needs lm-evaluation-harness: pip install 'tokencredit[eval]'")


def test_ks_are_powers_of_two_and_all():
    assert evaluate._ks(None, 1) == [1]
    assert evaluate._ks(None, 6) == [1, 2, 4, 6]
    assert evaluate._ks(None, 8) == [1, 2, 4, 8]
    assert evaluate._ks("8,1", 8) == [1, 8]


def test_settings_of_a_back_end():
    text = "base_url=http://h:1/v1?a=b, num_concurrent=8,flag=True,name=x"
    expected = {"base_url": "http://h:1/v1?a=b", "num_concurrent": 8, "flag": True, "name": "x"}
    assert evaluate._pairs(text) == expected
