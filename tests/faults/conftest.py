"""A small model and a few problems, as for the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from cli_helpers import announce_answers
from fault_helpers import STEPS, in_child, left

from tokencredit.tasks import get_task


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """Flags of a training run on six problems, three a generation: an epoch has two generations."""
    folder = tmp_path_factory.mktemp("given")
    model = folder / "model"
    model.mkdir()
    for path in get_task("query").policy_path().iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    announce_answers(model)
    problems = get_task("query").problems(6, seed=0)
    rows = [json.dumps({"problem": row["prompt"], "answer": row["answer"]}) for row in problems]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    data = (
        "--dataset",
        folder / "rows.jsonl",
        "--model_name_or_path",
        model,
        "--prompt_template",
        "{problem}",
    )
    sizes = ("--per_device_train_batch_size", 12, "--num_generations", 4, "--max_completion_length", 40)
    return ("train", *data, *sizes, "--use_cpu", "true", "--credit", "oar-g", "--output_dir", "run")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, given: tuple[Any, ...]) -> dict[str, Any]:
    """What an uninterrupted run of six steps left."""
    folder = tmp_path_factory.mktemp("whole")
    assert in_child(folder, (*given, *STEPS)) == 0
    found = left(folder / "run")
    assert any(line["grad_norm"] > 0 for line in found["metrics"][4:])
    assert len({record["prompt"] for record in found["records"]}) > 3
    return found
