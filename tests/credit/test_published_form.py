"""OAR-P and OAR-G against the plain, slow version of the published form."""

from __future__ import annotations

import pytest
import torch

import plain
from models import gpt2, llama, ragged, with_probe
from tokencredit import token_importance
from tokencredit.credit.options import COUNTERFACTUALS, OUTCOMES

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Equal relative to each row's largest importance."""
    largest = expected.max(dim=1).values
    error = (found.double() - expected).abs().max(dim=1).values
    assert (largest > 0).sum() >= 4, "most rows must have something to compare"
    assert (error <= tolerance * largest).all(), (error / largest.clamp(min=1e-300)).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mode", OUTCOMES)
@pytest.mark.parametrize("counterfactual", COUNTERFACTUALS)
@pytest.mark.parametrize("build", [llama, gpt2])
def test_oar_p(build, counterfactual, mode, dtype):
    model, rollouts = build(dtype), with_probe(ragged(), [1, 3])
    found = token_importance(
        model,
        rollouts,
        "oar-p",
        outcome=mode,
        counterfactual=counterfactual,
        pad_token_id=2,
        token_budget=100,
    )
    expected = plain.oar_p(model, rollouts, mode, counterfactual, pad=2)
    assert found.dtype == dtype
    assert_close(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("mode", OUTCOMES)
@pytest.mark.parametrize("build", [llama, gpt2])
def test_oar_g_float64(build, mode):
    model, rollouts = build(torch.float64), with_probe(ragged(), [1, 3])
    found = token_importance(
        model, rollouts, "oar-g", outcome=mode, draws=2, seed=3, step=5, token_budget=100
    )
    expected = plain.oar_g(model, rollouts, mode, draws=2, seed=3, step=5)
    assert_close(found, expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize(("noise_std", "tolerance"), [(1.0, 1e-5), (1e-3, 1e-3)])
@pytest.mark.parametrize("mode", OUTCOMES)
def test_oar_g_float32(mode, noise_std, tolerance):
    """Against the plain version in float64, and no worse than the plain version in float32 can be.

    At the published noise of 1e-3 the signal is a difference of nearly equal probabilities, so that any float32
    forward pass leaves a relative error near 1e-4; with noise of 1 that difference is large and 1e-5 holds.
    """
    rollouts = ragged()
    found = token_importance(llama(torch.float32), rollouts, "oar-g", outcome=mode, noise_std=noise_std)
    expected = plain.oar_g(llama(torch.float64), rollouts, mode, noise_std=noise_std)
    assert_close(found, expected, tolerance)


@pytest.mark.parametrize("mode", ["last", "answer_mean", "answer_kl"])
@pytest.mark.parametrize("saliency", ["product", "norm"])
def test_labels_form(mode, saliency):
    """Top-k labels: gradients of each label's log-probability by one plain backward each."""
    model, rollouts = llama(torch.float64), ragged()
    found = token_importance(
        model,
        rollouts,
        "oar-g",
        outcome=mode,
        gradient="labels",
        labels=3,
        saliency=saliency,
        token_budget=100,
    )
    expected = torch.zeros(rollouts.shape, dtype=torch.float64)
    for row in range(rollouts.shape[0]):
        ids, start, where, said = plain.row_parts(rollouts, row)
        if not where:
            continue
        for rank in range(3):
            embeddings = model.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_(True)
            log_p = plain.representation(
                model(inputs_embeds=embeddings).logits[0].double(), where, said, mode
            )
            objective = torch.zeros((), dtype=torch.float64)
            for position in log_p:
                label = int(position.detach().argsort(descending=True)[rank])
                objective = objective + position[label].detach().exp() * position[label]
            objective.backward()
            gradient, embedding = embeddings.grad[0], embeddings[0].detach()
            value = gradient.norm(dim=-1) if saliency == "norm" else (gradient * embedding).sum(-1).abs()
            for token in range(rollouts.shape[1]):
                if rollouts.reasoning_mask[row, token]:
                    expected[row, token] += value[start + token]
    assert_close(found, expected, 1e-9)


def test_sampled_labels_approach_the_expectation():
    """The mean over many labels drawn from p0 comes near the sum over all labels weighted by p0."""
    model, rollouts = llama(torch.float64), ragged()
    options = dict(outcome="last", gradient="labels")
    everything = token_importance(model, rollouts, "oar-g", labels=37, **options)
    sampled = token_importance(model, rollouts, "oar-g", labels=600, labels_from="sample", **options)
    largest = everything.max(dim=1).values
    error = (sampled - everything).abs().max(dim=1).values
    assert (largest > 0).sum() >= 4
    assert (error <= 0.15 * largest).all()


def test_joint_labels_form_is_the_gradient_of_the_answer():
    """With `answer_joint` and no noise the gradient of D is minus that of log p(answer), noise or not."""
    model, rollouts = llama(torch.float64), ragged()
    labels = token_importance(model, rollouts, "oar-g", outcome="answer_joint", gradient="labels")
    noise = token_importance(model, rollouts, "oar-g", outcome="answer_joint", noise_std=0.0)
    assert labels.max() > 0
    torch.testing.assert_close(labels, noise, rtol=1e-12, atol=1e-14)
