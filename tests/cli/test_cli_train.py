"""`tokencredit train`: what a run leaves behind, how it stops and goes on, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import SMALL, announce_answers, drop_pad, edit_json

from tokencredit.tasks import get_task

TASK = ("train", "--task", "query", "--eval_problems", 0, *SMALL)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def data(rows: Path, model: Path, *flags: Any) -> tuple[Any, ...]:
    given = ("--dataset", rows, "--model_name_or_path", model, "--max_completion_length", 40)
    return ("train", *given, "--prompt_template", "{problem}", *SMALL, "--max_steps", 2, *flags)


def assert_trained(run: Path) -> None:
    """Rewards told completions apart, some rows were credited, and the model moved."""
    metrics = lines(run / "metrics.jsonl")
    assert any(line["credit/skipped"] < 1 for line in metrics)
    assert any(line["grad_norm"] > 0 for line in metrics)


@pytest.fixture
def model(model: Path) -> Path:
    """The policy in a folder, whose answers the reward of a data set finds."""
    announce_answers(model)
    return model


@pytest.fixture
def reward_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module of reward functions into the working folder."""

    def write(text: str) -> None:
        (tmp_path / "own_rewards.py").write_text(text)
        monkeypatch.delitem(sys.modules, "own_rewards", raising=False)

    return write


def test_a_run_on_a_task(cli):
    outcome = cli("train", "--task", "query", "--eval_problems", 16, *SMALL, "--max_steps", 2)
    run = Path("runs/query-oar-g")
    assert outcome.code == 0
    assert outcome.out == ""
    info = json.loads((run / "run.json").read_text())
    assert (info["command"], info["task"], info["credit"], info["model"]) == (
        "train",
        "query",
        "oar-g",
        "query",
    )
    assert info["settings"]["training"]["max_steps"] == 2
    assert info["settings"]["training"]["learning_rate"] == get_task("query").preset["learning_rate"]
    assert set(info["versions"]) == {"python", "torch", "transformers", "trl", "tokencredit"}
    assert set(info["summary"]["accuracy"]) == {"before", "after"}
    seconds = info["summary"]["seconds_per_step"]
    assert seconds["total"] == pytest.approx(
        sum(seconds[part] for part in ("rollout", "attribution", "training"))
    )
    assert "queried result" in info["summary"]["share_by_role"]
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    assert {"loss", "reward", "credit/skipped", "step_time"} <= set(metrics[0])
    assert {record["step"] for record in lines(run / "records.jsonl")} == {1, 2}
    assert (run / "model.safetensors").is_file()
    assert "<html" in (run / "report.html").read_text()


def test_a_run_on_a_data_set(cli, rows, model):
    assert cli(*data(rows, model, "--credit", "oar-p")).code == 0
    run = Path("runs/rows-oar-p")
    info = json.loads((run / "run.json").read_text())
    assert (info["task"], info["dataset"], info["model"]) == (None, str(rows), str(model))
    assert_trained(run)
    assert any(line["rewards/accuracy_reward/mean"] > 0 for line in lines(run / "metrics.jsonl"))
    credited = [value for record in lines(run / "records.jsonl") for value in record["importance"] if value]
    assert credited


def test_resumed_runs_equal_those_that_went_through(cli):
    """The first run is cut back to its checkpoint, with what it logged later still in its files."""
    flags = (*TASK, "--max_steps", 4, "--save_steps", 2)
    assert cli(*flags, "--output_dir", "whole").code == 0
    assert cli(*flags, "--output_dir", "cut").code == 0
    for path in Path("cut/checkpoint-4").iterdir():
        path.unlink()  # what a kill while saving leaves
    assert cli(*flags, "--output_dir", "cut", "--resume").code == 0
    assert_trained(Path("whole"))
    for name, keys in {
        "metrics.jsonl": ("step", "loss", "reward", "grad_norm", "credit/skipped"),
        "records.jsonl": ("step", "tokens", "importance", "weights"),
    }.items():
        whole, cut = (
            [[line[key] for key in keys] for line in lines(Path(run, name))] for run in ("whole", "cut")
        )
        assert cut == whole


