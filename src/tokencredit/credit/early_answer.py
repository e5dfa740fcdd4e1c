"""Early-answer potential: how likely the right answer is if it is asked for after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.options import Options
from tokencredit.credit.steps import on_tokens, steps_of, thinned

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def early_answer(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """A baseline for each step, from what the right answer's probability before the step says about the return.

    With Phi_{i,k} = p(right answer | prompt, the first k steps of completion i, a short text that asks for the answer),
    and means over the completions of a group that have a step k + 1:

        d_{i,k} = Phi_{i,k} - mean Phi_k,   r_{i,k} = A_i - mean A
        slope = max(0, sum d r / sum d^2)  over all completions and steps of the generation batch, of all ranks
        b_t = -coefficient * slope * d_{i,k}  on the tokens of step k + 1

    A_i + b_t is then A_i less the advantage that is expected of a completion that begins so: the regression of returns
    on Phi within groups. The slope is clipped at 0, so that a potential which misleads is not used. Completions whose
    advantage is 0 have no bonus. Of more than `most_steps` steps neighbours count as one.
    """
    assert rollouts.advantages is not None and rollouts.groups is not None
    ends: dict[int, list[int]] = {}
    for row in (rollouts.advantages != 0).nonzero().squeeze(1).tolist():
        own = steps_of(rollouts, row).ends
        ends[row] = [own[step] for step in thinned(len(own), options.most_steps)]
    rows = torch.tensor(list(ends), dtype=torch.long, device=rollouts.completion_ids.device)
    groups, advantages = rollouts.groups[rows].cpu(), rollouts.advantages[rows].double().cpu()
    phi = _potentials(policy, rollouts, {row: [0, *own][:-1] for row, own in ends.items()})
    d = _less_mean(phi, groups)
    r = _less_mean(torch.where(phi.isfinite(), advantages[:, None], torch.nan), groups)
    sums = torch.stack([(d * r).nansum(), d.square().nansum()])
    covariance, variance = policy.total(sums.to(rows.device)).tolist()
    slope = max(0.0, covariance / variance) if variance else 0.0
    b = {row: -options.coefficient * slope * own[: len(ends[row])] for row, own in zip(ends, d, strict=True)}
    return Credit(bonus=on_tokens(rollouts, b, ends))


def _potentials(policy: Policy, rollouts: Rollouts, places: dict[int, list[int]]) -> Tensor:
    """p(right answer) asked for after each of the places of some rows, (rows, n) float64, NaN after a row's last."""
    device = rollouts.completion_ids.device
    pairs = [(row, place) for row, own in places.items() for place in own]
    rows, cuts = torch.tensor(pairs, dtype=torch.long, device=device).view(-1, 2).unbind(1)
    texts, gold = questions(rollouts)
    logps = policy.continued(rollouts, rows, cuts, texts[rows])
    found = (logps * gold[rows]).sum(1).exp().cpu()
    table = torch.full(
        (len(places), max(map(len, places.values()), default=0)), torch.nan, dtype=torch.float64
    )
    for own, values in zip(table, found.split([len(own) for own in places.values()]), strict=True):
        own[: len(values)] = values
    return table


def _less_mean(values: Tensor, groups: Tensor) -> Tensor:
    """Each of the values (rows, n) less the mean of its group in its column; NaN stays NaN and counts nowhere."""
    less = values.clone()
    for label in groups.unique():
        less[groups == label] -= values[groups == label].nanmean(dim=0)
    return less


def questions(rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """What is put after a step: the text that asks and the right answer, (B, L) padded with -1; which is the answer."""
    assert rollouts.gold_ids is not None and rollouts.ask_ids is not None
    both = torch.cat([rollouts.ask_ids, rollouts.gold_ids], dim=1)
    is_gold = torch.cat([torch.zeros_like(rollouts.ask_ids), torch.ones_like(rollouts.gold_ids)], dim=1)
    order = (both < 0).long().argsort(dim=1, stable=True)
    texts = both.gather(1, order)
    return texts, is_gold.gather(1, order).bool() & (texts >= 0)
