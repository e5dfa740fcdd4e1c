"""OAR-G: how far the outcome would move, from one gradient to the input embeddings (arXiv 2601.07408, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.keys import keyed_generator
from tokencredit.credit.options import Options
from tokencredit.credit.outcome import Outcome, answer_log_prob, divergence, log_distribution
from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def oar_g(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t = |sum_h dJ/de_{t,h} e_{t,h}|, with e the token's input embedding.

    gradient = `noise` (published, the default but in half precision): J = D(clean, noisy), the embeddings of the
    reasoning tokens shifted by Gaussian noise, because the gradient of D vanishes at the clean embeddings; averaged
    over draws.
    gradient = `labels`: no noise and one forward. J_j = p0(y_j) log p(y_j) for the top labels y_j of the outcome
    p0, or log p(y_j) / n for n labels drawn from p0; importances are summed over labels. Where the outcome has several
    positions, each position has its own j-th label and J_j sums over them; for `answer_joint` the label is the answer.
    saliency = `norm` takes the gradient's norm in place of its product with the embedding.
    """
    mode = options.outcome or "answer_mean"
    noisy = (options.gradient or ("labels" if policy.half_precision else "noise")) == "noise"
    if noisy and mode != "answer_joint" and options.noise_std == 0:
        raise UsageError("noise_std is 0, but without noise the gradient of a KL is 0; use gradient='labels'")
    keys = rollouts.row_keys
    assert keys is not None

    def importance(batch: Batch) -> Tensor:
        row_keys = keys[batch.rows].tolist()
        total: Tensor | float = 0.0
        if noisy:
            clean = policy.clean(batch)
            for draw in range(options.draws):
                noise = _noise(batch, policy, row_keys, draw, options)
                shifted, leaf = policy.differentiable_outcome(batch, clean, noise)
                objective = divergence(clean.outcome, shifted, mode) / options.draws
                total = total + _saliency(objective, leaf.embeddings, options, keep_graph=False)
        else:
            outcome, leaf = policy.differentiable_outcome(batch)
            for objective, last in _label_objectives(outcome, mode, row_keys, options):
                total = total + _saliency(objective, leaf.embeddings, options, keep_graph=not last)
        assert isinstance(total, Tensor)
        return torch.where(batch.reasoning, total[leaf.places], 0.0)

    return Credit(importance=policy.map(rollouts, mode, importance))


def _saliency(objective: Tensor, embeddings: Tensor, options: Options, keep_graph: bool) -> Tensor:
    """|gradient . embedding| or |gradient|, (N,). Rows don't interact, so one backward serves them all."""
    (gradient,) = torch.autograd.grad(objective.sum(), embeddings, retain_graph=keep_graph)
    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    if options.saliency == "norm":
        return gradient.norm(dim=-1)
    return (gradient * embeddings.detach()).sum(-1).abs()


def _noise(batch: Batch, policy: Policy, row_keys: list[int], draw: int, options: Options) -> Tensor:
    """(n, H) Gaussian noise for the reasoning tokens, the same for a row whatever batch it is in."""
    counts = batch.reasoning.sum(1).tolist()
    noise = [torch.zeros(0, policy.embedding_width)]
    for key, count in zip(row_keys, counts, strict=True):
        generator = keyed_generator(options.seed, options.step, draw, key)
        noise.append(torch.randn(count, policy.embedding_width, generator=generator))
    return torch.cat(noise).to(batch.ids.device, policy.dtype) * options.noise_std


def _label_objectives(
    outcome: Outcome, mode: str, row_keys: list[int], options: Options
) -> Iterator[tuple[Tensor, bool]]:
    """The objectives J_j, (b,) each, and whether each is the last."""
    log_p, weights = log_distribution(outcome, mode)
    if mode == "answer_joint":
        targets = torch.where(outcome.targets < 0, outcome.logits.argmax(-1), outcome.targets)
        yield answer_log_prob(log_p, weights, targets), True
        return
    p0 = log_p.detach().exp()
    if options.labels_from == "top":
        probability, labels = p0.topk(min(options.labels, p0.shape[-1]), dim=-1)  # (b, K, J)
    else:
        labels = _sampled_labels(p0, row_keys, options)
        probability = torch.full_like(labels, 1 / options.labels, dtype=p0.dtype)
    count = labels.shape[-1]
    for index in range(count):
        picked = log_p.gather(-1, labels[..., index, None]).squeeze(-1)
        yield (weights * probability[..., index] * picked).sum(1), index == count - 1


def _sampled_labels(p0: Tensor, row_keys: list[int], options: Options) -> Tensor:
    """(b, K, labels) ids drawn from p0; a position's draws don't depend on how many positions follow it."""
    labels = torch.empty(*p0.shape[:2], options.labels, dtype=torch.long)
    for index, key in enumerate(row_keys):
        for draw in range(options.labels):
            generator = keyed_generator(options.seed, options.step, draw, key)
            uniform = torch.rand(p0.shape[1], generator=generator, dtype=torch.float64)
            cumulative = p0[index].cpu().cumsum(-1)
            drawn = torch.searchsorted(cumulative, (uniform[:, None] * cumulative[:, -1:])).squeeze(1)
            labels[index, :, draw] = drawn.clamp(max=p0.shape[-1] - 1)
    return labels.to(p0.device)
