"""Rows that something is amiss with, or that a sampler other than the model wrote."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from trl import GRPOTrainer

from test_trl import losses, outputs_of, parameters, train
from tokencredit.tasks.policy import build_model, build_tokenizer
from tokencredit.trl import OARTrainer

TEXTS = [
    "3 + 4 = 7 ; ans 7 <eos>",
    "1 ; ans 1 <eos>",
    "2 + 2 = 4 ; 4 + 1 = 5 ; ans 5 <eos>",
    "8 = 8 ans 8 <eos>",
]


def given(monkeypatch, logps=None) -> list[list[int]]:
    """Completions that nobody samples, with the log-probabilities that a sampler says it had."""
    ids = build_tokenizer()(TEXTS * 2)["input_ids"]
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda *args, **kwargs: (ids, logps))
    return ids


@pytest.mark.parametrize("credit", ["oar-p", "oar-g", "uniform"])
def test_a_row_without_a_reward(tmp_path, monkeypatch, credit):
    """[None, 1, 0, 1]: the mean of the others is 2/3, their standard deviation sqrt(1/3); row 0 gets no gradient."""
    given(monkeypatch)
    seen = outputs_of(monkeypatch)

    def reward(completions, **kwargs):
        return [None, 1.0, 0.0, 1.0] * 2

    train(tmp_path, steps=1, credit=credit, credit_marker="ans", credit_records=0, reward=reward)
    advantages, mask = seen[0]["advantages"], seen[0]["completion_mask"].bool()
    per_token = advantages if advantages.dim() == 2 else advantages[:, None].expand(mask.shape)
    assert (per_token[[0, 4]] == 0).all()
    for row, reward_of_row in [(1, 1.0), (2, 0.0), (3, 1.0)]:
        expected = (reward_of_row - 2 / 3) / (math.sqrt(1 / 3) + 1e-4)
        assert per_token[row][mask[row]].mean().item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stage", ["rollout", "loss"])
def test_rows_with_broken_logits(tmp_path, monkeypatch, caplog, stage):
    """They keep their sequences' advantages and are counted; one line in the log says so, also across checkpoints.

    Attribution has a pass of its own, in evaluation mode. In the loss's pass the whole gradient is NaN: such steps are
    left out, and the policy stays as it was.
    """
    ids = given(monkeypatch)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = GRPOTrainer._compute_loss

    def spy(self, model, inputs):
        loss = original(self, model, inputs)
        seen.append((inputs["completion_ids"].clone(), inputs["advantages"].clone()))
        return loss

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spy)
    only = build_tokenizer()("8")["input_ids"][0]  # in two rows of eight
    assert sum(only in row for row in ids) == 2
    model = build_model(0)
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(
        lambda module, args, output: (
            output.masked_fill((args[0] == only)[..., None], torch.nan)
            if stage == "loss" or not module.training
            else output
        )
    )
    settings = dict(credit="oar-g", credit_stage=stage, credit_gradient="labels", credit_marker="ans")
    saves = dict(steps=3, save_strategy="steps", save_steps=1)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run = train(tmp_path, model=model, learning_rate=1e-2, **settings, **saves)
    assert caplog.text.count("rows whose credit is NaN or infinite") == 1
    assert all(entry["credit/not_finite"] == 2 for entry in run.state.log_history[:-1])
    left_out = stage == "loss"
    assert caplog.text.count("step 1 has a gradient that is NaN or infinite") == int(left_out)
    assert all(entry["credit/steps_left_out"] == left_out for entry in run.state.log_history[:-1])
    assert parameters(run).isfinite().all() and torch.equal(parameters(run), before) == left_out
    completions, found = seen[0]
    assert found.isfinite().all()
    assert torch.equal((found == found[:, :1]).all(1), (completions == only).any(1))


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_the_samplers_own_log_probabilities(tmp_path, monkeypatch, mode):
    """pi_old / pi_sampler multiplies each token's advantage: with it, the loss is -sum of A_t w_t ratio_t / tokens."""
    ids = build_tokenizer()(TEXTS * 2)["input_ids"]
    random = torch.Generator().manual_seed(0)
    given(monkeypatch, [torch.rand(len(row), generator=random).mul(1.6).sub(4.4).tolist() for row in ids])
    seen = outputs_of(monkeypatch)
    original = OARTrainer._generate_and_score_completions

    def with_vllm(self, inputs):
        self.use_vllm, self._last_loaded_step = True, self.state.global_step
        return original(self, inputs)

    monkeypatch.setattr(OARTrainer, "_generate_and_score_completions", with_vllm)
    settings = dict(
        credit_marker="ans", vllm_importance_sampling_mode=mode, loss_type="dapo", learning_rate=0.0
    )
    run = train(tmp_path, steps=1, credit="oar-p", **settings)
    output = seen[0]
    mask, most = output["completion_mask"].bool(), run.args.vllm_importance_sampling_clip_max
    nats = (output["old_per_token_logps"] - output["sampling_per_token_logps"]) * mask
    if mode.startswith("sequence"):
        nats = nats.sum(1, keepdim=True).expand(mask.shape)
    ratio = nats.exp()
    ratio = ratio.clamp(max=most) if mode.endswith("truncate") else torch.where(ratio > most, 0.0, ratio)
    assert ratio[mask].std() > 0.1 and output["advantages"].shape == mask.shape
    expected = -(output["advantages"] * ratio)[mask].sum() / mask.sum()
    assert losses(run)[0] == pytest.approx(expected.item(), rel=1e-4)
