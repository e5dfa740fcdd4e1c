"""Weights that share out a completion's advantage: as much as there was before."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_one(values: Tensor, mask: Tensor) -> Tensor:
    """The values (B, T) >= 0 scaled to mean 1 over each row's masked tokens; 1 off the mask and in rows of zeros."""
    kept = torch.where(mask, values, 0.0)
    total = kept.sum(dim=1, keepdim=True)
    scaled = kept * (mask.sum(dim=1, keepdim=True) / torch.where(total > 0, total, 1.0))
    return torch.where(mask & (total != 0), scaled, torch.ones_like(scaled))
