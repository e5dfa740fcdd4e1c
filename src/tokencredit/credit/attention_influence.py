"""Attention influence: tokens that later ones look back at from afar get more of the advantage (arXiv 2510.13554)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokencredit.credit.base import Credit
from tokencredit.credit.mass import mean_one
from tokencredit.credit.options import Options

if TYPE_CHECKING:
    from tokencredit.layout import Batch
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


def attention_influence(policy: Policy, rollouts: Rollouts, options: Options) -> Credit:
    """w_t = amplification on the tokens of largest influence, 1 on the others, rescaled to mean 1 over the reasoning.

        I_t = mean over the global heads h and the later completion tokens s of A_h[s, t]

    A is the attention probability; prompt tokens take their part of it, but have no influence. The global heads are
    the `global_heads` = 30% of all layers' heads that look back farthest in the completion, by the mean over its tokens
    s of sum_t A_h[s, t] (s - t). Amplified, by `amplification` = 1.5, are the `amplified_share` = 40% of the reasoning
    tokens with the largest I_t. Published are the average attention that a token receives from later ones in globally
    focused heads, and that such anchor tokens are amplified; that all later tokens count alike, what makes a head
    global, the numbers and the rescaling are our reading. The paper's other two forms, for tokens that look far back
    themselves and for both together, are not here.
    """

    def importance(batch: Batch) -> Tensor:
        heads = [_Heads() for _ in range(batch.size)]
        policy.watch(batch, lambda row, *seen: heads[row].add(*seen))
        found = torch.zeros(batch.reasoning.shape, dtype=torch.float64, device=batch.ids.device)
        for row, own in enumerate(heads):
            influence = own.influence(options.global_heads)[: found.shape[1]]  # a probe may come after it
            found[row, : influence.numel()] = influence
        return torch.where(batch.reasoning, found, 0.0)

    mask = rollouts.reasoning_mask
    values = policy.map(rollouts, "answer_kl", importance)
    weights = torch.where(_largest(values, mask, options.amplified_share), options.amplification, 1.0)
    return Credit(importance=values, weights=mean_one(weights.to(values), mask))


class _Heads:
    """What each head of each layer does in one completion of n tokens, summed over its tokens.

    Attributes:
        received: by layer, (H, n) what each token receives from later ones.
        distance: by layer, (H,) how far back tokens look, in tokens.
    """

    def __init__(self) -> None:
        self.received: dict[int, Tensor] = {}
        self.distance: dict[int, Tensor] = {}

    def add(self, layer: int, places: Tensor, attention: Tensor) -> None:
        """The attention (H, m, n) of the m tokens at some places to all n."""
        back = (places[:, None] - torch.arange(attention.shape[2], device=places.device)).clamp(min=0)
        attention = attention.double()
        received = (attention * (back > 0)).sum(1)
        distance = (attention * back).sum((1, 2))
        self.received[layer] = self.received.get(layer, 0.0) + received
        self.distance[layer] = self.distance.get(layer, 0.0) + distance

    def influence(self, share: float) -> Tensor:
        """(n,) the mean attention that each token receives from a later one in the share of heads that look back
        farthest."""
        if not self.received:
            return torch.zeros(0)
        received, distance = torch.cat(list(self.received.values())), torch.cat(list(self.distance.values()))
        count = max(1, math.ceil(share * distance.numel()))
        farthest = distance.argsort(descending=True, stable=True)[:count]
        later = torch.arange(received.shape[1] - 1, -1, -1, device=received.device)
        return received[farthest].mean(0) / later.clamp(min=1)


def _largest(values: Tensor, mask: Tensor, share: float) -> Tensor:
    """(B, T) bool, the share of each row's masked tokens with the largest values, at least one, and those equal."""
    ordered = values.masked_fill(~mask, -torch.inf).sort(dim=1, descending=True).values
    count = (share * mask.sum(dim=1, keepdim=True)).ceil().long().clamp(min=1)
    least = ordered.gather(1, (count - 1).clamp(max=values.shape[1] - 1)) if values.numel() else ordered
    return mask & (values >= least)
