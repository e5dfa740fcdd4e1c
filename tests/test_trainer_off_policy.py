"""Strategies that compare the trained policy with the one that wrote the completions, in the loss."""

from __future__ import annotations

import pytest
import torch

import tokencredit.trl as subject
from test_trl import losses, parameters, train
from tokencredit.generation import Generation, KnownPolicy

ANSWERS = dict(credit_no_answer="probe", credit_probe="ans")


@pytest.fixture
def weights(monkeypatch):
    """Of each loss, in their order."""
    seen: list[torch.Tensor] = []
    plain = Generation.assign

    def assign(self, strategy, policy, rows):
        plain(self, strategy, policy, rows)
        assert isinstance(policy, KnownPolicy)
        seen.append(self.credit.weights[rows])

    monkeypatch.setattr(subject.Generation, "assign", assign)
    return seen


def test_on_policy_it_is_grpo_and_says_so_once(tmp_path, caplog, weights):
    plain = train(tmp_path / "a", credit="uniform")
    caplog.clear()
    ours = train(tmp_path / "b", credit="fipo")
    assert losses(plain) == losses(ours) and torch.equal(parameters(plain), parameters(ours))
    said = [record.message for record in caplog.records if "plain GRPO" in record.message]
    assert len(said) == 1 and "num_iterations" in said[0] and not weights


@pytest.mark.parametrize(
    "settings", [dict(num_iterations=2), dict(steps_per_generation=2, per_device_train_batch_size=4)]
)
def test_later_steps_of_a_generation(tmp_path, weights, settings):
    """The first step has the policy that wrote the completions; the second compares."""
    run = train(tmp_path, credit="fipo", steps=4, **settings)
    assert len(weights) == 4
    for number, found in enumerate(weights):
        same = torch.allclose(found, torch.ones_like(found), atol=1e-4)
        assert same == (number % 2 == 0), number
    assert all("credit/ess_ratio" in entry for entry in run.state.log_history[:4:2]) or settings.keys() - {
        "num_iterations"
    }


def test_the_weights_are_those_of_the_losss_own_log_probabilities(tmp_path, monkeypatch, weights):
    """Recomputed from what TRL's forward gives in the second step."""
    from tokencredit.credit import Options
    from tokencredit.credit.fipo import fipo

    seen = []
    plain = KnownPolicy.__init__

    def init(self, rollouts, logps):
        plain(self, rollouts, logps)
        seen.append((rollouts, logps))

    monkeypatch.setattr(KnownPolicy, "__init__", init)
    train(tmp_path, credit="fipo", num_iterations=2)
    rollouts, logps = seen[1]
    assert rollouts.old_logps is not None and not torch.allclose(rollouts.old_logps, logps, atol=1e-3)
    expected = fipo(KnownPolicy(rollouts, logps), rollouts, Options()).weights
    assert expected is not None
    used = rollouts.reasoning_mask & rollouts.readable[:, None] & (rollouts.advantages != 0)[:, None]
    used &= (rollouts.reasoning_mask.sum(1) > 1)[:, None]
    torch.testing.assert_close(weights[1][used].double(), expected[used], rtol=1e-6, atol=1e-6)
    assert used.any()
