"""One number a token out of whatever form a strategy's credit has."""

from __future__ import annotations

import torch
from torch import Tensor

from tokencredit.credit import TokenCredit


def magnitude(credit: TokenCredit) -> Tensor:
    """How much credit falls on each token, whatever its sign, (B, T).

    The importance, where the strategy measures one; else w + |b|.
    """
    measured = (credit.importance != 0).any(dim=1, keepdim=True)
    return torch.where(measured, credit.importance, credit.weights + credit.bonus.abs())


def blame(credit: TokenCredit) -> Tensor:
    """How much a token of a failed completion is blamed, (B, T): w - b, its token advantage -w + b turned round."""
    return credit.weights - credit.bonus
