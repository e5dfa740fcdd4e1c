"""A run over a back-end that answers by rule: batches, seeds, going on, results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tokencredit.errors import UsageError
from tokencredit.evaluation import store
from tokencredit.evaluation.decoding import Completion, Decoding
from tokencredit.evaluation.run import Asked, batch_seed, compare, plan, results, write_samples
from tokencredit.evaluation.tasks import Problem

DECODING = Decoding(samples=3, temperature=1.0, seed=4)


class Rule:
    """Answers the length of the prompt plus the last digit of the seed; fails at a chosen call."""

    name, seeded = "rule", False

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[Sequence[Any]] = []
        self.fails_at = fails_at

    def generate(self, asked: Sequence[Any], decoding: Decoding, seed: int) -> list[Completion]:
        if len(self.calls) == self.fails_at:
            raise UsageError("the back-end rule failed: gone")
        self.calls.append(asked)
        return [Completion(f"\\boxed{{{len(prompt) + seed % 10}}}", "stop", 3) for prompt in asked]


def asked(count: int) -> dict[str, list[Asked]]:
    problems = [Problem(f"p{n}", "x" * n, (str(n + 4),)) for n in range(count)]
    return {"t": [Asked(problem, problem.text) for problem in problems]}


def write(folder, backend, count=5, batch_size=2):
    told: list[store.Sample] = []
    samples = write_samples(folder, asked(count), backend, DECODING, batch_size, told.extend)
    assert told == samples == store.read_samples(folder)
    return samples


def test_plan():
    keys = plan({"a": ["1", "2", "3"], "b": ["9"]}, samples=2, batch_size=2)
    assert keys == [
        [("a", "1", 0), ("a", "2", 0)],
        [("a", "3", 0)],
        [("a", "1", 1), ("a", "2", 1)],
        [("a", "3", 1)],
        [("b", "9", 0)],
        [("b", "9", 1)],
    ]


def test_seeds():
    batches = plan({"a": ["1", "2", "3"], "b": ["1"]}, samples=2, batch_size=2)
    each_batch = [batch_seed(0, batch, each_request=False) for batch in batches]
    assert len(set(each_batch)) == len(batches) and all(0 <= seed < 2**31 for seed in each_batch)
    assert each_batch != [batch_seed(1, batch, each_request=False) for batch in batches]
    by_sample = {batch[0][2]: batch_seed(0, batch, each_request=True) for batch in batches}
    assert all(by_sample[batch[0][2]] == batch_seed(0, batch, each_request=True) for batch in batches)
    assert by_sample[0] != by_sample[1]


def test_a_killed_run_goes_on_to_the_same_samples(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        store.claim(folder, {}, overwrite=False)
    expected = write(whole, Rule())
    with pytest.raises(UsageError, match="gone"):
        write(killed, Rule(fails_at=4))
    path = killed / store.SAMPLES
    path.write_bytes(path.read_bytes()[:-5])  # killed while it wrote
    backend = Rule()
    assert write(killed, backend) == expected
    assert len(backend.calls) == 9 - 3, "what was finished is not asked for again"
    again = Rule()
    assert write(killed, again) == expected and not again.calls


def test_results_and_what_is_kept(tmp_path):
    samples = write(tmp_path, Rule(), count=2)
    assert [(s["id"], s["sample"]) for s in samples] == [(f"p{n}", k) for k in range(3) for n in range(2)]
    for sample in samples:
        seed = batch_seed(4, [("t", "p0", sample["sample"])], each_request=False)
        number = int(sample["id"][1])
        assert sample["answer"] == str(number + seed % 10)
        assert sample["verdict"] == ("right" if seed % 10 == 4 else "wrong")
        assert sample["golds"] == [str(number + 4)] and sample["prompt"] == "x" * number
        assert (sample["finish"], sample["tokens"]) == ("stop", 3)
    found = results(samples, [1, 3], seed=0)["t"]
    assert (found["problems"], found["samples"]) == (2, 3)
    right = [sample["verdict"] == "right" for sample in samples]
    assert found["metrics"]["pass@1"]["value"] == pytest.approx(sum(right) / 6)
    assert found["metrics"]["truncated"]["value"] == 0


def test_a_prompt_that_opens_a_think_block(tmp_path):
    problem = Problem("a", "p", ("13",))
    prompt = "p\n<think>\n"  # its 10 characters and any digit: an answer, but within the block
    samples = write_samples(tmp_path, {"t": [Asked(problem, prompt)]}, Rule(), DECODING, 1, lambda _: None)
    assert {sample["verdict"] for sample in samples} == {"no-answer"}


def test_compare_pairs_problems():
    def kept(name: str, verdicts: str, text: str = "?") -> list[store.Sample]:
        return [
            {"task": "t", "id": name, "problem": text, "verdict": "right" if v == "1" else "wrong"}
            for v in verdicts
        ]

    first = [*kept("a", "11"), *kept("b", "10"), *kept("c", "11")]
    second = [*kept("a", "1"), *kept("b", "0")]
    found = compare(first, second, seed=0)["t"]
    assert (found.problems, found.first, found.second) == (2, 0.75, 0.5)
    with pytest.raises(UsageError, match="the id a stands for another problem"):
        compare(first, kept("a", "1", "another"), seed=0)
    with pytest.raises(UsageError, match="nothing to compare: t here, nothing there"):
        compare(first, [], seed=0)
