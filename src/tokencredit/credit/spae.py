"""SPAE: step potentials from short answers that are asked for after each step (arXiv 2601.03823)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.early_answer import questions
from tokencredit.credit.keys import step_uniforms
from tokencredit.credit.options import Options
from tokencredit.credit.steps import ends_of, on_tokens

if TYPE_CHECKING:
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts

SATURATED = 0.9


def spae(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """A bonus that turns A_i into the step-wise advantage A_i f + xi g, normalised over the batch.

    With Phi_k the potential of `step_potentials` after step k and C_k the number of steps before k with Phi > 0.9:

        f_k = 1 - alpha (1 - exp(-C_k)),  g_k = exp(minmax(Phi_k - Phi_{k-1})) - mean,  Phi_0 = 0
        b_t = normalised(A_i f_k + xi g_k) - A_i  on the tokens of step k

    alpha = xi = 0.5. Min and max are over the steps of the generation batch, means and the standard deviation (n - 1)
    over its reasoning tokens, of all ranks. The paper's A is the reward less the group's mean, which scale_rewards none
    gives. Answer and marker keep A_i. Of more than `most_steps` steps neighbours count as one. The public example of
    the probe is under Apache-2.0.
    """
    assert rollouts.advantages is not None
    rows = rollouts.reasoning_mask.any(dim=1).nonzero().squeeze(1).tolist()
    ends = {row: ends_of(rollouts, row, options.most_steps) for row in rows}
    phi = step_potentials(policy, rollouts, ends, options)
    gains = {row: torch.diff(values, prepend=values.new_zeros(1)) for row, values in phi.items()}
    low, high = _extremes(policy, gains, rollouts.completion_ids.device)
    width = high - low if high > low else 1.0
    mask, advantages = rollouts.reasoning_mask, rollouts.advantages.double()[:, None]
    g = on_tokens(rollouts, {row: ((own - low) / width).exp() for row, own in gains.items()}, ends)
    g = g - _mean(policy, g, mask)[0]
    f = on_tokens(rollouts, {row: _damping(own, options.alpha) for row, own in phi.items()}, ends)
    shaped = advantages * f + options.xi * g
    mean, count = _mean(policy, shaped, mask)
    variance = _mean(policy, (shaped - mean).square(), mask)[0] * count / max(count - 1, 1)
    return Credit(bonus=((shaped - mean) / (variance + 1e-8) ** 0.5 - advantages) * mask)


def step_potentials(
    policy: Policy, rollouts: Rollouts, ends: dict[int, list[int]], options: Options
) -> dict[int, Tensor]:
    """Phi_k = 1.5 Acc Conf + 0.5 Acc - Conf after each of the ends of some rows, (n,) float64 in [-1, 1].

    After the step and the text that asks for the answer: Acc is the mean over the right answer's tokens of their
    probability given those before; Conf the mean over `samples` = 5 texts of `sample_tokens` = 10 tokens at most, drawn
    at `sample_temperature` = 0.6, of exp(-mean entropy). Draws are keyed by (seed, step, number of the step, row).
    """
    assert rollouts.ask_ids is not None and rollouts.row_keys is not None
    pairs = [(row, end) for row, own in ends.items() for end in own]
    device = rollouts.completion_ids.device
    rows, cuts = torch.tensor(pairs, dtype=torch.long, device=device).view(-1, 2).unbind(1)
    texts, gold = questions(rollouts)
    p = policy.continued(rollouts, rows, cuts, texts[rows]).exp() * gold[rows]
    accuracy = p.sum(1) / gold[rows].sum(1).clamp(min=1)
    keys = rollouts.row_keys.tolist()
    numbers = [(keys[row], number) for row, own in ends.items() for number in range(len(own))]
    uniforms = step_uniforms(numbers, options.samples, options.sample_tokens, options).to(device)
    written = policy.sampled(
        rollouts, rows, cuts, rollouts.ask_ids[rows], uniforms, options.sample_temperature
    )
    sizes = (written.ids >= 0).sum(2).clamp(min=1)
    confidence = (-written.entropies.sum(2) / sizes).exp().mean(1)
    phi = (1.5 * accuracy * confidence + 0.5 * accuracy - confidence).cpu()
    return dict(zip(ends, phi.split([len(own) for own in ends.values()]), strict=True))


def _damping(phi: Tensor, alpha: float) -> Tensor:
    """f of each step, (n,): less than 1 once the answer was there."""
    there = (phi > SATURATED).double()
    return 1 - alpha * (1 - (-(there.cumsum(0) - there)).exp())


def _extremes(policy: Policy, values: dict[int, Tensor], device: torch.device) -> tuple[float, float]:
    """The least and the largest of the values that are finite, of all ranks; 0 without any."""
    every = torch.cat([torch.zeros(0, dtype=torch.float64), *values.values()])
    every = every[every.isfinite()]
    ends = (
        torch.stack([-every.min(), every.max()]) if every.numel() else torch.full((2,), -torch.inf).double()
    )
    low, high = policy.largest(ends.to(device)).tolist()
    return (-low, high) if high >= -low else (0.0, 0.0)


def _mean(policy: Policy, values: Tensor, mask: Tensor) -> tuple[float, float]:
    """Mean over the mask where finite, of all ranks, and how many that are."""
    kept = values[mask & values.isfinite()].double()
    count = torch.tensor(float(kept.numel()), dtype=torch.float64, device=values.device)
    total, number = policy.total(torch.stack([kept.sum(), count])).tolist()
    return total / max(number, 1.0), number
