"""How many problems does a model solve, and is one model better than another?

Completions come from lm-evaluation-harness (the extra ``eval``), verdicts from `tokencredit.answers`, numbers from the
pure functions here. Only ``harness`` imports the harness, so that everything else works without it.
"""

from __future__ import annotations

from tokencredit.evaluation.metrics import Estimate, majority_at, pass_at, summarise
from tokencredit.evaluation.paired import Difference, difference

__all__ = ["Difference", "Estimate", "difference", "majority_at", "pass_at", "summarise"]
