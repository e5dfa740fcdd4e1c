"""What a checkpoint must be to be taken, and that every batch setting goes on with the same numbers from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fault_helpers import in_child, last_line, left, lines, trainer
from transformers import TrainerCallback
from trl import GRPOTrainer

from tokencredit.checkpoints import contents, last_checkpoint, no_room, numbered
from tokencredit.errors import UsageError
from tokencredit.report.records import RECORDS


def checkpoint(directory: Path, step: int, used_up: bool = True) -> Path:
    """As a trainer leaves one, with less in it."""
    folder = directory / f"checkpoint-{step}"
    (folder / "shards").mkdir(parents=True)
    for name in ("optimizer.pt", "rng_state.pth", "shards/0.distcp"):
        (folder / name).write_text(f"{name} of step {step}")
    state = {"global_step": step, "stateful_callbacks": {"tokencredit": contents(folder, used_up)}}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("trainer_state.json", None, "was not written to its end (no whole trainer_state.json)"),
        (
            "trainer_state.json",
            '{"global_step": 4',
            "was not written to its end (no whole trainer_state.json)",
        ),
        ("trainer_state.json", "[4]", "was not written to its end (no whole trainer_state.json)"),
        ("optimizer.pt", None, "has lost its optimizer.pt"),
        ("shards/0.distcp", "sha", "has 3 bytes of shards/0.distcp, not 26"),
        ("rng_state.pth", "", "has 0 bytes of rng_state.pth, not 24"),
    ],
)
def test_a_broken_checkpoint_is_passed_over_and_said(tmp_path, name, content, reason):
    good, broken = checkpoint(tmp_path, 2), checkpoint(tmp_path, 10)
    (broken / name).unlink() if content is None else (broken / name).write_text(content)
    said: list[str] = []
    assert last_checkpoint(tmp_path, tell=said.append) == good
    assert said == [f"checkpoint-10 {reason}; going on from checkpoint-2"]


def test_no_checkpoint_but_broken_ones(tmp_path):
    (checkpoint(tmp_path, 2) / "optimizer.pt").unlink()
    said: list[str] = []
    assert last_checkpoint(tmp_path, tell=said.append) is None
    assert said == ["checkpoint-2 has lost its optimizer.pt; it is of no use"]


def test_one_within_a_generation_batch_is_taken_only_if_no_step_is_left(tmp_path):
    whole, within = checkpoint(tmp_path, 4), checkpoint(tmp_path, 5, used_up=False)
    said: list[str] = []
    assert last_checkpoint(tmp_path, 5, said.append) == within
    assert said == []
    assert last_checkpoint(tmp_path, 9, said.append) == last_checkpoint(tmp_path) == whole
    assert said == [
        "checkpoint-5 lies within a generation batch, whose completions it does not hold; going on from checkpoint-4"
    ]


def test_checkpoints_of_other_trainers(tmp_path):
    """They say nothing of their files; one of a model alone can't be gone on from."""
    theirs = checkpoint(tmp_path, 4)
    (theirs / "trainer_state.json").write_text('{"global_step": 4}')
    assert last_checkpoint(tmp_path) == theirs
    (theirs / "rng_state.pth").unlink()
    assert last_checkpoint(tmp_path) is None


def test_which_errors_mean_that_there_is_no_room():
    assert no_room(OSError(28, "x")) == "No space left on device"
    assert no_room(FileNotFoundError(2, "x")) is None
    assert no_room(RuntimeError("CUDA error")) is None


SETTINGS = {
    "one generation for two iterations": ("--num_iterations", 2),
    "one generation for two steps": ("--steps_per_generation", 2),
    "two generations for one step": (*("--gradient_accumulation_steps", 2), *("--steps_per_generation", 1)),
    "two generations for three steps": (
        *("--gradient_accumulation_steps", 2),
        *("--steps_per_generation", 3),
        *("--per_device_train_batch_size", 4),
    ),
    "in the loss": (*("--credit_stage", "loss"), *("--gradient_checkpointing", "false")),
    "an adapter": (*("--use_peft", "--lora_target_modules", "q_proj", "v_proj"), *("--learning_rate", 1e-3)),
    "sampled noise and other draws": ("--credit", "random"),
}


