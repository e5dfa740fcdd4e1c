"""Rankings that a strategy has to beat to say anything."""

from __future__ import annotations

BASELINES = ("position", "random", "entropy", "uniform")
"""In every table: the place of a token, chance, what the policy is unsure of, and plain GRPO."""
COMPARED = ("random", "position")
"""Whose areas are taken off the others'."""
