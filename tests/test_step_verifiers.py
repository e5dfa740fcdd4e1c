"""Step verifiers by name, in the grounding and in training."""

from __future__ import annotations

import pytest
import torch

from test_trl import train
from tokencredit import UsageError
from tokencredit.answers.arithmetic_steps import arithmetic_verdicts
from tokencredit.grounding import ground
from tokencredit.step_verifiers import get_verifier
from tokencredit.tasks.policy import build_tokenizer
from tokencredit.tasks.step_verdicts import task_verdicts


def test_names(tmp_path, monkeypatch):
    assert get_verifier("arithmetic") is arithmetic_verdicts and get_verifier("task") is task_verdicts
    (tmp_path / "mine.py").write_text(
        "def judge(prompts, steps):\n    return [[True] * len(row) for row in steps]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert get_verifier("mine.judge")(["a"], [["b", "c"]]) == [[True, True]]
    for name, words in (
        ("sums", "no step verifier 'sums'; use arithmetic, task, lean:FOLDER"),
        ("mine.other", "cannot import the step verifier 'mine.other'"),
        (f"lean:{tmp_path}", "no Lean project"),
    ):
        with pytest.raises(UsageError, match=words):
            get_verifier(name)


PROMPT = "S1 7 + 5 ; S2 3 * 4 ; ? S2"


def test_the_tasks_truth():
    """Arithmetic mod 10; a step that computes something else than the prompt says is wrong too."""
    steps = ["S1 7 + 5 = 2 ;", " S2 3 * 4 = 3 ;", " so", " S2 3 * 5 = 5 ;"]
    assert task_verdicts([PROMPT], [steps]) == [[True, False, None, False]]


def test_grounding_asks_for_each_step():
    tokenizer = build_tokenizer()
    prompt = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    ids = torch.tensor([tokenizer("S1 7 + 5 = 2 ; S2 3 * 4 = 3 ; ans 3")["input_ids"]])
    seen = []

    def judge(prompts, steps):
        seen.append((prompts, steps))
        return task_verdicts(prompts, steps)

    ones = torch.ones_like
    rollouts, _ = ground(
        tokenizer,
        prompt,
        ones(prompt),
        ids,
        ones(ids),
        marker="ans",
        needs=["steps", "step_verdicts"],
        verifier=judge,
    )
    assert [step.split() for step in seen[0][1][0]] == [
        ["S1", "7", "+", "5", "=", "2", ";"],
        ["S2", "3", "*", "4", "=", "3", ";"],
    ]
    assert rollouts.step_verdicts.tolist() == [[1] * 7 + [0] * 7 + [-1] * 2]
    with pytest.raises(UsageError, match="a verdict for each step"):
        ground(
            tokenizer,
            prompt,
            ones(prompt),
            ids,
            ones(ids),
            marker="ans",
            needs=["steps", "step_verdicts"],
            verifier=lambda prompts, steps: [[True]],
        )


def test_training_judges_steps(tmp_path, monkeypatch):
    """The bonus falls on the first token of each step; the rewards are those of the rows."""
    monkeypatch.setattr(
        "tokencredit.trl.get_verifier",
        lambda name: lambda prompts, rows: [[False] * len(row) for row in rows],
    )
    seen = []
    plain = __import__("tokencredit.generation", fromlist=["Generation"]).Generation.assign

    def assign(self, strategy, policy, rows):
        plain(self, strategy, policy, rows)
        seen.append(self)

    monkeypatch.setattr("tokencredit.generation.Generation.assign", assign)
    train(tmp_path, credit="process-verified", steps=1)
    rollouts, bonus = seen[0].rollouts, seen[0].credit.bonus
    assert rollouts.rewards.isfinite().all() and len(rollouts.rewards.unique()) > 1
    failed = rollouts.rewards < 0.5
    means = rollouts.rewards.view(-1, 4).mean(1).repeat_interleave(4)
    for row in range(8):
        given = bonus[row][bonus[row] != 0]
        expected = (-0.1 if failed[row] else 1.0) - float(means[row])
        assert given.tolist() == pytest.approx([expected] * len(given), abs=1e-5) and len(given)
