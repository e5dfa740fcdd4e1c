"""Rollouts checks what it is given."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models import ragged
from tokencredit import UsageError


def test_masks_become_bool():
    rollouts = ragged()
    again = dataclasses.replace(rollouts, prompt_mask=rollouts.prompt_mask.long())
    assert again.prompt_mask.dtype == torch.bool


def test_select_keeps_keys_and_texts():
    rollouts = dataclasses.replace(ragged(), texts=list("abcdefg"), rewards=torch.arange(7.0))
    some = rollouts.select(torch.tensor([False, True, False, True, False, False, True]))
    assert some.row_keys.tolist() == [1, 3, 6] and some.texts == ["b", "d", "g"]
    assert some.rewards.tolist() == [1.0, 3.0, 6.0]
    assert some.select(torch.tensor([2, 0])).row_keys.tolist() == [6, 1]


def test_readable_rows():
    # Row 3 has no answer, row 4 no reasoning.
    assert ragged().readable.tolist() == [True, True, True, False, False, True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda r: {"answer_mask": r.answer_mask[:, 1:]}, "answer_mask has shape"),
        (lambda r: {"prompt_mask": r.prompt_mask[:1]}, "prompt_mask has shape"),
        (lambda r: {"prompt_ids": r.prompt_ids[0]}, r"\(B, P\)"),
        (lambda r: {"reasoning_mask": ~r.completion_mask}, "reasoning_mask marks tokens"),
        (lambda r: {"reasoning_mask": r.answer_mask}, "in or after the answer"),
        (lambda r: {"probe_ids": torch.zeros(7, 2)}, "go together"),
        (lambda r: {"probe_ids": torch.zeros(7, 2), "probe_mask": torch.zeros(7, 1)}, r"both be \(7, L\)"),
        (lambda r: {"advantages": torch.zeros(3)}, "advantages must have one entry a row"),
        (lambda r: {"model_inputs": {"pixel_values": torch.zeros(1)}}, "multimodal inputs are not supported"),
    ],
)
def test_bad_input_is_named(changes, message):
    rollouts = ragged()
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(rollouts, **changes(rollouts))
