"""What the tests of the command line share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = ("--per_device_train_batch_size", 16, "--num_generations", 4)
"""Flags of a training run of a second or two, large enough for advantages; the steps are to be added."""


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def announce_answers(model: Path) -> None:
    """Let the folder's policy write "answer:" for "ans", which any data set's reward understands."""
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["answer:"] = vocabulary.pop("ans")
    path.write_text(json.dumps(content))


def drop_pad(model: Path) -> None:
    """Leave the folder's tokenizer without a pad token."""
    edit_json(model / "tokenizer_config.json", pad_token=None)
    edit_json(model / "tokenizer.json", padding=None)
