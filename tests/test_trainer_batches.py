"""However the rows of a generation are split, they train alike."""

from __future__ import annotations

import json

import pytest
import torch

from test_trainer_ranks import ROWS, train
from test_trl import LOSSES
from tokencredit.cli import main

SPLITS = [(8, 1), (2, 4), (1, 8)]  # rows a micro-batch, micro-batches
FAST = ["dapo", "grpo"]


def gradients(folder, loss_type: str, rows: int, batches: int, **settings) -> list[torch.Tensor]:
    """Of the one optimizer step that all rows go into."""
    assert rows * batches == ROWS
    split = dict(
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batches,
        steps_per_generation=batches,
        epsilon_high=5.0 if loss_type == "cispo" else None,
    )
    return train(folder, 1, "oar-p", loss_type=loss_type, max_steps=1, **split, **settings)["gradients"]


@pytest.mark.parametrize(
    "loss_type",
    # bnpo divides by the tokens of each micro-batch.
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in LOSSES
        if name != "bnpo"
    ],
)
def test_micro_batches(tmp_path, loss_type):
    whole, *others = (gradients(tmp_path / str(rows), loss_type, rows, batches) for rows, batches in SPLITS)
    assert max(float(gradient.abs().max()) for gradient in whole) > 1e-3
    for found in others:
        for one, other in zip(found, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_one_row_a_micro_batch_may_be_one_group(tmp_path):
    assert gradients(tmp_path, "dapo", 1, 8, num_generations=8)


def test_the_command_accepts_one_row_a_micro_batch(tmp_path):
    sizes = (
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --num_generations 8 --max_steps 1"
    )
    flags = f"--task query --eval_problems 0 {sizes} --output_dir {tmp_path / 'run'}"
    assert main(["train", *flags.split()]) == 0
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["completions/mean_length"] > 0
