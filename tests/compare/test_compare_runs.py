"""Which runs there are, what is left to do for each, and what a second call may change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import write_accuracies, write_run

from tokencredit.compare.runs import (
    RunKey,
    TrainingRun,
    WarmStart,
    all_keys,
    next_plan,
    only_call,
    read_plan,
    write_plan,
)
from tokencredit.errors import UsageError

KEY = RunKey("oar-g", 0, 1)


def measure(points, out):
    return ["measure", *(f"{step}={path.name}" for step, path in points), out.name]


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    return TrainingRun(KEY, tmp_path / KEY.name, ("--task", "query"), 4, measure)


def checkpoint(run: TrainingRun, step: int) -> Path:
    folder = run.folder / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "rng_state.pth").touch()
    return folder


def test_runs_that_are_compared_come_together():
    keys = all_keys(["uniform", "oar-g"], warm_starts=2, seeds=2)
    assert [key.name for key in keys[:4]] == [
        "uniform/warm0-seed1",
        "oar-g/warm0-seed1",
        "uniform/warm1-seed1",
        "oar-g/warm1-seed1",
    ]
    assert len(keys) == len(set(keys)) == 8


def test_a_new_run_is_trained_and_its_command_line_kept(run):
    train = [sys.executable, "-m", "tokencredit", "train", "--task", "query"]
    assert run.next_command() == [*train, "--overwrite"]
    assert (run.folder / "command.txt").read_text() == "tokencredit train --task query\n"


def test_a_killed_run_goes_on_from_its_checkpoint(run):
    checkpoint(run, 2)
    write_run(run.folder.parents[1], KEY, None, [0.5] * 3, interrupted=True)
    assert run.next_command()[-1] == "--resume"


def test_without_a_complete_checkpoint_it_is_redone(run):
    (checkpoint(run, 2) / "trainer_state.json").unlink()
    write_accuracies(run.folder / "held_out.jsonl", {2: (0.5, 0.5)})
    assert run.next_command()[-1] == "--overwrite"
    assert not (run.folder / "held_out.jsonl").exists()


def test_a_run_that_was_killed_after_its_last_step_goes_on_from_there(run):
    checkpoint(run, 2), checkpoint(run, 4)
    assert run.next_command()[-1] == "--resume"
    assert {path.name for path in run.folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}


def test_what_is_trained_is_measured_once(run):
    checkpoint(run, 2), checkpoint(run, 4)
    write_run(run.folder.parents[1], KEY, {2: (0.4, 0.3)}, [0.5] * 4)
    assert run.next_command() == ["measure", "4=warm0-seed1", "held_out.jsonl"]
    write_accuracies(run.folder / "held_out.jsonl", {2: (0.4, 0.3), 4: (0.5, 0.4)})
    assert run.next_command() is None
    assert not list(run.folder.glob("checkpoint-*"))


def test_half_a_measurement_is_taken_up(run):
    write_run(run.folder.parents[1], KEY, None, [0.5] * 4)
    whole = '{"step": 4, "way": "sampled", "accuracy": 0.5, "problems": 9}\n'
    (run.folder / "held_out.jsonl").write_text(whole + '{"step": 4, "way": "gre')
    assert run.next_command()[0] == "measure"


def test_without_held_out_problems_a_trained_run_is_done(run):
    write_run(run.folder.parents[1], KEY, None, [0.5] * 4)
    assert TrainingRun(KEY, run.folder, (), 4, None).next_command() is None


def test_warm_starts_are_made_once_and_measured_once(tmp_path):
    made = tmp_path / "policy" / "warm_start.json"
    start = WarmStart("warm1", tmp_path / "w", (["make"], made), lambda out: ["measure", out.name])
    assert start.next_command() == ["make"]
    made.parent.mkdir()
    made.touch()
    assert start.next_command() == ["measure", "warm1.jsonl"]
    write_accuracies(start.accuracies, {0: (0.4, 0.2)})
    assert start.next_command() is None


def plan(before, directory=Path("dir"), settings=None, warm_starts=("query",), arms=("a", "b"), seeds=2):
    asked = {"arms": list(arms), "seeds": seeds}
    return next_plan(before, directory, settings or {"q": 0.25, "task": "query"}, warm_starts, asked)


def test_a_comparison_grows(tmp_path):
    first = plan({})
    write_plan(tmp_path, first)
    again = plan(read_plan(tmp_path))
    assert again == first
    more = plan(first, warm_starts=("query", "other"), arms=("a", "c"), seeds=3)
    assert [call["seeds"] for call in more["calls"]] == [2, 3]
    assert plan(more)["warm_starts"] == ["query", "other"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"q": 0.5, "task": "query"}}, "was begun with q 0.25, not 0.5; set it as it was"),
        ({"settings": {"q": 0.25, "task": "query", "m": 3}}, "was begun with m not set, not 3"),
        ({"settings": {"q": 0.25}}, "was begun with task query, not not set"),
        ({"warm_starts": ("mine",)}, "was begun with query as warm start 0, not mine"),
    ],
)
def test_other_settings_are_refused_by_name(changes, message):
    with pytest.raises(UsageError, match=message):
        plan(plan({}), **changes)


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match="holds something else than a comparison"):
        read_plan(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        read_plan(tmp_path / "thesis.txt")


def test_a_folder_has_one_call_at_a_time_and_its_processes_count(tmp_path):
    with only_call(tmp_path) as lock:
        with pytest.raises(UsageError, match="is in use by another call"), only_call(tmp_path):
            pass
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock])
    with pytest.raises(UsageError, match="or by runs of an earlier one"), only_call(tmp_path):
        pass
    child.communicate()
    with only_call(tmp_path):
        pass
