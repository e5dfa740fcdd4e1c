"""Models as users name them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from cli_helpers import drop_pad, edit_json

from tokencredit.cli.models import load_model
from tokencredit.errors import UsageError


def test_names_of_built_in_policies():
    model, tokenizer = load_model("serial")
    assert model.config.vocab_size == len(tokenizer)


def test_folder_with_a_tokenizer_without_pad(model: Path):
    drop_pad(model)
    _, tokenizer = load_model(str(model))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id is not None


def test_tokenizer_without_eos(model: Path):
    edit_json(model / "tokenizer_config.json", eos_token=None)
    with pytest.raises(UsageError, match="no end-of-sequence token"):
        load_model(str(model))


def test_what_is_not_there(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name, message in {
        str(tmp_path / "none"): "no model folder",
        "./none": "no model folder",
        str(tmp_path / "empty"): r"has no config\.json",
        str(tmp_path / "notes.txt"): "is a file; a model is a folder",
        str(tmp_path / "none.gguf"): "no model file",
        "nobody/no-such-model": "cannot find the model 'nobody/no-such-model'",
    }.items():
        with pytest.raises(UsageError, match=message):
            load_model(name)


def test_broken_weights_and_configs(model: Path):
    (model / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(UsageError, match="cannot load the model"):
        load_model(str(model))
    (model / "config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot load the model"):
        load_model(str(model))


def test_multimodal_models_are_refused_by_name(model: Path):
    config = {"model_type": "llava", "text_config": json.loads((model / "config.json").read_text())}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"\(llava\) is multimodal"):
        load_model(str(model))


def test_gguf_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "model.gguf").write_bytes(b"")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest)
    )
    with pytest.raises(UsageError, match=r"pip install 'tokencredit\[gguf\]'"):
        load_model(str(tmp_path / "model.gguf"))
