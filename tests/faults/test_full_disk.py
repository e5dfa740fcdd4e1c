"""A disk without room ends a run in one line, with the last checkpoint whole, from which the run goes on."""

from __future__ import annotations

import errno
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from fault_helpers import STEPS, half, in_child, last_line, left

from tokencredit.errors import UsageError
from tokencredit.report.files import append_line, read_lines


def full(path: object) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", str(path))


def after_a_checkpoint_files_stay_small(size: int) -> None:
    """The system's own limit, which fills each file; optimizer.pt is the largest."""
    from tokencredit.cli.callbacks import SafeStops

    step_end = SafeStops.on_step_end

    def limited(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        step_end(self, args, state, control, **kwargs)

    SafeStops.on_step_end = limited


def in_a_line(name: str, step: int) -> None:
    from tokencredit.report import files

    write = files._write_all

    def full_in_between(file: Any, data: bytes) -> None:
        if Path(file.name).name == name and f'"step": {step},'.encode() in data:
            file.write(data[: len(data) // 2])
            raise full(name)
        write(file, data)

    files._write_all = full_in_between


def saving_the_weights(number: int) -> None:
    """safetensors passes the system's error on as one of its own."""
    from safetensors import SafetensorError
    from transformers import modeling_utils

    save, seen = modeling_utils.safe_save_file, [0]

    def full_after_half(tensors: Any, path: Any, **kwargs: Any) -> None:
        save(tensors, path, **kwargs)
        seen[0] += 1
        if seen[0] == number:
            half(Path(path))
            raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    modeling_utils.safe_save_file = full_after_half


CASES = [
    (after_a_checkpoint_files_stay_small, 200_000, "cannot save run/checkpoint-4: File too large", 2),
    (after_a_checkpoint_files_stay_small, 900_000, "cannot save run/checkpoint-4: a file could not be", 2),
    (in_a_line, ("metrics.jsonl", 4), "cannot write run/metrics.jsonl: No space left on device", 2),
    (in_a_line, ("records.jsonl", 5), "cannot write run/records.jsonl: No space left on device", 4),
    (saving_the_weights, 2, "cannot save run/checkpoint-4: No space left on device", 2),
    (saving_the_weights, 4, "cannot write into run: No space left on device", 6),
]
CASES = [CASES[1], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case is not CASES[1])]


@pytest.mark.parametrize(("fault", "arguments", "said", "last"), CASES)
def test_the_run_stops_in_a_line_and_goes_on(whole, given, tmp_path, fault, arguments, said, last):
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    assert in_child(tmp_path, (*given, *STEPS), fault, *arguments) == 2
    line = last_line(tmp_path)
    assert line.startswith(f"tokencredit: error: training stopped: {said}")
    assert line.endswith(f"; --resume goes on from checkpoint-{last}")
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
    run = tmp_path / "run"
    assert {path.name for path in run.glob("checkpoint-*")} == {
        f"checkpoint-{n}" for n in range(2, last + 1, 2)
    }
    assert not (run / "model.safetensors").exists() and not (run / ".model").exists()
    for name in ("metrics.jsonl", "records.jsonl"):
        for text in (run / name).read_text().splitlines():
            json.loads(text)
    assert in_child(tmp_path, (*given, *STEPS, "--resume")) == 0
    assert left(run) == whole


def test_a_line_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    from tokencredit.report import files

    path = tmp_path / "lines.jsonl"
    append_line(path, {"step": 1})

    def full_after_two_bytes(file: Any, data: bytes) -> None:
        file.write(data[:2])
        raise full(path)

    with monkeypatch.context() as patched, pytest.raises(UsageError, match="No space left"):
        patched.setattr(files, "_write_all", full_after_two_bytes)
        append_line(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n'
    append_line(path, {"step": 3})
    assert [value["step"] for _, value in read_lines(path)] == [1, 3]


def test_nothing_at_all_can_be_written(given, tmp_path):
    """Before the first step: no logs stay behind that would be taken for a run."""
    assert in_child(tmp_path, (*given, *STEPS), in_a_line, "records.jsonl", 1) == 2
    assert not (tmp_path / "run" / "run.json").exists()
    assert "--resume" not in last_line(tmp_path)
