"""The examples run, and learn what they say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples/ is not beside the tests")


@pytest.fixture(scope="module")
def loop() -> Any:
    spec = importlib.util.spec_from_file_location("loop", EXAMPLES / "loop.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loop"] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 250


def test_two_steps(loop, capsys):
    settings = loop.Settings(steps=2, prompts=4, problems=32)
    before, after = loop.run(settings)
    assert 0 <= before <= 1 and 0 <= after <= 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("accuracy before") and lines[-1].startswith("accuracy after")
    assert loop.run(settings) == (before, after), "the same seed gives the same figures"


def test_log_probabilities_are_those_of_the_rows_alone(loop):
    """Left padding and the end of other rows don't matter."""
    from tokencredit.tasks import get_task

    task = get_task("query")
    model, tokenizer = task.load_policy()
    torch.manual_seed(0)
    problems = task.problems(3, 0)
    rollouts, rewards = loop.roll_out(
        model, tokenizer, task, problems, loop.Settings(prompts=3, generations=2)
    )
    assert rewards.shape == (6,)
    with torch.no_grad():
        found = loop.log_probs(model, rollouts)
        for row in range(6):
            prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]]
            own = rollouts.completion_ids[row][rollouts.completion_mask[row]]
            logits = model(torch.cat([prompt, own])[None]).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1)[torch.arange(len(own)), own]
            assert torch.allclose(found[row, : len(own)], expected, atol=1e-4)


def test_the_loss_by_hand(loop):
    """Ratios 1, 2 and 0.5, clipped to 1.2 and 0.8 where that gives less: -(1 + 1.2 - 0.8) / 3."""
    new = torch.tensor([[1.0, 2.0, 0.5]]).log()
    advantages = torch.tensor([[1.0, 1.0, -1.0]])
    loss = loop.grpo_loss(new, torch.zeros_like(new), advantages, torch.ones(1, 3, dtype=torch.bool), 0.2)
    assert loss.item() == pytest.approx(-(1 + 1.2 - 0.8) / 3)


@pytest.mark.slow
def test_the_loop_learns(loop):
    """From 0.46 by more than three standard errors of 512 problems (0.022 each)."""
    before, after = loop.run(loop.Settings())
    assert after > before + 0.1
