"""The run directory: what is removed with a run, and which run a checkpoint belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import SMALL

from tokencredit.cli.run_directory import check_directory, clear_run, write_info
from tokencredit.errors import UsageError

OWN = ("notes.txt", "data.json", "completions/mine.txt", "checkpoint-best/weights")


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def put(directory: Path, *files: str) -> None:
    for name in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("mine")


@pytest.mark.parametrize("adapter", [False, True])
def test_all_that_a_real_run_leaves_is_removed(cli, rows, model, adapter):
    if adapter:
        pytest.importorskip("peft")
    run = Path("run")
    given = ("--dataset", rows, "--model_name_or_path", model, "--max_completion_length", 40)
    lora = ("--use_peft", "--lora_target_modules", "q_proj", "v_proj") if adapter else ()
    flags = (*given, *lora, *SMALL, "--max_steps", 1, "--log_completions", "true", "--output_dir", run)
    assert cli("train", *flags).code == 0
    weights = "adapter_model.safetensors" if adapter else "model.safetensors"
    assert {weights, "README.md", "training_args.bin", "tokenizer.json"} <= names(run)
    assert (run / "completions").is_dir()
    put(run, *OWN)
    clear_run(run)
    assert names(run) == set(OWN)


def test_shards_rarer_files_of_tokenizers_and_what_a_kill_leaves(tmp_path):
    put(tmp_path, "run.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json")
    put(tmp_path, ".records.jsonl.71.tmp", ".model/model.safetensors", "checkpoint-3/optimizer.pt")
    put(tmp_path, "chat_template.jinja", "additional_chat_templates/tool.jinja", "vocab.json", "merges.txt")
    clear_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_readme_of_ones_own_stays(tmp_path):
    put(tmp_path, "run.json", "README.md")
    clear_run(tmp_path)
    assert names(tmp_path) == {"README.md"}


def test_a_folder_without_a_run_keeps_its_model(tmp_path):
    files = ("config.json", "model.safetensors", "README.md", "tokenizer.json")
    put(tmp_path, *files)
    clear_run(tmp_path)
    assert names(tmp_path) == set(files)


def info(**training: Any) -> dict[str, Any]:
    settings = {"learning_rate": 1e-5, "optim": "adamw", "credit_q": 0.25, "credit_outcome": None}
    identity = {"credit": "oar-g", "task": "query", "dataset": None, "model": "query", "seed": 1}
    return {**identity, "settings": {"training": {**settings, "max_steps": 2, **training}}}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a checkpoint."""
    put(tmp_path, "checkpoint-2/trainer_state.json", "checkpoint-2/rng_state.pth")
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(json.dumps({"global_step": 2}))
    write_info(tmp_path, info())
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1e-4}, "its learning_rate was 1e-05, but is 0.0001 now"),
        (
            {"credit_q": 0.5, "optim": "sgd"},
            "its optim was adamw, but is sgd now; set it as it was or give an",
        ),
        ({"credit_outcome": "last"}, "its credit_outcome was not set, but is last now"),
    ],
)
def test_settings_that_a_resumed_run_must_keep(run, changes, message):
    with pytest.raises(UsageError, match=message):
        check_directory(run, resume=True, overwrite=False, identity=info(**changes))


def test_settings_that_a_resumed_run_may_change(run):
    free = {
        "max_steps": 9,
        "logging_steps": 5,
        "save_steps": 3,
        "credit_records": 0,
        "credit_token_budget": 9,
    }
    checkpoint = check_directory(run, resume=True, overwrite=False, identity=info(**free))
    assert checkpoint == run / "checkpoint-2"


def test_an_earlier_run_that_does_not_tell_its_settings(run):
    write_info(run, {"credit": "oar-g"})
    assert check_directory(run, resume=True, overwrite=False, identity=info(optim="sgd")) is not None
