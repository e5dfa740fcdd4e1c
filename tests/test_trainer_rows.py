"""Rows that something is amiss with, or that a sampler other than the model wrote."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from trl import GRPOTrainer

from test_trl import losses, outputs_of, train
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


def test_a_row_with_broken_logits(tmp_path, monkeypatch):
    """It keeps its sequence's advantage, a counter counts it, and one warning says so."""
    ids = given(monkeypatch)
    seen = outputs_of(monkeypatch)
    only = build_tokenizer()("8")["input_ids"][0]  # in two rows of eight
    assert sum(only in row for row in ids) == 2
    model = build_model(0)
    model.get_input_embeddings().register_forward_hook(
        lambda _module, args, output: output.masked_fill((args[0] == only)[..., None], torch.nan)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run = train(tmp_path, steps=2, model=model, credit="oar-p", credit_marker="ans", learning_rate=0.0)
    assert sum("NaN or infinite" in str(warning.message) for warning in caught) == 1
    assert run.state.log_history[0]["credit/not_finite"] == 2
    advantages = seen[0]["advantages"]
    assert advantages.isfinite().all() and (advantages[3] == advantages[3, 0]).all()
    assert not (advantages[2] == advantages[2, 0]).all()


def test_the_samplers_own_log_probabilities(tmp_path, monkeypatch):
    """pi_old / pi_sampler multiplies each token's advantage: with it, the loss is -sum of A_t w_t ratio_t / tokens."""
    ids = build_tokenizer()(TEXTS * 2)["input_ids"]
    random = torch.Generator().manual_seed(0)
    given(monkeypatch, [torch.rand(len(row), generator=random).mul(-6).tolist() for row in ids])
    seen = outputs_of(monkeypatch)
    original = OARTrainer._generate_and_score_completions

    def with_vllm(self, inputs):
        self.use_vllm, self._last_loaded_step = True, self.state.global_step
        return original(self, inputs)

    monkeypatch.setattr(OARTrainer, "_generate_and_score_completions", with_vllm)
    settings = dict(credit_marker="ans", vllm_importance_sampling_mode="token_truncate", loss_type="dapo")
    run = train(tmp_path, steps=1, credit="oar-p", learning_rate=0.0, **settings)
    output = seen[0]
    mask = output["completion_mask"].bool()
    ratio = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).exp()
    ratio = ratio.clamp(
        min=run.args.vllm_importance_sampling_clip_min, max=run.args.vllm_importance_sampling_clip_max
    )
    assert ratio[mask].std() > 0.1 and output["advantages"].shape == mask.shape
    expected = -(output["advantages"] * ratio)[mask].sum() / mask.sum()
    assert losses(run)[0] == pytest.approx(expected.item(), rel=1e-4)
