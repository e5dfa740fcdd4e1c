"""What the trainer tells strategies that compare the completions of a prompt."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from test_trl import outputs_of, prompts, train
from tokencredit import UsageError
from tokencredit.trainer_checks import say_split_groups


def test_groups_steps_and_right_answers(tmp_path, monkeypatch):
    seen = outputs_of(monkeypatch)
    run = train(tmp_path, steps=1, credit="early-answer", learning_rate=0.0)
    output = {**seen[0], "advantages": torch.ones(8)}
    inputs = [{"answer": number} for number in (3, 3, 3, 3, 12, 12, 12, 12)]  # a column of numbers will do
    rollouts, _ = run._ground(output, inputs)
    assert rollouts.groups.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    words = run._tokenizer.convert_ids_to_tokens
    assert words(rollouts.gold_ids[:, 0].tolist())[:4] == ["3"] * 4
    assert words(rollouts.ask_ids[5].tolist()) == ["ans"]
    assert torch.equal(rollouts.steps >= 0, rollouts.reasoning_mask)
    other, _ = train(tmp_path / "b", steps=1, credit="position", learning_rate=0.0)._ground(output, inputs)
    assert other.steps is None and other.gold_ids is None


def test_right_answers_must_be_there(tmp_path):
    with pytest.raises(UsageError, match="no column 'answer'"):
        train(tmp_path, credit="early-answer", dataset=prompts().remove_columns("answer"))
    train(tmp_path, credit="sibling", steps=1, dataset=prompts().remove_columns("answer"))
    holes = prompts().remove_columns("answer").add_column("answer", [None] * 8)
    with pytest.raises(UsageError, match="no column 'answer'"):
        train(tmp_path, credit="early-answer", steps=1, dataset=holes)


def test_groups_over_ranks_are_said(caplog):
    args = SimpleNamespace(
        credit="sibling", per_device_train_batch_size=4, steps_per_generation=1, num_generations=8
    )
    with caplog.at_level(logging.WARNING):
        say_split_groups(args)
        assert "credit=sibling compares the completions of a prompt on each rank by itself" in caplog.text
        caplog.clear()
        args.steps_per_generation = 2
        say_split_groups(args)
        assert not caplog.text


def test_the_size_of_a_bonus_is_logged(tmp_path):
    """`bias` adds 0.5 everywhere; strategies without a bonus have no such metric."""
    assert train(tmp_path / "a", steps=1, credit="bias").state.log_history[0][
        "credit/bonus"
    ] == pytest.approx(0.5)
    assert "credit/bonus" not in train(tmp_path / "b", steps=1, credit="position").state.log_history[0]
