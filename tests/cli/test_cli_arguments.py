"""Flag over YAML over task preset over TRL's default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokencredit.cli.arguments import parse_arguments
from tokencredit.errors import UsageError
from tokencredit.tasks import get_task

NO_ACCELERATOR = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="needs a machine without accelerator"
)


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_precedence(config):
    """learning_rate is set at every level, max_steps from the file down, num_generations by preset and default."""
    yaml = config("task: query\nlearning_rate: 3e-5\nmax_steps: 7\n")
    training = parse_arguments(["--config", yaml, "--learning_rate", "1e-3"]).training
    preset = get_task("query").preset
    assert training.learning_rate == 1e-3
    assert training.max_steps == 7
    assert training.num_generations == preset["num_generations"]
    assert training.max_completion_length == preset["max_completion_length"]
    assert training.weight_decay == 0.0
    assert parse_arguments(["--task", "query"]).training.learning_rate == preset["learning_rate"]


def test_preset_values_can_be_set_back_to_the_default(config):
    """A value that equals the default of TRL still wins when it is given."""
    assert parse_arguments(["--task", "query", "--logging_steps", "10"]).training.logging_steps == 10
    yaml = config("gradient_checkpointing: true\n")
    assert parse_arguments(["--task", "query", "--config", yaml]).training.gradient_checkpointing is True
    assert parse_arguments(["--task", "query"]).training.gradient_checkpointing is False


@NO_ACCELERATOR
def test_without_accelerator_the_cpu_in_float32():
    data = ["--dataset", "rows.jsonl", "--model_name_or_path", "m"]
    training = parse_arguments(data).training
    assert (training.use_cpu, training.bf16) == (True, False)
    assert parse_arguments([*data, "--bf16", "true"]).training.bf16 is True


def test_credit_options_from_file_and_flags(config):
    yaml = config("credit: oar-p\ncredit_outcome: answer_kl\ncredit-q: 0.5\n")
    training = parse_arguments(["--task", "query", "--config", yaml, "--credit-beta", "2"]).training
    assert (training.credit, training.credit_outcome) == ("oar-p", "answer_kl")
    assert (training.credit_q, training.credit_beta, training.beta) == (0.5, 2.0, 0.0)
    assert training.credit_marker == get_task("query").marker
    assert training.credit_verifier == "task"


def test_names_of_the_output_directory():
    data = ["--model_name_or_path", "m", "--credit", "oar-p"]
    assert parse_arguments(["--task", "serial"]).training.output_dir == "runs/serial-oar-g"
    assert parse_arguments(["--dataset", "d/gsm.jsonl", *data]).training.output_dir == "runs/gsm-oar-p"
    assert (
        parse_arguments(["--dataset_name", "openai/gsm8k", *data]).training.output_dir == "runs/gsm8k-oar-p"
    )


def test_lists_and_aliases_in_the_file(config):
    yaml = config("dataset: rows.jsonl\nsplit: test\nmodel_name_or_path: m\nreward_funcs: my.rewards.f\n")
    run = parse_arguments([f"--config={yaml}"]).run
    assert (run.dataset_name, run.dataset_train_split, run.reward_funcs) == (
        "rows.jsonl",
        "test",
        ["my.rewards.f"],
    )


def test_environment_in_the_file(config, monkeypatch):
    monkeypatch.delenv("TOKENCREDIT_TEST", raising=False)
    parse_arguments(["--task", "query", "--config", config("env:\n  TOKENCREDIT_TEST: 3\n")])
    import os

    assert os.environ.pop("TOKENCREDIT_TEST") == "3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [", "is not valid YAML"),
        ("- task", "must be a mapping"),
        ("taks: query", "unknown setting --taks; did you mean --task"),
        ("no_bf16: true", "unknown setting --no_bf16"),
        ("env: 3", "`env` .* must be a mapping"),
        ("max_steps: soon", "max_steps.* invalid int value: 'soon'"),
    ],
)
def test_bad_files(config, text, message):
    with pytest.raises(UsageError, match=message):
        parse_arguments(["--task", "query", "--config", config(text)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing to train on"),
        (["--task", "query", "--dataset", "x.jsonl"], "not both"),
        (["--task", "nope"], "no built-in task 'nope'; there are query, serial, parallel"),
        (["--task", "query", "--credit", "nope"], "unknown credit strategy 'nope'; use one of oar-p"),
        (["--task", "query", "--credit_q", "3"], r"credit_q must lie in \[0, 1\]"),
        (["--task", "query", "--credti", "oar-p"], "unknown setting --credti; did you mean --credit"),
        (["--task", "query", "--max_steps", "x"], "invalid int value: 'x'"),
        (["--task", "query", "--config"], "expected one argument"),
        (["--task", "query", "--config", "none.yaml"], "no config file none.yaml"),
        (["--task", "query", "--per_device_train_batch_size", "12"], "= 12 completions.* num_generations 8"),
        (["--task", "query", "--generation_batch_size", "100"], "generation_batch_size"),
        (["--task", "query", "--num_generations", "1"], "num_generations must be at least 2"),
        (["--task", "query", "--eval_problems", "-1"], "must not be negative"),
        (["--task", "query", "--resume", "--overwrite"], "not both"),
        (["--task", "query", "--streaming"], "streaming is not supported"),
        (["--dataset", "x.jsonl"], "--dataset needs a model"),
        (
            ["--dataset", "x.jsonl", "--model_name_or_path", "m", "--prompt_template", "hm"],
            "must have {problem}",
        ),
    ],
)
def test_bad_flags(flags, message):
    with pytest.raises(UsageError, match=message):
        parse_arguments(flags)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("temperature", "0", "temperature must be above 0"),
        ("learning_rate", "-1", "learning_rate must be at least 0"),
        ("per_device_train_batch_size", "0", "per_device_train_batch_size must be at least 1"),
        ("gradient_accumulation_steps", "0", "gradient_accumulation_steps must be at least 1"),
        ("num_generations", "0", "num_generations must be at least 2"),
        ("num_generations", "1", "num_generations must be at least 2"),
        ("max_steps", "-5", "max_steps must be at least 1, or -1"),
        ("max_steps", "0", "max_steps must be at least 1, or -1"),
        ("epsilon", "-1", "epsilon must be at least 0"),
        ("save_steps", "0", "save_steps must be above 0"),
    ],
)
def test_values_out_of_range(flag, value, message):
    with pytest.raises(UsageError, match=message):
        parse_arguments(["--task", "query", f"--{flag}", value])
