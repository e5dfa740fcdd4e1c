"""Does the outcome move with the tokens that a strategy names? Deletion and insertion curves.

After the deletion and insertion games of RISE (Petsiuk et al. 2018, arXiv 1806.07421), with the counterfactual tokens
and the divergences of OAR in place of masked pixels and class scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokencredit.credit import Options
from tokencredit.credit.keys import keyed_generator
from tokencredit.credit.outcome import Outcome, divergence
from tokencredit.credit.perturbation import counterfactuals
from tokencredit.layout import Batch, take
from tokencredit.policy import LOGITS_PER_TOKEN, Policy
from tokencredit.rollouts import Rollouts

LEVELS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Shares of a completion's reasoning tokens."""
OUTCOME = "answer_kl"
_TIES = -1  # in the place of a draw, so that the order of ties shares no numbers with a strategy's own


@dataclass(frozen=True)
class Curves:
    """How far the outcome moves, nats, (B, L) float64; NaN in rows without an outcome.

    Attributes:
        shares: the share of the reasoning tokens that each of the L levels is, in whole tokens.
        deletion: with the top tokens replaced together.
        insertion: with all reasoning tokens but these replaced.
    """

    shares: Tensor
    deletion: Tensor
    insertion: Tensor

    @property
    def areas(self) -> tuple[Tensor, Tensor]:
        """(B,) each, nats: the areas under deletion and insertion, by trapezoids. A good ranking has a large first and
        a small second."""
        return torch.trapezoid(self.deletion, self.shares), torch.trapezoid(self.insertion, self.shares)


def causal_curves(policy: Policy, rollouts: Rollouts, scores: Tensor, options: Options) -> Curves:
    """Replaces the top tokens by their counterfactuals, then all but them, at each of `LEVELS`.

    Answers stay as they are: it is the prediction of the completion's own answer that moves.

    Args:
        scores: (B, T), higher first; ties are ordered by draws keyed by (seed, row).
        options: `outcome` (default `answer_kl`: all positions of the answer count) and `counterfactual` are read.
    """
    mask = rollouts.reasoning_mask
    mode = options.outcome or OUTCOME
    places = order(scores, rollouts, options.seed)
    counts = _counts(mask)
    replacements = counterfactuals(policy, rollouts, options)
    deletion = torch.full(counts.shape, torch.nan, dtype=torch.float64)
    insertion = deletion.clone()

    def measure(batch: Batch) -> Tensor:
        rows = batch.rows
        clean = policy.clean(batch).outcome
        games = []  # where the distances go, and which tokens are replaced
        for level in range(counts.shape[1]):
            chosen = (places[rows] < counts[rows, level, None]) & mask[rows]
            games += [(deletion, level, chosen), (insertion, level, mask[rows] & ~chosen)]
        for found, level, _ in games:
            found[rows.cpu(), level] = 0.0
        games = [game for game in games if game[2].any()]
        size = _versions(policy, batch, clean)
        for start in range(0, len(games), size):
            part = games[start : start + size]
            index = torch.arange(batch.size, device=rows.device).repeat(len(part))
            versions = take(batch, index)
            edited = _edited(
                versions, torch.cat([tokens for *_, tokens in part]), replacements[versions.rows]
            )
            moved = divergence(clean.select(index), policy.clean(edited).outcome, mode).abs().cpu()
            for (found, level, _), values in zip(part, moved.split(batch.size), strict=True):
                found[rows.cpu(), level] = values
        return torch.zeros(batch.reasoning.shape, dtype=policy.dtype, device=batch.ids.device)

    policy.map(rollouts, mode, measure)
    shares = (counts / mask.sum(dim=1, keepdim=True).clamp(min=1)).double().cpu()
    return Curves(shares, deletion, insertion)


def order(scores: Tensor, rollouts: Rollouts, seed: int) -> Tensor:
    """(B, T) the place of each reasoning token when the highest score comes first, from 0; meaningless elsewhere."""
    places = torch.zeros(scores.shape, dtype=torch.long)
    keys = rollouts.row_keys
    assert keys is not None
    for row, key in enumerate(keys.tolist()):
        tokens = rollouts.reasoning_mask[row].cpu()
        values = scores[row].cpu()[tokens]
        shuffled = torch.randperm(values.numel(), generator=keyed_generator(seed, 0, _TIES, key))
        ranked = shuffled[values[shuffled].argsort(descending=True, stable=True)]
        own = torch.empty_like(ranked)
        own[ranked] = torch.arange(ranked.numel())
        places[row, tokens] = own
    return places.to(scores.device)


def _counts(mask: Tensor) -> Tensor:
    """(B, L) how many tokens each level is: at least one above level 0."""
    levels = torch.tensor(LEVELS, dtype=torch.float64, device=mask.device)
    totals = mask.sum(dim=1, keepdim=True)
    counts = (levels * totals).round().long()
    return torch.where(levels > 0, counts.clamp(min=1), counts).minimum(totals)


def _versions(policy: Policy, batch: Batch, clean: Outcome) -> int:
    """How many edited versions of the batch one pass may hold: their prompts are run once where rows are packed."""
    tokens, logits = batch.ids.numel(), clean.logits.numel()
    budget, rows = policy.token_budget, policy.max_rows or batch.size * 2 * len(LEVELS)
    return max(1, min(budget // tokens, budget * LOGITS_PER_TOKEN // logits, rows // batch.size))


def _edited(batch: Batch, edited: Tensor, replacements: Tensor) -> Batch:
    """The batch with the edited completion tokens, (b, T) bool, replaced."""
    rows, tokens = edited.nonzero(as_tuple=True)
    ids = batch.ids.clone()
    ids[rows, batch.columns[rows, tokens]] = replacements[rows, tokens]
    return replace(batch, ids=ids)
