"""Does a strategy find the tokens that matter?

Against the known truth of the built-in tasks (`figures`, `ranking`), against exact OAR-P and another draw of its own
(`agreement`), and by moving the outcome (`causal`). `run` puts them together.
"""

from __future__ import annotations

from tokencredit.fidelity.agreement import agreement
from tokencredit.fidelity.causal import Curves, causal_curves
from tokencredit.fidelity.ranking import auroc, average_precision, precision_at_positives

__all__ = [
    "Curves",
    "agreement",
    "auroc",
    "average_precision",
    "causal_curves",
    "precision_at_positives",
]