def test_a_signal_stops_after_the_step_and_the_run_goes_on(cli, rows, model, reward_module):
    reward_module(
        "import os, signal\n"
        "def once(completions, trainer_state, **kwargs):\n"
        "    if trainer_state.global_step == 1 and not os.path.exists('sent'):\n"
        "        open('sent', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return [float(len(c)) for c in completions]\n"
    )
    flags = data(rows, model, "--max_steps", 4, "--reward_funcs", "own_rewards.once")
    stopped = cli(*flags, "--output_dir", "run")
    assert stopped.code == 130
    assert "stopping after this step" in stopped.err
    assert json.loads(Path("run/run.json").read_text())["interrupted"] is True
    assert Path("run/report.html").is_file()
    assert [line["step"] for line in lines(Path("run/metrics.jsonl"))] == [1, 2]
    assert cli(*flags, "--output_dir", "run", "--resume").code == 0
    assert [line["step"] for line in lines(Path("run/metrics.jsonl"))] == [1, 2, 3, 4]


def test_a_second_signal_stops_at_once(cli, rows, model, reward_module):
    reward_module(
        "import os, signal\n"
        "def twice(completions, **kwargs):\n"
        "    for _ in range(2):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return [0.0 for _ in completions]\n"
    )
    assert cli(*data(rows, model, "--reward_funcs", "own_rewards.twice", "--output_dir", "run")).code == 130
    assert not list(Path("run").glob("checkpoint-*"))


def test_checkpoints_wait_for_the_end_of_a_generation_batch(cli, caplog):
    """Two iterations over each generation: steps 1 and 3 lie within one."""
    flags = ("--num_iterations", 2, "--max_steps", 4, "--save_steps", 1, "--output_dir", "run")
    assert cli(*TASK, *flags).code == 0
    assert {path.name for path in Path("run").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert (
        caplog.messages.count("save_steps 1 is rounded up to 2: a generation batch is used up every 2 steps")
        == 1
    )


def test_a_run_is_replaced_only_on_request(cli):
    flags = (*TASK, "--max_steps", 1, "--output_dir", "run")
    assert cli(*flags).code == 0
    Path("run/notes.txt").write_text("mine")
    refused = cli(*flags)
    assert refused.code == 2
    assert "run already holds a run: give --resume to continue it, --overwrite" in refused.error
    assert cli(*flags, "--overwrite").code == 0
    assert [line["step"] for line in lines(Path("run/metrics.jsonl"))] == [1]
    assert Path("run/notes.txt").read_text() == "mine"


def test_resuming_what_cannot_be_resumed(cli):
    assert "nothing to resume" in cli(*TASK, "--max_steps", 1, "--output_dir", "none", "--resume").error
    flags = (*TASK, "--max_steps", 1, "--save_steps", 1, "--output_dir", "run")
    assert cli(*flags).code == 0
    outcome = cli(*flags, "--resume", "--credit", "oar-p")
    assert outcome.code == 2
    assert "its credit was oar-g, but is oar-p now" in outcome.error


def test_prompts_are_chat_where_the_tokenizer_has_a_template(cli, rows, model):
    template = "{% for m in messages %}<unk> {{ m['content'] }} {% endfor %}"
    edit_json(model / "tokenizer_config.json", chat_template=template)
    flags = ("--prompt_template", "so {problem}", "--output_dir", "run")
    assert cli(*data(rows, model, *flags)).code == 0
    assert lines(Path("run/records.jsonl"))[0]["prompt"].startswith("<unk> so S1 ")


def test_tokenizer_without_pad_trains(cli, rows, model):
    drop_pad(model)
    assert cli(*data(rows, model, "--output_dir", "run")).code == 0
    assert_trained(Path("run"))


def test_lora(cli, rows, model):
    pytest.importorskip("peft")
    flags = ("--use_peft", "--lora_r", 4, "--lora_target_modules", "q_proj", "v_proj", "--output_dir", "run")
    assert cli(*data(rows, model, *flags)).code == 0
    assert_trained(Path("run"))
    assert Path("run/adapter_model.safetensors").is_file()
    asked = cli("attribute", "--model", "run", "--prompt", "S1 7 + 5 ; ? S1", "--no-chat")
    assert asked.code == 0


def refused(outcome: Any, message: str, directory: str = "run") -> None:
    """One line, exit code 2, and nothing written."""
    assert outcome.code == 2
    assert message in outcome.error
    assert not Path(directory).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"problem": "a", "answer": "1"}\n{"problem"', "line 2: not JSON"),
        ('{"problem": "", "answer": "1"}', "line 1: 'problem' is empty"),
        ('{"problem": "a", "answer": ""}', "line 1: the gold in 'answer' is empty"),
        ('{"problem": "a", "answer": "1", "completions": "x"}', "column 'completions'"),
        ('{"text": "a", "answer": "1"}', "needs one of problem, prompt, question, and has 'text', 'answer'"),
        (r'{"problem": "a", "answer": "\\frac{1}{"}', "--skip_unjudged leaves such rows out"),
        ('{"problem": "a", "answer": "1"}', "has 1 problems, but one generation batch asks 4"),
        ('{"prompt": [{"role": "user", "content": "a"}], "answer": "1"}\n' * 4, "no chat template"),
    ],
)
def test_bad_data(cli, rows, model, content, message):
    rows.write_text(content)
    refused(cli(*data(rows, model, "--output_dir", "run")), message)


