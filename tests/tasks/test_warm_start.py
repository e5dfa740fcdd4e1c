"""The warm start and its command."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tokencredit.errors import UsageError
from tokencredit.tasks import get_task
from tokencredit.tasks.arithmetic import FACTS, Teacher, parse_prompt, result, write_completion
from tokencredit.tasks.warm_start import main, warm_start


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _quick_measure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few problems suffice to measure a policy that has learned nothing."""
    if "slow" not in request.keywords:
        monkeypatch.setattr("tokencredit.tasks.warm_start.MEASURED_PROBLEMS", 2)


@pytest.mark.parametrize("name", ["query", "serial", "parallel"])
def test_the_teacher_is_wrong_about_the_share_it_should_be(name: str) -> None:
    world = get_task(name).world
    teacher = Teacher.draw(world, random.Random(0))
    assert len(teacher.wrong) == round(world.mistaught * len(FACTS))
    assert all(value != result(fact) for fact, value in teacher.wrong.items())
    rng = random.Random(1)
    fact = next(iter(teacher.wrong))
    said = [teacher.say(fact, rng) for _ in range(2000)]
    assert set(said) == {result(fact), teacher.wrong[fact]}
    assert said.count(result(fact)) / 2000 == pytest.approx(world.p_right, abs=0.04)
    taught = next(fact for fact in FACTS if fact not in teacher.wrong)
    assert {teacher.say(taught, rng) for _ in range(50)} == {result(taught)}


def test_teachers_of_different_seeds_differ() -> None:
    world = get_task("query").world
    assert Teacher.draw(world, random.Random(0)).wrong != Teacher.draw(world, random.Random(1)).wrong


def test_a_chain_goes_on_from_what_was_said() -> None:
    problem = parse_prompt("S1 7 + 5 ; S2 * 4 ; ? S2")
    results = problem.results(lambda fact: {(7, "+", 5): 3}.get(fact, result(fact)))
    assert results == [3, 4]  # 3 * 4: 21 + 12 + 1 = 34
    text = write_completion(problem, results, (0, 0), random.Random(0))
    assert text == "S1 7 + 5 = 3 ; S2 3 * 4 = 4 ; ans 4"


@pytest.mark.parametrize("name", ["query", "serial", "parallel"])
def test_worked_solutions_are_rewarded_and_annotated_as_right(name: str) -> None:
    task = get_task(name)
    for row in task.problems(20, 0):
        problem = parse_prompt(row["prompt"])
        text = write_completion(problem, problem.results(), task.world.filler, random.Random(0))
        assert task.reward([text], [row["answer"]]) == [1.0]
        truths = task.annotate(row["prompt"], text.split())
        assert all(truth.right for truth in truths[: text.split().index("ans")])
        assert len(text.split()) < task.world.longest_completion


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        warm_start("query", seed, tmp_path / folder, steps=3)
    a, b, c = (load_file(tmp_path / folder / "model.safetensors") for folder in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)
    says = json.loads((tmp_path / "a" / "warm_start.json").read_text())
    assert says["settings"]["steps"] == 3
    assert len(says["wrong_values"]) == 240
    assert {file.name for file in (tmp_path / "a").iterdir()} >= {"config.json", "tokenizer.json"}


def test_the_command_writes_a_policy_and_leaves_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "policies" / "query"
    assert main(["--task", "query", "--out", str(out), "--steps", "2"]) == 0
    assert "accuracy 0." in capsys.readouterr().out
    assert [entry.name for entry in out.parent.iterdir()] == ["query"]

    assert main(["--task", "query", "--out", str(out), "--steps", "2"]) == 2
    assert "is not empty" in capsys.readouterr().err
    (out / "stray").write_text("old")
    assert main(["--task", "query", "--out", str(out), "--steps", "2", "--overwrite"]) == 0
    assert not (out / "stray").exists()


def test_only_an_earlier_policy_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="something other than a policy"):
        warm_start("query", 0, tmp_path, steps=1, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("task", "out", "steps", "message"),
    [
        ("queue", "new", "2", "no built-in task 'queue'"),
        ("query", "new", "0", "at least one step"),
        ("query", "file", "2", "is a file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, out: str, steps: str, message: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--task", task, "--out", str(tmp_path / out), "--steps", steps]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failure_midway_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(step: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start("query", 0, tmp_path / "out", steps=2, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_usage_errors_are_raised_to_callers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no built-in task"):
        warm_start("nothing", 0, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["query", "serial", "parallel"])
def test_the_command_reproduces_the_packaged_policy(tmp_path: Path, name: str) -> None:
    assert main(["--task", name, "--seed", "0", "--out", str(tmp_path / name)]) == 0
    packaged = load_file(get_task(name).policy_path() / "model.safetensors")
    fresh = load_file(tmp_path / name / "model.safetensors")
    assert fresh.keys() == packaged.keys()
    says, said = (
        json.loads((path / "warm_start.json").read_text())
        for path in (tmp_path / name, get_task(name).policy_path())
    )
    assert says["wrong_values"] == said["wrong_values"]
    # Another machine rounds differently, and training magnifies that: like accuracy is all it can promise.
    assert says["accuracy"] == pytest.approx(said["accuracy"], abs=0.06)
