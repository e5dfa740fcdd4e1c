"""Does the outcome move with the tokens that a strategy names? Deletion and insertion curves.

After the deletion and insertion games of RISE (Petsiuk et al. 2018, arXiv 1806.07421), with the counterfactual tokens
and the divergences of OAR in place of masked pixels and class scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokencredit.credit import Options
from tokencredit.credit.keys import keyed_generator
from tokencredit.credit.outcome import divergence
from tokencredit.credit.perturbation import counterfactuals
from tokencredit.layout import Batch, take
from tokencredit.passes import Clean
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


def causal_curves(
    policy: Policy, rollouts: Rollouts, rankings: Sequence[Tensor], options: Options
) -> list[Curves]:
    """Replaces the top tokens by their counterfactuals, then all but them, at each of `LEVELS`.

    Answers stay as they are: it is the prediction of the completion's own answer that moves. Rankings that replace the
    same tokens of a completion share the pass.

    Args:
        rankings: scores (B, T) each, higher first; ties are ordered by draws keyed by (seed, row).
        options: `outcome` (default `answer_kl`: all positions of the answer count) and `counterfactual` are read.

    Returns:
        the curves of each ranking.
    """
    mask = rollouts.reasoning_mask
    mode = options.outcome or OUTCOME
    places = torch.stack([order(scores, rollouts, options.seed) for scores in rankings])
    counts = _counts(mask)
    replacements = counterfactuals(policy, rollouts, options)
    moved = torch.full((2, len(rankings), *counts.shape), torch.nan, dtype=torch.float64)

    def measure(batch: Batch) -> Tensor:
        rows = batch.rows
        top = (places[:, rows, None] < counts[rows, :, None]) & mask[rows, None]  # (rankings, b, L, T)
        games = torch.stack([top, mask[rows, None] & ~top])
        row_of, edited, version = _distinct(games)
        clean = policy.clean(batch)
        distances = torch.zeros(len(row_of), dtype=torch.float64)
        for part in _parts(policy, batch, clean, row_of, edited):
            versions = take(batch, row_of[part])
            changed = policy.clean(_edited(versions, edited[part], replacements[versions.rows])).outcome
            found = divergence(clean.outcome.select(row_of[part]), changed, mode).abs()
            distances[part.cpu()] = found.cpu()
        moved[:, :, rows.cpu()] = distances[version.cpu()]
        return torch.zeros(batch.reasoning.shape, dtype=policy.dtype, device=batch.ids.device)

    policy.map(rollouts, mode, measure)
    shares = (counts / mask.sum(dim=1, keepdim=True).clamp(min=1)).double().cpu()
    return [Curves(shares, deletion, insertion) for deletion, insertion in zip(*moved, strict=True)]


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


def _distinct(games: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each edited version of a row once.

    Args:
        games: (..., b, L, T) bool, which tokens are replaced.

    Returns:
        the row (N,) of each distinct version, in ascending order, its replaced tokens (N, T), and which version each of
        the games is, (..., b, L).
    """
    *_, count, levels, width = games.shape
    row = torch.arange(count, device=games.device)[:, None, None].expand(count, levels, 1)
    table = torch.cat([row.expand(*games.shape[:-1], 1), games.long()], dim=-1)
    distinct, version = torch.unique(table.view(-1, width + 1), dim=0, return_inverse=True)
    return distinct[:, 0], distinct[:, 1:].bool(), version.view(games.shape[:-1])


def _parts(policy: Policy, batch: Batch, clean: Clean, row_of: Tensor, edited: Tensor) -> Iterator[Tensor]:
    """Which versions share a pass: as many as its budget holds. Versions that replace nothing are left out.

    Packed rows with the same prompt run it once a pass, so that it counts once.
    """
    rows, lengths = row_of.tolist(), batch.mask.sum(dim=1).tolist()
    limit = policy.token_budget * LOGITS_PER_TOKEN // clean.outcome.logits[0].numel()
    limit = max(1, limit if policy.max_rows is None else min(limit, policy.max_rows))

    def size(version: int, before: int | None) -> int:
        row = rows[version]
        if not clean.prompts:
            return batch.ids.shape[1]
        prompt = clean.prompts[row]
        ran = before is not None and clean.prompts[rows[before]] is prompt
        return int(lengths[row]) - (prompt.size if ran else 0)

    part: list[int] = []
    tokens = 0
    for version in edited.any(dim=1).nonzero().squeeze(1).tolist():
        more = size(version, part[-1] if part else None)
        if part and (tokens + more > policy.token_budget or len(part) == limit):
            yield torch.tensor(part, device=row_of.device)
            part, tokens, more = [], 0, size(version, None)
        part.append(version)
        tokens += more
    if part:
        yield torch.tensor(part, device=row_of.device)


def _edited(batch: Batch, edited: Tensor, replacements: Tensor) -> Batch:
    """The batch with the edited completion tokens, (b, T) bool, replaced."""
    rows, tokens = edited.nonzero(as_tuple=True)
    ids = batch.ids.clone()
    ids[rows, batch.columns[rows, tokens]] = replacements[rows, tokens]
    return replace(batch, ids=ids)
