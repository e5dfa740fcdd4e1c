"""SIGTERM and Ctrl-C: a checkpoint, one message, exit code 130; also where the signal reaches one rank of several."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_helpers import STEPS, in_child, last_line, left, lines

from processes import run_ranks
from tokencredit.checkpoints import numbered


def at_step(step: int, number: int, rank: int | None = None) -> None:
    """The signal arrives in the middle of a generation."""
    from trl import GRPOTrainer

    generate = GRPOTrainer._generate_single_turn

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == step - 1 and rank in (None, self.accelerator.process_index):
            os.kill(os.getpid(), number)
        return generate(self, *args, **kwargs)

    GRPOTrainer._generate_single_turn = interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_the_run(whole, given, tmp_path, number):
    """At a step where no checkpoint was due."""
    assert in_child(tmp_path, (*given, *STEPS), at_step, 3, number) == 130
    assert last_line(tmp_path) == "stopped; --resume continues from the last checkpoint in run"
    assert (tmp_path / "log.txt").read_text().count("stopping after this step") == 1
    assert sorted(step for step, _ in numbered(tmp_path / "run")) == [2, 3]
    assert in_child(tmp_path, (*given, *STEPS, "--resume")) == 0
    assert left(tmp_path / "run") == whole


def test_it_waits_until_the_generation_batch_is_used_up(given, tmp_path):
    flags = (*given, "--num_iterations", 3, "--max_steps", 6)
    assert in_child(tmp_path, flags, at_step, 1, signal.SIGTERM) == 130
    assert [step for step, _ in numbered(tmp_path / "run")] == [3]


def on_rank(rank: int, folder: Path, arguments: tuple[Any, ...], then: tuple[Any, ...] | None) -> None:
    from tokencredit.cli import main

    os.chdir(folder)
    if then is not None:
        at_step(*then)
    with open(f"log{rank}.txt", "w", buffering=1) as log, contextlib.redirect_stderr(log):
        code = main([str(argument) for argument in arguments])
    torch.save(code, folder / f"{rank}.pt")


@pytest.mark.slow
def test_one_rank_of_two_gets_the_signal(given, tmp_path):
    """Both stop at the same step, and go on as if they hadn't."""
    flags = (*given, *STEPS, "--per_device_train_batch_size", 6)
    whole, run = tmp_path / "whole", tmp_path / "stopped"
    assert run_ranks(on_rank, 2, whole, flags, None) == [0, 0]
    assert run_ranks(on_rank, 2, run, flags, (3, signal.SIGTERM, 1)) == [130, 130]
    assert sorted(step for step, _ in numbered(run / "run")) == [2, 3]
    assert "stopped; --resume continues" in (run / "log0.txt").read_text()
    assert "stopp" not in (run / "log1.txt").read_text()
    (run / "meet").unlink()
    assert run_ranks(on_rank, 2, run, (*flags, "--resume"), None) == [0, 0]
    assert left(run / "run") == left(whole / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", ["torchrun --nproc_per_node 2", "accelerate launch --multi_gpu --num_processes 2"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_gets_the_signal(given, tmp_path, launcher, number):
    name, *settings = launcher.split()
    flags = [*given, "--per_device_train_batch_size", "6", "--max_steps", "500"]
    program = [str(Path(sys.executable).with_name(name)), *settings, "-m", "tokencredit"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    metrics = tmp_path / "run" / "metrics.jsonl"
    with open(tmp_path / "log.txt", "w") as log:
        process = subprocess.Popen(
            [*program, *map(str, flags)], cwd=tmp_path, stderr=log, env=environment, start_new_session=True
        )
        deadline = time.monotonic() + 600
        while not metrics.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(timeout=600) != 0
    log_text = (tmp_path / "log.txt").read_text()
    assert log_text.count("stopped; --resume continues from the last checkpoint in run") == 1, log_text[
        -3000:
    ]
    ((step, _),) = numbered(tmp_path / "run")
    assert [line["step"] for line in lines(metrics)] == list(range(1, step + 1))
