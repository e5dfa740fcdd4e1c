"""Token-level credit for reinforcement learning of language models: which tokens earned this reward?

The training classes are in `tokencredit.trl`; everything here works on plain tensors.
"""

from __future__ import annotations

from tokencredit.credit import STRATEGIES, Credit, Options, Strategy, group_advantages
from tokencredit.credit.gate import bilevel_gate
from tokencredit.errors import UsageError
from tokencredit.functional import token_advantages, token_importance, token_weights
from tokencredit.rollouts import Rollouts

__all__ = [
    "STRATEGIES",
    "Credit",
    "Options",
    "Rollouts",
    "Strategy",
    "UsageError",
    "bilevel_gate",
    "group_advantages",
    "token_advantages",
    "token_importance",
    "token_weights",
]
