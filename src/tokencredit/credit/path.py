"""Path credit: how much of the answer hangs on a token, through all that was written in between.

OAR-P holds later tokens fixed, so that on a chain of steps the last result screens off the earlier ones. Here every
later token is a target too, and credit goes back from target to source, step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.links import Links, all_links, asked_links, sources_of
from tokencredit.credit.mass import mean_one
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

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
    mean 1 over the reasoning. With m > 0 only links that lead to the answer are measured, from there: each token with
    credit asks for the m tokens that it attends to most, see `asked_links`; where rows can't be packed, all are.
    """

    def importance(batch: Batch) -> Tensor:
        clean, influence = policy.kept(batch, influence=options.m > 0)
        sources = sources_of(policy, rollouts, batch, clean, options)
        answer = batch.read_mask.clone()
        answer[sources.rows, sources.places] = False

        def credit(links: Links) -> Tensor:
            return strongest_paths(links, answer, options.kappa)

        if influence is None:
            links = all_links(policy, batch, clean, sources, options.focus)
        else:
            links = asked_links(policy, batch, clean, sources, influence, options, credit)
        found = torch.zeros(batch.reasoning.shape, dtype=torch.float64, device=answer.device)
        found[batch.reasoning] = credit(links)[sources.rows, sources.places]
        return found

    # Of a row without an answer's tokens the outcome is what the probe asks for.
    values = policy.map(rollouts, "answer_kl", importance, reasoning=True)
    weights = value_gate(values, rollouts.reasoning_mask, options.floor, options.mass)
    return Credit(importance=values, weights=weights)


def strongest_paths(links: Links, answer: Tensor, kappa: float) -> Tensor:
    """c (b, K) of each place, from the places of the answer (b, K), bool."""
    credit = answer.double().flatten()
    width = answer.shape[1]
    last_first = links.targets.argsort(descending=True, stable=True)
    rows, sources, targets, strengths = (
        x[last_first] for x in (links.rows, links.sources, links.targets, links.strengths)
    )
    starts, ends = rows * width + sources, rows * width + targets
    strongest = torch.zeros_like(credit).scatter_reduce(0, ends, strengths, "amax")
    leaked = strongest[ends] + kappa
    shares = strengths / torch.where(leaked > 0, leaked, 1.0)
    sizes = targets.bincount(minlength=width).flip(0).tolist()
    for start, end, share in zip(starts.split(sizes), ends.split(sizes), shares.split(sizes), strict=True):
        if end.numel():
            credit.scatter_reduce_(0, start, share * credit[end], "amax")
    return credit.view_as(answer)


def value_gate(importance: Tensor, mask: Tensor, floor: float, mass: bool) -> Tensor:
    """w = floor + (1 - floor) I / (I + 0.1) where masked, rescaled to mean 1 if mass is kept; 1 elsewhere, (B, T)."""
    values = importance.double()
    weights = floor + (1 - floor) * values / (values + _HALF)
    return mean_one(weights, mask) if mass else torch.where(mask, weights, 1.0)
