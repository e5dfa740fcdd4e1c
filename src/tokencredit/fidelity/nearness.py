"""How near one credit comes to another, completion by completion."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr
from torch import Tensor

from tokencredit.credit import TokenCredit
from tokencredit.fidelity.ranking import Figures, Vector, top
from tokencredit.fidelity.scores import magnitude

TOP = 0.1


def agreement(found: TokenCredit, reference: TokenCredit, mask: Tensor) -> list[Figures]:
    """Figures of each row.

    Args:
        found, reference: credit of the same rollouts.
        mask: (B, T) bool, the reasoning tokens.

    Returns:
        a dictionary a row, with

        - `spearman`: rank correlation of the importances (`scores.magnitude`); None where one of them is constant or
          not finite;
        - `top_overlap`: the share that the top tenths of the tokens have in common, expected over random orders of
          ties; None where an importance is not finite;
        - `mean_dw`: mean |w - w'| of the weights;
        - `same_side`: the share of tokens on the same side of the gate's threshold.
    """
    first, second = magnitude(found), magnitude(reference)
    sides = [credit.boosted.long() - credit.suppressed.long() for credit in (found, reference)]
    rows: list[Figures] = []
    for row, tokens in enumerate(mask):
        if not tokens.any():
            rows.append(dict.fromkeys(("spearman", "top_overlap", "mean_dw", "same_side")))
            continue
        weights = (found.weights[row] - reference.weights[row])[tokens].abs().mean()
        same = (sides[0][row] == sides[1][row])[tokens].double().mean()
        ranks = _ranks(first[row, tokens].double().cpu().numpy(), second[row, tokens].double().cpu().numpy())
        rows.append({**ranks, "mean_dw": float(weights), "same_side": float(same)})
    return rows


def _ranks(found: Vector, reference: Vector) -> Figures:
    if not (np.isfinite(found).all() and np.isfinite(reference).all()):
        return {"spearman": None, "top_overlap": None}
    constant = np.ptp(found) == 0 or np.ptp(reference) == 0
    k = max(1, round(TOP * len(found)))
    return {
        "spearman": None if constant else float(spearmanr(found, reference).statistic),
        "top_overlap": float((top(found, k) * top(reference, k)).sum() / k),
    }
