"""A run that is killed at the worst moments goes on as if it had not been."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_helpers import STEPS, half, in_child, kill, last_line, left, lines
from test_signals import on_rank
from torch.multiprocessing import ProcessExitedException

from processes import run_ranks
from tokencredit.checkpoints import last_checkpoint


def at_call(owner: Any, name: str, number: int, then: Callable[..., Any] | None = None) -> None:
    """Kills this process at the so-many-th call; `then` gets the function and its arguments before."""
    original, calls = getattr(owner, name), [0]

    def called(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            if then is not None:
                then(original, *args, **kwargs)
            kill()
        return original(*args, **kwargs)

    setattr(owner, name, called)


def in_generation() -> None:
    from trl import GRPOTrainer

    at_call(GRPOTrainer, "_generate_single_turn", 5)


def in_attribution() -> None:
    from tokencredit.generation import Generation

    at_call(Generation, "assign", 6)


def after_an_optimizer_step() -> None:
    import torch

    at_call(torch.optim.AdamW, "step", 5, lambda step, *args, **kwargs: step(*args, **kwargs))


def in_a_line(name: str, step: int) -> None:
    """Half a line of the step is written."""
    from tokencredit.report import files

    write = files._write_all

    def cut_off(file: Any, data: bytes) -> None:
        if Path(file.name).name == name and f'"step": {step},'.encode() in data:
            file.write(data[: len(data) // 2])
            kill()
        write(file, data)

    files._write_all = cut_off


def saving(name: str) -> None:
    """A file of the second checkpoint."""
    import torch

    save, seen = torch.save, [0]

    def saved(value: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        save(value, path, *args, **kwargs)
        if Path(path).name == name:
            seen[0] += 1
            if seen[0] == 2:
                half(Path(path))
                kill()

    torch.save = saved


def saving_the_weights(number: int) -> None:
    from transformers import modeling_utils

    def half_a_file(save: Any, tensors: Any, path: Any, **kwargs: Any) -> None:
        save(tensors, path, **kwargs)
        half(Path(path))

    at_call(modeling_utils, "safe_save_file", number, half_a_file)


def saving_the_state() -> None:
    from transformers import TrainerState

    def half_a_state(save: Any, state: Any, path: str) -> None:
        save(state, path)
        half(Path(path))

    at_call(TrainerState, "save_to_json", 2, half_a_state)


def moving_the_model() -> None:
    at_call(os, "replace", 4)  # after run.json and two of the model's files


FAST = [
    (in_generation, (), 4, ""),
    (saving, ("optimizer.pt",), 2, "checkpoint-4 was not written to its end"),
]
SLOW = [
    (in_attribution, (), 4, ""),
    (after_an_optimizer_step, (), 4, ""),
    (in_a_line, ("metrics.jsonl", 4), 2, ""),
    (in_a_line, ("records.jsonl", 5), 4, ""),
    (saving_the_weights, (2,), 2, "checkpoint-4 was not written to its end"),
    (saving_the_state, (), 2, "checkpoint-4 was not written to its end"),
    (saving_the_weights, (4,), 6, ""),
    (moving_the_model, (), 6, ""),
]
CASES = [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("fault", "arguments", "step", "said"), CASES)
def test_it_goes_on_with_the_same_numbers(whole, given, tmp_path, fault, arguments, step, said):
    """From the last whole checkpoint, two steps apart, to the same weights bit by bit."""
    assert in_child(tmp_path, (*given, *STEPS), fault, *arguments) == -9
    killed = len((tmp_path / "log.txt").read_text())
    assert in_child(tmp_path, (*given, *STEPS, "--resume"), noting_where_it_begins) == 0
    assert left(tmp_path / "run") == whole
    assert (tmp_path / "begins").read_text() == str(step)
    log = (tmp_path / "log.txt").read_text()[killed:]
    assert f"{said} (no whole trainer_state.json); going on from checkpoint-{step}" in log if said else True
    assert ("going on from" in log) == bool(said)
    assert not (tmp_path / "run" / ".model").exists()


def noting_where_it_begins() -> None:
    from tokencredit.cli.callbacks import MetricsFile

    begin = MetricsFile.on_train_begin

    def noted(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        Path("begins").write_text(str(state.global_step))
        begin(self, args, state, control, **kwargs)

    MetricsFile.on_train_begin = noted


def test_a_run_that_has_ended_is_not_trained_further(given, tmp_path):
    """Where the last step is no multiple of save_steps either."""
    flags = (*given, "--max_steps", 3, "--save_steps", 2)
    assert in_child(tmp_path, flags) == 0
    before = left(tmp_path / "run")
    assert in_child(tmp_path, (*flags, "--resume")) == 0
    assert left(tmp_path / "run") == before
    assert [line["step"] for line in before["metrics"]] == [1, 2, 3]


def with_one_rank_killed(rank: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    if rank == 1:
        saving("rng_state_1.pth")
    on_rank(rank, folder, arguments, None)


@pytest.mark.slow
def test_one_rank_of_two_is_killed(given, tmp_path):
    """While it saves its random state; the other one must not have called the checkpoint whole."""
    flags = (*given, *STEPS, "--per_device_train_batch_size", 6)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_ranks(on_rank, 2, whole, flags, None) == [0, 0]
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        run_ranks(with_one_rank_killed, 2, killed, flags)
    assert last_checkpoint(killed / "run") == killed / "run" / "checkpoint-2"
    (killed / "meet").unlink()
    assert run_ranks(on_rank, 2, killed, (*flags, "--resume"), None) == [0, 0]
    assert left(killed / "run") == left(whole / "run")


def test_before_the_first_checkpoint_there_is_nothing_to_resume(given, tmp_path):
    assert in_child(tmp_path, (*given, *STEPS), at_the_first_generation) == -9
    assert in_child(tmp_path, (*given, *STEPS, "--resume")) == 2
    assert "nothing to resume: run has no whole checkpoint; start with --overwrite" in last_line(tmp_path)
    assert in_child(tmp_path, (*given, "--max_steps", 1, "--overwrite")) == 0
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [1]


def at_the_first_generation() -> None:
    from trl import GRPOTrainer

    at_call(GRPOTrainer, "_generate_single_turn", 1)
