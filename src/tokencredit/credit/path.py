"""Path credit: how much of the answer hangs on a token, through all that was written in between.

OAR-P holds later tokens fixed, so that on a chain of steps the last result screens off the earlier ones. Here every
later token is a target too, and credit goes back from target to source, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.mass import mean_one
from tokencredit.credit.options import Options
from tokencredit.credit.outcome import Outcome, divergence
from tokencredit.credit.perturbation import counterfactuals, replacement

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

_TARGETS = 64  # of a source that are kept, the strongest
_HALF = 0.1  # the importance at which half of the way from the floor to 1 is gone


def path(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """I_t = c_t, the strength of the strongest path from reasoning token t to the answer, in [0, 1].

    M[t, s] is the KL divergence, in nats, of the prediction of a later token s, of the reasoning or of the answer,
    when token t is replaced by another of its kind. What counts of it is the part that is about s alone, for an edit
    that upsets everything tells little about any one token:

        L[t, s] = M[t, s] (M[t, s] / sum_s' M[t, s'])^focus

    A target hands its credit to its sources, by their strength beside the strongest; kappa nats leak to the prompt:

        c_s = 1 on the answer;    c_t = max_s c_s L[t, s] / (max_t' L[t', s] + kappa),    from last to first

    The weight is a function of the value, not of the rank: w_t = floor + (1 - floor) c_t / (c_t + 0.1), rescaled to
    mean 1 over the reasoning. With m > 0 the targets of t are the tokens that follow t, the m positions that attend
    most to t and the end of the reasoning; all others count as unmoved.
    """

    def importance(batch: Batch) -> Tensor:
        links, answer = _links(policy, rollouts, batch, options)
        credit = strongest_paths(links, answer, options.kappa)
        found = torch.zeros(batch.reasoning.shape, dtype=credit.dtype, device=credit.device)
        found[batch.reasoning] = credit[links.rows, links.sources]
        return found

    # Of a row without an answer's tokens the outcome is what the probe asks for.
    values = policy.map(rollouts, "answer_kl", importance, reasoning=True)
    weights = value_gate(values, rollouts.reasoning_mask, options.floor, options.mass)
    return Credit(importance=values, weights=weights)


@dataclass(frozen=True)
class Links:
    """The strongest links from N sources, in nats: rows and sources (N,), targets and strengths (N, E).

    Sources and targets are places in a row, a target later than its source; a strength of 0 is no link.
    """

    rows: Tensor
    sources: Tensor
    targets: Tensor
    strengths: Tensor


def strongest_paths(links: Links, answer: Tensor, kappa: float) -> Tensor:
    """c (b, K) from the places of the answer (b, K), bool."""
    credit = answer.double().flatten()
    width = answer.shape[1]
    linked, edge = links.strengths.nonzero(as_tuple=True)
    strength, target = links.strengths[linked, edge], links.targets[linked, edge]
    last_first = target.argsort(descending=True, stable=True)
    linked, strength, target = linked[last_first], strength[last_first], target[last_first]
    begin = links.rows[linked] * width
    ends, sources = begin + target, begin + links.sources[linked]
    strongest = torch.zeros_like(credit).scatter_reduce(0, ends, strength, "amax")
    shares = strength / (strongest[ends] + kappa)
    sizes = target.bincount(minlength=width).flip(0).tolist()
    for end, source, share in zip(ends.split(sizes), sources.split(sizes), shares.split(sizes), strict=True):
        if end.numel():
            credit.scatter_reduce_(0, source, share * credit[end], "amax")
    return credit.view_as(answer)


def value_gate(importance: Tensor, mask: Tensor, floor: float, mass: bool) -> Tensor:
    """w = floor + (1 - floor) I / (I + 0.1) where masked, rescaled to mean 1 if mass is kept; 1 elsewhere, (B, T)."""
    values = importance.double()
    weights = floor + (1 - floor) * values / (values + _HALF)
    return mean_one(weights, mask) if mass else torch.where(mask, weights, 1.0)


def _links(policy: Policy, rollouts: Rollouts, batch: Batch, options: Options) -> tuple[Links, Tensor]:
    """The links of a batch, and where its answers are, (b, K). The place of a token is that of its prediction."""
    clean = policy.kept(batch, options.m)
    read = clean.outcome
    rows, tokens = batch.reasoning.nonzero(as_tuple=True)
    sources = batch.columns[rows, tokens] - 1 - batch.read_from
    kind = options.counterfactual or "similar"
    if kind == "pad":
        new_ids = counterfactuals(policy, rollouts, options)[batch.rows[rows], tokens]
    else:
        ids = rollouts.completion_ids[batch.rows[rows], tokens]
        new_ids = replacement(policy, kind, read.logits[rows, sources], ids)
    width = batch.read_mask.shape[1]
    kept = min(_TARGETS, width)
    targets = torch.zeros(rows.numel(), kept, dtype=torch.long, device=rows.device)
    strengths = torch.zeros(rows.numel(), kept, dtype=torch.float64, device=rows.device)
    for found in policy.predictions(batch, clean, rows, tokens, new_ids, options.m):
        before = read.logits[rows[found.edits][found.places], found.columns]
        moved = torch.zeros(found.edits.numel(), width, dtype=torch.float64, device=rows.device)
        moved[found.places, found.columns] = _divergence(before, found.logits)
        links = moved * _shares(moved) ** options.focus
        strengths[found.edits], targets[found.edits] = links.topk(kept, dim=1)
    answer = batch.read_mask.clone()
    answer[rows, sources] = False
    return Links(rows, sources, targets, strengths), answer


def _divergence(clean: Tensor, changed: Tensor) -> Tensor:
    """KL(p0 || p) of each prediction, from logits (r, V): (r,) float64, nats."""
    mask = torch.ones(clean.shape[0], 1, dtype=torch.bool, device=clean.device)
    none = torch.full_like(mask, -1, dtype=torch.long)
    before, after = (Outcome(logits[:, None], mask, none) for logits in (clean, changed))
    return divergence(before, after, "answer_kl").clamp(min=0)


def _shares(moved: Tensor) -> Tensor:
    """Each target's part of what an edit moves, (n, K)."""
    total = moved.sum(dim=1, keepdim=True)
    return moved / torch.where(total > 0, total, 1.0)
