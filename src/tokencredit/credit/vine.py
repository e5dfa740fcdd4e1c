"""Monte-Carlo step values in the manner of VinePPO (arXiv 2410.01679): the costly reference for step credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.keys import step_uniforms
from tokencredit.credit.options import Options
from tokencredit.credit.steps import ends_of, on_tokens, root_mean_square

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def vine(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """A bonus that turns A_i into what each step adds to the value, in units of the batch's root mean square.

        b_t = (V_k - V_{k-1}) / rms - A_i  on the tokens of step k

    with V_k of `step_values` and rms over all differences of the generation batch, of all ranks. VinePPO is PPO without
    a critic: its advantage of a step is that difference; it has no group to compare with, and A_i is not used. Answer
    and marker keep A_i. Of more than `most_steps` steps neighbours count as one.
    """
    assert rollouts.advantages is not None
    rows = rollouts.reasoning_mask.any(dim=1).nonzero().squeeze(1).tolist()
    ends = {row: ends_of(rollouts, row, options.most_steps) for row in rows}
    gains = {row: values.diff() for row, values in step_values(policy, rollouts, ends, options).items()}
    rms = root_mean_square(policy, rollouts, list(gains.values()))
    advantages = on_tokens(rollouts, {row: own / rms for row, own in gains.items()}, ends)
    replaced = rollouts.advantages.double()[:, None] * rollouts.reasoning_mask
    return Credit(bonus=advantages - replaced)


def step_values(
    policy: Policy, rollouts: Rollouts, ends: dict[int, list[int]], options: Options
) -> dict[int, Tensor]:
    """V_0, ..., V_n: the mean reward of `continuations` = 9 completions that go on from the prompt and from each of the
    n ends of some rows, (1 + n,) float64 each.

    They are drawn at temperature 1, `continuation_tokens` = 64 tokens at most, and graded by `rollouts.grader`; those
    that it cannot judge are left out. Draws are keyed by (seed, step, number of the step, row).
    """
    assert rollouts.grader is not None and rollouts.row_keys is not None
    keys, device = rollouts.row_keys.tolist(), rollouts.completion_ids.device
    places = [(row, end) for row, own in ends.items() for end in (0, *own)]
    rows, cuts = torch.tensor(places, dtype=torch.long, device=device).view(-1, 2).unbind(1)
    numbers = [(keys[row], number) for row, own in ends.items() for number in range(1 + len(own))]
    count = options.continuations
    uniforms = step_uniforms(numbers, count, options.continuation_tokens, options).to(device)
    nothing = rollouts.completion_ids.new_empty(len(places), 0)
    written = policy.sampled(rollouts, rows, cuts, nothing, uniforms).ids.tolist()
    completions = [
        [*rollouts.completion_ids[row, :end].tolist(), *(token for token in text if token >= 0)]
        for (row, end), texts in zip(places, written, strict=True)
        for text in texts
    ]
    asked = [keys[row] for row, _ in places for _ in range(count)]
    rewards = [torch.nan if reward is None else reward for reward in rollouts.grader(asked, completions)]
    values = torch.tensor(rewards, dtype=torch.float64).view(-1, count).nanmean(dim=1)
    return dict(zip(ends, values.split([1 + len(own) for own in ends.values()]), strict=True))
