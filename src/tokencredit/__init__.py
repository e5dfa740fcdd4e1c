"""Token-level credit for reinforcement learning of language models: which tokens earned this reward?

The training classes are in `tokencredit.trl`; everything here works on plain tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

__version__ = "0.1.0"

_HOMES = {
    "Rollouts": "rollouts",
    "UsageError": "errors",
    "bilevel_gate": "credit.gate",
    "token_advantages": "functional",
    "token_importance": "functional",
    "token_weights": "functional",
}


def __getattr__(name: str) -> Any:
    """Names load when asked for: `tokencredit --help` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'tokencredit' has no attribute {name!r}")
    return getattr(import_module(f"tokencredit.{_HOMES.get(name, 'credit')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