def test_bad_models(cli, rows, model):
    refused(
        cli(*data(rows, Path("none/such/model"), "--output_dir", "run")), "no model folder 'none/such/model'"
    )
    edit_json(model / "tokenizer_config.json", eos_token=None)
    refused(cli(*data(rows, model, "--output_dir", "run")), "no end-of-sequence token")


def test_model_without_an_embedding_module(cli, rows, model, monkeypatch):
    from transformers import LlamaForCausalLM

    from tokencredit.cli import models

    load = models.load_model

    def without_embedding(*arguments, **settings):
        loaded = load(*arguments, **settings)
        monkeypatch.setattr(LlamaForCausalLM, "get_input_embeddings", lambda self: None)
        return loaded

    monkeypatch.setattr(models, "load_model", without_embedding)
    refused(cli(*data(rows, model, "--output_dir", "run")), "has no input embedding module")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exactness", "no reward function 'exactness'; use accuracy, format, accuracy_reward,"),
        ("own_rewards.none", "cannot import the reward function 'own_rewards.none'"),
        ("no_such_module.f", "cannot import the reward function 'no_such_module.f'"),
        ("own_rewards.number", "is a int, which cannot be called"),
        ("own_rewards.strict", "strict must accept **kwargs"),
    ],
)
def test_bad_rewards(cli, rows, model, reward_module, name, message):
    reward_module("number = 3\ndef strict(completions):\n    return [0.0 for _ in completions]\n")
    refused(cli(*data(rows, model, "--reward_funcs", name, "--output_dir", "run")), message)


def test_settings_that_the_trainer_refuses(cli, rows, model):
    """TRL finds out in the middle of its constructor, after it has made the directory."""
    flags = ("--reward_weights", 1, 2, "--output_dir", "run")
    refused(cli(*data(rows, model, *flags)), "Number of reward weights (2) must match")


def test_batches_that_do_not_divide(cli, rows, model):
    flags = ("--per_device_train_batch_size", 6, "--output_dir", "run")
    refused(cli(*data(rows, model, *flags)), "not a multiple of num_generations 4")


def test_output_directories_that_cannot_be(cli, rows, model):
    assert "is the folder of the model itself" in cli(*data(rows, model, "--output_dir", model)).error
    Path("run").write_text("x")
    assert "cannot make the output_dir run/in" in cli(*TASK, "--max_steps", 1, "--output_dir", "run/in").error
    assert "output_dir run is a file" in cli(*TASK, "--max_steps", 1, "--output_dir", "run").error
