"""Runs read back from their folders."""

from __future__ import annotations

from pathlib import Path

from fake_runs import write_run

from tokencredit.compare.collect import Finished, clock_of, on_common_steps, read_finished
from tokencredit.compare.runs import RunKey

START = {(0, "sampled"): 0.4, (0, "greedy"): 0.2}
KEYS = [RunKey(arm, 0, 1) for arm in ("uniform", "oar-g", "random", "bias")]


def test_finished_runs_alone_are_read(tmp_path: Path):
    """Of the four, one was interrupted, one is not yet measured to its end, one was never begun."""
    write_run(tmp_path, KEYS[0], {2: (0.5, 0.3), 4: (0.6, 0.4)}, [0.1, 0.2, 0.3, 0.4], step_time=2.0)
    write_run(tmp_path, KEYS[1], {2: (0.5, 0.3)}, [0.1, 0.2, 0.3, 0.4])
    write_run(tmp_path, KEYS[2], None, [0.1, 0.2], interrupted=True)
    (run,) = read_finished(tmp_path, KEYS, {0: START})
    assert run.key == KEYS[0]
    assert run.curves["sampled"] == [(0, 0.4), (2, 0.5), (4, 0.6)]
    assert run.curves["greedy"] == [(0, 0.2), (2, 0.3), (4, 0.4)]
    assert run.metric("reward") == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert clock_of([run])[-1] == (4.0, 8.0)
    assert run.seconds["total"] == 2.0


def test_without_held_out_problems(tmp_path: Path):
    write_run(tmp_path, KEYS[1], None, [0.1, 0.2])
    (run,) = read_finished(tmp_path, KEYS, {})
    assert run.curves == {} and run.key == KEYS[1]


def test_missing_metrics(tmp_path: Path):
    write_run(tmp_path, KEYS[1], None, [0.1, 0.2], entropy=float("nan"))
    (run,) = read_finished(tmp_path, KEYS, {})
    assert run.metric("entropy") == run.metric("kl") == {}


def test_the_clock_by_hand():
    """Logged at steps 1, 3 and 4, at 2 s, 3 s and 1 s a step; a line without a time is passed over."""
    lines = [
        {"step": 1, "step_time": 2.0},
        {"step": 2},
        {"step": 3, "step_time": 3.0},
        {"step": 4, "step_time": 1.0},
    ]
    assert clock_of([Finished(KEYS[0], {}, lines)]) == [(0, 0), (1, 2), (3, 8), (4, 9)]


def test_a_clock_is_not_slowed_by_what_ran_beside_one_of_the_runs():
    """Steps of 1 s and 2 s, in a third run of 9 s."""
    times = [[1.0, 2.0], [1.0, 2.0], [9.0, 9.0]]
    runs = [
        Finished(KEYS[0], {}, [{"step": step, "step_time": time} for step, time in enumerate(each, start=1)])
        for each in times
    ]
    assert clock_of(runs) == [(0, 0), (1, 1), (2, 3)]


def test_a_stop_leaves_a_measurement_that_others_do_not_have(tmp_path: Path):
    write_run(tmp_path, KEYS[0], {2: (0.5, 0.3), 3: (0.9, 0.9), 4: (0.6, 0.4)}, [0.1] * 4)
    write_run(tmp_path, KEYS[1], {2: (0.5, 0.3), 4: (0.7, 0.4)}, [0.1] * 4)
    curves = on_common_steps(read_finished(tmp_path, KEYS, {0: START}), "sampled")
    assert [step for step, _ in curves[KEYS[0]]] == [step for step, _ in curves[KEYS[1]]] == [0, 2, 4]
    assert on_common_steps([], "sampled") == {}
