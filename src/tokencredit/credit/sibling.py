"""Sibling potential: after which step a failed completion can no longer end as a successful one of its group does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.options import Options
from tokencredit.credit.steps import (
    Steps,
    aligned,
    on_tokens,
    root_mean_square,
    similarity,
    steps_of,
    thinned,
)

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

CLIP = 3.0


@dataclass(frozen=True)
class Potentials:
    """What is left of a success after each step, by failed row: phi_0, ..., phi_n (1 + n,) float64 in [0, 1], and the
    places after each of the n steps."""

    phi: dict[int, Tensor]
    ends: dict[int, list[int]]


@dataclass(frozen=True)
class Question:
    """Is what the sibling says after its first `place` tokens as likely after the failed row's first `end`?

    It is asked of step `step` of row `row`; `number` counts the row's siblings.
    """

    row: int
    step: int
    end: int
    number: int
    sibling: int
    place: int


def sibling(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """A bonus on the steps of failed completions: was a sibling's success still within reach after them?

    With phi_k of `sibling_potentials` after step k:

        c_k = 2 phi_k - phi_{k-1}:  alive 1, the step that dies -1, dead 0
        b_t = coefficient * clip(c_k / rms(c), -3, 3)  on the tokens of step k

    rms is over all c of the generation batch, of all ranks. Successes have no bonus.
    """
    found = sibling_potentials(policy, rollouts, options)
    c = {row: 2 * phi[1:] - phi[:-1] for row, phi in found.phi.items()}
    rms = root_mean_square(policy, rollouts, list(c.values()))
    b = {row: options.coefficient * (values / rms).clamp(-CLIP, CLIP) for row, values in c.items()}
    return Credit(bonus=on_tokens(rollouts, b, found.ends))


def sibling_potentials(policy: Policy, rollouts: Rollouts, options: Options) -> Potentials:
    """phi_k of each failed completion with a successful sibling.

    With x_{<=k} the failed completion up to step k, y a successful one of the same prompt, and y_{>k} what y says after
    the steps that correspond to these (`steps.aligned`):

        phi_k = max over j >= k of min(1, p(y_{>j} | x_{<=j}) / p(y_{>j} | y_{<=j})),  phi_0 = 1

    because what is still within reach later was so before, however unlike y the failure began. It is the mean or the
    largest (`sibling_over`) over the `siblings` successes that are most like x. A completion failed if its advantage is
    below 0 and succeeded if it is above. Of more than `most_steps` steps neighbours count as one.
    """
    assert rollouts.advantages is not None
    judged = (rollouts.advantages != 0).nonzero().squeeze(1).tolist()
    steps = {row: steps_of(rollouts, row) for row in judged}
    families = _families(rollouts, steps, options.siblings)
    ends: dict[int, list[int]] = {}
    phi: dict[int, Tensor] = {}
    for row, siblings in families.items():
        own = steps[row].ends
        ends[row] = [own[step] for step in thinned(len(own), options.most_steps)]
        phi[row] = torch.ones(len(siblings), 1 + len(ends[row]), dtype=torch.float64)
    asked = list(_questions(rollouts, steps, families, ends))
    for question, ratio in zip(asked, _ratios(policy, rollouts, asked), strict=True):
        phi[question.row][question.number, 1 + question.step] = 1.0 if ratio > 1 else ratio  # NaN stays
    phi = {row: each.flip(1).cummax(1).values.flip(1) for row, each in phi.items()}
    largest = options.sibling_over == "max"
    return Potentials({row: each.amax(0) if largest else each.mean(0) for row, each in phi.items()}, ends)


def _families(rollouts: Rollouts, steps: dict[int, Steps], most: int) -> dict[int, list[int]]:
    """The successes that are most like each failed row, `most` at most; rows that have none are left out."""
    assert rollouts.advantages is not None and rollouts.groups is not None
    advantages, groups = rollouts.advantages.tolist(), rollouts.groups.tolist()
    ids, bags = rollouts.completion_ids.tolist(), {row: own.bag for row, own in steps.items()}
    families: dict[int, list[int]] = {}
    for row in (row for row, own in steps.items() if advantages[row] < 0 and own.ends):
        won = [s for s in steps if groups[s] == groups[row] and advantages[s] > 0 and steps[s].ends]
        # Where two are equally like it, their tokens decide: the order of rows must not.
        ranked = sorted((-similarity(bags[row], bags[s]), ids[s], s) for s in won)
        if ranked:
            families[row] = [s for _, _, s in ranked[:most]]
    return families


def _questions(
    rollouts: Rollouts, steps: dict[int, Steps], families: dict[int, list[int]], ends: dict[int, list[int]]
) -> Iterator[Question]:
    """One for each step's end and sibling, but where both say the same up to there: the ratio is 1."""
    ids = rollouts.completion_ids.tolist()
    for row, siblings in families.items():
        for number, other in enumerate(siblings):
            said = dict(zip(steps[row].ends, aligned(steps[row].bags, steps[other].bags), strict=True))
            for step, end in enumerate(ends[row]):
                place = ([0, *steps[other].ends])[said[end]]
                if ids[row][:end] != ids[other][:place]:
                    yield Question(row, step, end, number, other, place)


def _ratios(policy: Policy, rollouts: Rollouts, asked: list[Question]) -> list[float]:
    """p(text | the failed row's prefix) / p(text | its own prefix); log-probabilities are summed in float64."""
    device = rollouts.completion_ids.device
    table = [(q.row, q.end, q.sibling, q.place) for q in asked]
    rows, ends, siblings, places = torch.tensor(table, dtype=torch.long, device=device).view(-1, 4).unbind(1)
    sizes = rollouts.completion_mask.sum(1)[siblings] - places
    if policy.known_positions is not None:  # a failed completion may be the longer one
        room = policy.known_positions + 1 - rollouts.prompt_mask.sum(1)[rows] - ends
        sizes = torch.minimum(sizes, room.clamp(min=0))
    offsets = torch.arange(int(sizes.max()) if asked else 0, device=device)
    within = offsets < sizes[:, None]
    tokens = (places[:, None] + offsets).clamp(max=rollouts.shape[1] - 1)
    texts = rollouts.completion_ids[siblings[:, None], tokens].masked_fill(~within, -1)
    some = sizes > 0
    used = siblings.unique()
    own = torch.zeros(rollouts.shape, dtype=torch.float64, device=device)
    own[used] = policy.token_logps(rollouts.select(used)).double()
    here, there = torch.zeros_like(within, dtype=torch.float64), own[siblings[:, None], tokens] * within
    here[some] = policy.continued(rollouts, rows[some], ends[some], texts[some])
    ratios: list[float] = (here - there).sum(1).exp().tolist()
    return ratios
