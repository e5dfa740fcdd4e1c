"""How much each later token hangs on an earlier one: measured for all pairs, or asked for from the answer backwards.

The place of a token is that of its prediction among the columns that the batch reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.options import Options
from tokencredit.credit.outcome import Outcome, divergence
from tokencredit.credit.perturbation import counterfactuals, replacement

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.passes import Clean
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

_TARGETS = 64  # of a source that are kept where all are measured, the strongest
_CREDITED = 0.05  # a token with less credit asks for no sources of its own


@dataclass(frozen=True)
class Links:
    """L links, each from a source to a later target: rows, sources and targets (L,), strengths (L,) float64, nats."""

    rows: Tensor
    sources: Tensor
    targets: Tensor
    strengths: Tensor


@dataclass(frozen=True)
class Sources:
    """The N reasoning tokens of a batch: rows, tokens and places (N,), and the ids (N,) that replace them."""

    rows: Tensor
    tokens: Tensor
    places: Tensor
    new_ids: Tensor


def sources_of(policy: Policy, rollouts: Rollouts, batch: Batch, clean: Clean, options: Options) -> Sources:
    """With the counterfactual of the options, by default a similar token."""
    rows, tokens = batch.reasoning.nonzero(as_tuple=True)
    places = batch.columns[rows, tokens] - 1 - batch.read_from
    kind = options.counterfactual or "similar"
    if kind == "pad":
        return Sources(
            rows, tokens, places, counterfactuals(policy, rollouts, options)[batch.rows[rows], tokens]
        )
    ids = rollouts.completion_ids[batch.rows[rows], tokens]
    return Sources(rows, tokens, places, replacement(policy, kind, clean.outcome.logits[rows, places], ids))


def focused(moved: Tensor, total: Tensor, focus: float) -> Tensor:
    """M (M / its source's total)^focus, from the nats M that a source's replacement moves each target by."""
    return moved * (moved / torch.where(total > 0, total, 1.0)) ** focus


def all_links(policy: Policy, batch: Batch, clean: Clean, sources: Sources, focus: float) -> Links:
    """Every source replaced, all that follows computed anew. The 64 strongest links of each are kept."""
    width = batch.read_mask.shape[1]
    kept = min(_TARGETS, width)
    size = (sources.rows.numel(), kept)
    targets = torch.zeros(size, dtype=torch.long, device=sources.rows.device)
    strengths = torch.zeros(size, dtype=torch.float64, device=sources.rows.device)
    for found in policy.predictions(batch, clean, sources.rows, sources.tokens, sources.new_ids):
        before = clean.outcome.logits[sources.rows[found.edits][found.places], found.columns]
        moved = strengths.new_zeros(found.edits.numel(), width)
        moved[found.places, found.columns] = _divergence(before, found.logits)
        links = focused(moved, moved.sum(dim=1, keepdim=True), focus)
        strengths[found.edits], targets[found.edits] = links.topk(kept, dim=1)
    source, edge = strengths.nonzero(as_tuple=True)
    return Links(sources.rows[source], sources.places[source], targets[source, edge], strengths[source, edge])


def asked_links(
    policy: Policy,
    batch: Batch,
    clean: Clean,
    sources: Sources,
    influence: Tensor,
    options: Options,
    credit: Callable[[Links], Tensor],
) -> Links:
    """The links that lead to the answer, asked for from there.

    A token with credit asks for the m reasoning tokens that its prediction attends to most. Each is replaced, and the
    positions that asked for it are computed anew, and one more: the one that attends to it most, for a replacement that
    upsets that too is about no single target. Those that get credit by it ask in turn.

    Args:
        influence: (b, n, n), how much token s attends to token t, see `Policy.kept`.
        credit: links -> (b, K), the credit that they hand on.
    """
    width = batch.read_mask.shape[1]
    attended = _attended(batch, sources, influence)
    measured, moved = sources.rows.new_zeros(0), clean.outcome.logits.new_zeros(0, dtype=torch.float64)
    asked = torch.zeros_like(batch.read_mask)
    while True:
        source, target = measured // width, measured % width
        total = moved.new_zeros(sources.rows.numel()).index_add(0, source, moved)
        strengths = focused(moved, total[source], options.focus)
        links = Links(sources.rows[source], sources.places[source], target, strengths)
        asking = (credit(links) > _CREDITED) & ~asked
        asked |= asking
        wanted = _wanted(asking, sources, attended, options.m)
        wanted = wanted[~torch.isin(wanted, measured)]
        if not policy.any(bool(wanted.numel())):
            return links
        new = wanted[~torch.isin(wanted // width, source)] // width
        wanted = torch.cat([wanted, _most_attending(new.unique(), sources, attended)]).unique()
        edited, anew = _edits(wanted, sources, width)
        rows, tokens, new_ids = (x[edited] for x in (sources.rows, sources.tokens, sources.new_ids))
        for found in policy.predictions(batch, clean, rows, tokens, new_ids, anew):
            source = edited[found.edits][found.places]
            before = clean.outcome.logits[sources.rows[source], found.columns]
            pairs, nats = source * width + found.columns, _divergence(before, found.logits)
            fresh = ~torch.isin(pairs, measured)
            measured, moved = torch.cat([measured, pairs[fresh]]), torch.cat([moved, nats[fresh]])


def _attended(batch: Batch, sources: Sources, influence: Tensor) -> Tensor:
    """(b, K, K) how much the position that predicts one place attends to the source at another; -1 for no source before
    it, and where nothing is read."""
    width, size = batch.read_mask.shape[1], influence.shape[1]
    places = torch.arange(width, device=influence.device)
    # The position that predicts place k is that of completion token k + shift.
    at = places + (batch.read_from - batch.columns[:, :1])
    rows = torch.arange(batch.size, device=influence.device)[:, None, None]
    inside = at.clamp(0, max(size - 1, 0))
    found = influence[rows, inside[:, :, None], (at + 1).clamp(0, max(size - 1, 0))[:, None]]
    is_source = torch.zeros_like(batch.read_mask)
    is_source[sources.rows, sources.places] = True
    earlier = places < places[:, None]
    return found.masked_fill(~(earlier & is_source[:, None] & batch.read_mask[:, :, None]), -1.0)


def _wanted(asking: Tensor, sources: Sources, attended: Tensor, m: int) -> Tensor:
    """Pairs source * K + target, for the m sources that each asking place attends to most."""
    width = asking.shape[1]
    number = torch.zeros_like(asking, dtype=torch.long)
    number[sources.rows, sources.places] = torch.arange(sources.rows.numel(), device=number.device)
    rows, targets = asking.nonzero(as_tuple=True)
    most = attended[rows, targets].topk(min(m, width), dim=1)
    pairs = number[rows[:, None], most.indices] * width + targets[:, None]
    return pairs[~(most.values < 0)]  # NaN is asked for too, and shows in the credit


def _most_attending(chosen: Tensor, sources: Sources, attended: Tensor) -> Tensor:
    """Pairs source * K + target, for the place beyond its own position that attends to each chosen source most."""
    width = attended.shape[1]
    rows, places = sources.rows[chosen], sources.places[chosen]
    scores = attended[rows, :, places]
    own = torch.arange(width, device=places.device) == places[:, None] + 1
    most = scores.masked_fill(own, -1.0).max(dim=1)
    return (chosen * width + most.indices)[most.values >= 0]


def _edits(pairs: Tensor, sources: Sources, width: int) -> tuple[Tensor, Tensor]:
    """The sources (n,) of ascending pairs, each once, and (n, E) their targets beyond the source's own position."""
    edited, of_edit = (pairs // width).unique_consecutive(return_inverse=True)
    beyond = pairs % width != sources.places[edited[of_edit]] + 1
    of_edit, targets = of_edit[beyond], pairs[beyond] % width
    counts = of_edit.bincount(minlength=edited.numel())
    slots = torch.arange(of_edit.numel(), device=pairs.device) - (counts.cumsum(0) - counts)[of_edit]
    anew = pairs.new_full((edited.numel(), max(counts.tolist(), default=0)), -1)
    anew[of_edit, slots] = targets
    return edited, anew


def _divergence(clean: Tensor, changed: Tensor) -> Tensor:
    """KL(p0 || p) of each prediction, from logits (r, V): (r,) float64, nats."""
    mask = torch.ones(clean.shape[0], 1, dtype=torch.bool, device=clean.device)
    none = torch.full_like(mask, -1, dtype=torch.long)
    before, after = (Outcome(logits[:, None], mask, none) for logits in (clean, changed))
    return divergence(before, after, "answer_kl").clamp(min=0)
