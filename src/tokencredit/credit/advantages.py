"""Group-relative advantages, the starting point of GRPO (arXiv 2402.03300, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokencredit.errors import UsageError

SCALES = ("group", "batch", "none")


def group_advantages(
    rewards: Tensor | Sequence[float | None],
    groups: Tensor | int,
    scale: str = "group",
    eps: float = 1e-4,
    training: bool = True,
) -> Tensor:
    """A_i = (r_i - mean of its group) / (std + eps), with the sample standard deviation (n - 1).

    Computed in float64 with a two-pass variance, so that rewards which differ in the fifth digit still count.

    Args:
        rewards: (B,) rewards; None or NaN is a completion that could not be judged: it leaves its group's mean and
            std, and its advantage is 0.
        groups: (B,) integers, equal within a group, or one integer: the size of consecutive groups.
        scale: std of the `group`, of the whole `batch`, or `none` for no division.
        eps: added to the std, in units of the reward.
        training: a group of one completion carries no signal: an error in training, 0 in evaluation.

    Returns:
        (B,) float64. A group (with `batch`, a group too) whose rewards are all equal gets exactly 0.

    Raises:
        UsageError: unknown scale, groups that don't divide the batch, an infinite reward, or a group of one in
            training.
    """
    if scale not in SCALES:
        raise UsageError(f"scale must be one of {', '.join(SCALES)}, not {scale!r}")
    if not isinstance(rewards, Tensor):
        judged_or_nan = [float("nan") if reward is None else reward for reward in rewards]
        rewards = torch.tensor(judged_or_nan, dtype=torch.float64)
    values = rewards.to(torch.float64)
    if values.isinf().any():
        raise UsageError(
            f"reward {int(values.isinf().nonzero()[0])} is infinite; give a finite number or None"
        )
    labels = _group_labels(groups, values)
    judged = ~values.isnan()
    advantages = torch.zeros_like(values)
    batch_std = _sample_std(values[judged])
    for label in labels.unique():
        members = labels == label
        if training and int(members.sum()) == 1:
            raise UsageError(
                "a group of one completion has no advantage; use at least 2 generations a prompt"
            )
        scored = members & judged
        group = values[scored]
        if group.numel() < 2 or bool((group == group[0]).all()):
            continue
        centred = group - group.mean()
        std = {"group": _sample_std(group), "batch": batch_std, "none": None}[scale]
        advantages[scored] = centred if std is None else centred / (std + eps)
    return advantages


def _group_labels(groups: Tensor | int, values: Tensor) -> Tensor:
    if isinstance(groups, int):
        if groups < 1 or values.numel() % groups:
            raise UsageError(f"{values.numel()} rewards don't divide into groups of {groups}")
        return torch.arange(values.numel(), device=values.device) // groups
    if groups.shape != values.shape:
        raise UsageError(f"groups has shape {tuple(groups.shape)}, rewards {tuple(values.shape)}")
    return groups.to(values.device)


def _sample_std(values: Tensor) -> Tensor:
    """Two passes: the mean, then the squared distances from it."""
    if values.numel() < 2:
        return values.new_zeros(())
    return ((values - values.mean()).square().sum() / (values.numel() - 1)).sqrt()
