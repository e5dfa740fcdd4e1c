"""vLLM's settings, which are TRL's, on their way through `train` and `plan`. vLLM itself is not needed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
from cli_helpers import SMALL
from trl import GRPOConfig

from tokencredit.cli.arguments import parse_arguments

VALUES = {
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_model_impl": "transformers",
    "vllm_enable_sleep_mode": True,
    "vllm_structured_outputs_regex": "[0-9]+",
    "vllm_server_base_url": "http://localhost:8001",
    "vllm_server_host": "127.0.0.1",
    "vllm_server_port": 8002,
    "vllm_server_timeout": 12.5,
    "vllm_group_port": 51217,
    "vllm_gpu_memory_utilization": 0.45,
    "vllm_max_model_length": 4096,
    "vllm_tensor_parallel_size": 2,
    "vllm_importance_sampling_correction": False,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.5,
    "vllm_importance_sampling_clip_min": 0.25,
}


def test_every_setting_is_known():
    fields = {field.name: field.default for field in dataclasses.fields(GRPOConfig) if "vllm" in field.name}
    assert set(VALUES) <= set(fields)
    assert all(value != fields[name] for name, value in VALUES.items())
    parsed = parse_arguments(["--task", "query"]).training
    assert {name: getattr(parsed, name) for name in fields} == fields


@pytest.mark.parametrize("spelled", ["flags", "file"])
def test_they_reach_the_trainers_configuration(tmp_path, spelled):
    flags = [
        text
        for name, value in VALUES.items()
        for text in (f"--{name}", str(value).lower() if value is True or value is False else str(value))
    ]
    if spelled == "file":
        (tmp_path / "run.yaml").write_text(
            "".join(f"{name}: {json.dumps(value)}\n" for name, value in VALUES.items())
        )
        flags = ["--config", str(tmp_path / "run.yaml")]
    parsed = parse_arguments(["--task", "query", *flags]).training
    assert {name: getattr(parsed, name) for name in VALUES} == VALUES


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="needs a machine without vLLM")
def test_training_without_it_ends_in_a_line(cli):
    outcome = cli("train", "--task", "query", "--use_vllm", "--max_steps", 1, *SMALL, "--output_dir", "run")
    assert outcome.code == 2
    assert "vLLM" in outcome.error
    assert not Path("run").exists()


def test_a_plan_counts_it(cli):
    """Its share of the memory where it runs beside the policy, and a pass for the correction."""
    numbers = {}
    for name, flags in {
        "transformers": (),
        "beside": ("--use_vllm", "--vllm_gpu_memory_utilization", 0.25),
        "elsewhere": ("--use_vllm", "--vllm_mode", "server"),
        "uncorrected": ("--use_vllm", "--vllm_importance_sampling_correction", "false"),
    }.items():
        outcome = cli("plan", "--task", "query", "--memory", 8, *flags, "--json", "plan.json")
        assert outcome.code == 0, outcome.err
        numbers[name] = json.loads(Path("plan.json").read_text())
    assert {name: each["held"]["sampler"] for name, each in numbers.items()} == {
        "transformers": 0,
        "beside": 2e9,
        "elsewhere": 0,
        "uncorrected": 0.3 * 8e9,
    }
    passes = {name: each["parts"]["log-probabilities"]["work"]["forwards"] for name, each in numbers.items()}
    assert passes["beside"] == passes["elsewhere"] > passes["transformers"] == passes["uncorrected"] == 0
    assert numbers["beside"]["settings"]["vllm_gpu_memory_utilization"] == 0.25
