"""Counterfactual span masking: how much less likely the answer is without a step (arXiv 2602.09331)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.mass import mean_one
from tokencredit.credit.options import Options
from tokencredit.credit.outcome import Outcome, answer_log_prob, log_distribution
from tokencredit.credit.perturbation import counterfactuals
from tokencredit.credit.steps import ends_of, on_tokens

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def span_masking(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """Weights from the drop in the answer's probability when a step is masked.

    For each step k, all of whose reasoning tokens are replaced by the counterfactual (the pad token):

        I_k = max(0, p(answer) - p(answer | step k masked))
        w_t = floor + (1 - floor) I_k / max_j I_j  on the tokens of step k, rescaled to mean 1

    with the completion's own answer, or the most probable token after a probe without an answer, and all weights 1
    where no step makes a difference. Of more than `most_steps` steps neighbours count as one. Masking by placeholders
    and the drop as importance are published; the spans there are arithmetic, intermediate results and sentences, and
    how a drop becomes a weight, floor (0.1) included, is our reading.
    """
    starts, new_ids, ends = _spans(rollouts, counterfactuals(policy, rollouts, options), options.most_steps)
    asked = (new_ids >= 0).any(dim=2)
    drops = torch.zeros(asked.shape, dtype=torch.float64, device=asked.device)

    def measure(batch: Batch) -> Tensor:
        index, span = asked[batch.rows].nonzero(as_tuple=True)
        rows = batch.rows[index]
        for part, clean, changed in policy.perturbed(batch, index, starts[rows, span], new_ids[rows, span]):
            drops[rows[part], span[part]] = _probability_drop(clean, changed).clamp(min=0)
        return torch.zeros(batch.reasoning.shape, dtype=policy.dtype, device=batch.ids.device)

    policy.map(rollouts, "answer_joint", measure)
    own = {row: values[: len(ends[row])].cpu() for row, values in enumerate(drops)}
    importance = on_tokens(rollouts, own, ends)
    largest = importance.amax(dim=1, keepdim=True)
    relative = importance / torch.where(largest > 0, largest, 1.0)
    weights = torch.where(largest > 0, options.floor + (1 - options.floor) * relative, 1.0)
    return Credit(importance=importance, weights=mean_one(weights, rollouts.reasoning_mask))


def _spans(
    rollouts: Rollouts, replacements: Tensor, most: int
) -> tuple[Tensor, Tensor, dict[int, list[int]]]:
    """Where each row's spans start (B, K), what takes the place of their tokens (B, K, L), -1 where nothing does, and
    where they end."""
    ends = {row: ends_of(rollouts, row, most) for row in range(rollouts.shape[0])}
    count = max(map(len, ends.values()), default=0)
    sizes = [end - start for own in ends.values() for start, end in zip([0, *own], own, strict=False)]
    device = replacements.device
    starts = torch.zeros(len(ends), count, dtype=torch.long, device=device)
    new_ids = torch.full((len(ends), count, max(sizes, default=1)), -1, dtype=torch.long, device=device)
    masked = torch.where(rollouts.reasoning_mask, replacements, -1)
    for row, own in ends.items():
        for span, (start, end) in enumerate(zip([0, *own], own, strict=False)):
            starts[row, span] = start
            new_ids[row, span, : end - start] = masked[row, start:end]
    return starts, new_ids, ends


def _probability_drop(clean: Outcome, changed: Outcome) -> Tensor:
    """p0(answer) - p(answer), (n,) float64, with the product over the answer's tokens."""
    targets = torch.where(clean.targets < 0, clean.logits.argmax(-1), clean.targets)
    probabilities = []
    for outcome in (clean, changed):
        log_p, mask = log_distribution(outcome, "answer_kl")
        probabilities.append(answer_log_prob(log_p, mask, targets.expand(log_p.shape[:2])).exp())
    return probabilities[0] - probabilities[1]