@pytest.mark.slow
@pytest.mark.parametrize("flags", SETTINGS.values(), ids=SETTINGS)
def test_every_batch_setting_goes_on_with_the_same_numbers(given, tmp_path, flags):
    """From the first of two checkpoints, with what was logged after it still in the files."""
    command = (*given, *flags, "--max_steps", 12, "--save_steps", 4)
    assert in_child(tmp_path, command) == 0
    run = tmp_path / "run"
    whole = left(run)
    assert any(line["grad_norm"] > 0 for line in whole["metrics"][6:])
    steps = sorted(step for step, _ in numbered(run))
    assert len(steps) > 1
    for step in steps[1:]:
        shutil.rmtree(run / f"checkpoint-{step}")
    assert in_child(tmp_path, (*command, "--resume")) == 0
    assert left(run) == whole


def test_a_checkpoint_within_a_generation_batch_is_passed_over_for_more_steps(given, tmp_path):
    """Two steps a generation: of three steps the last one is saved, but four can't begin there."""
    command = (*given, "--num_iterations", 2, "--lr_scheduler_type", "constant", "--save_steps", 1)
    assert in_child(tmp_path, (*command, "--max_steps", 3)) == 0
    assert {path.name for path in tmp_path.glob("run/checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
    assert in_child(tmp_path, (*command, "--max_steps", 4, "--resume")) == 0
    assert "checkpoint-3 lies within a generation batch" in (tmp_path / "log.txt").read_text()
    found = left(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    assert in_child(tmp_path, (*command, "--max_steps", 4)) == 0
    assert left(tmp_path / "run") == found


def test_what_the_ranks_were_stays(given, tmp_path):
    assert in_child(tmp_path, (*given, "--max_steps", 1, "--save_steps", 1)) == 0
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "processes": 2}))
    assert in_child(tmp_path, (*given, "--max_steps", 2, "--resume")) == 2
    assert "its processes was 2, but is 1 now" in last_line(tmp_path)


def test_a_script_of_ones_own(tmp_path):
    """Without the command line: six steps an epoch, a checkpoint every two; that of step 8 breaks later."""
    whole = trainer(tmp_path / "run", max_steps=8)
    whole.train()
    assert sorted(step for step, _ in numbered(tmp_path / "run")) == [2, 4, 6, 8]
    records = lines(tmp_path / "run" / RECORDS)
    (tmp_path / "run" / "checkpoint-8" / "optimizer.pt").write_bytes(b"cut off")
    again = trainer(tmp_path / "run", max_steps=8)
    again.train(resume_from_checkpoint=True)
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert (one == other).all()
    assert lines(tmp_path / "run" / RECORDS) == records
    assert (tmp_path / "run" / "checkpoint-8" / "optimizer.pt").stat().st_size > 7
    # The same trainer once more, from the step where it ended: there is none left.
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 8


def test_a_script_resumes_nothing_but_whole_checkpoints(tmp_path):
    broken = checkpoint(tmp_path, 2)
    (broken / "optimizer.pt").unlink()
    with pytest.raises(UsageError, match="has no whole checkpoint"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(UsageError, match=r"checkpoint-2 has lost its optimizer.pt"):
        trainer(tmp_path).train(resume_from_checkpoint=str(broken))


def test_a_step_is_saved_once(tmp_path, monkeypatch):
    """Asked for at the step and at the end of its epoch."""
    saved: list[int] = []
    monkeypatch.setattr(
        GRPOTrainer, "_save_checkpoint", lambda self, *_: saved.append(self.state.global_step)
    )

    class AtEveryStep(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = True

    own = trainer(tmp_path, num_iterations=1, max_steps=6, save_strategy="epoch")
    own.callback_handler.callbacks.insert(1, AtEveryStep())
    own.train()
    assert saved == [1, 2, 3, 4, 5, 6]


def test_saves_that_a_callback_asks_for_wait(tmp_path):
    class AtStepThree(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == 3

    own = trainer(tmp_path, max_steps=6, save_strategy="no")
    own.callback_handler.callbacks.insert(1, AtStepThree())
    own.train()
    assert [step for step, _ in numbered(tmp_path)] == [4]


def test_saves_at_any_moment_are_refused(tmp_path):
    with pytest.raises(UsageError, match="enable_jit_checkpoint saves in the middle"):
        trainer(tmp_path, enable_jit_checkpoint=True)
