"""Does a strategy find the tokens that matter?

Against the known truth of the built-in tasks (`figures`, `ranking`), against exact OAR-P and another draw of its own
(`nearness`), and by moving the outcome (`causal`). `run` puts them together, batch by batch (`plan`, `batch`); `store`
is what a measurement leaves, `tables` and `page` how it is shown.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokencredit.fidelity.causal import Curves, causal_curves
    from tokencredit.fidelity.nearness import agreement
    from tokencredit.fidelity.ranking import auroc, average_precision, precision_at_positives

__all__ = [
    "Curves",
    "agreement",
    "auroc",
    "average_precision",
    "causal_curves",
    "precision_at_positives",
]

_HOMES = {"Curves": "causal", "causal_curves": "causal", "agreement": "nearness"}


def __getattr__(name: str) -> Any:
    """Names load when asked for: a page is made from numbers without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'tokencredit.fidelity' has no attribute {name!r}")
    return getattr(import_module(f"tokencredit.fidelity.{_HOMES.get(name, 'ranking')}"), name)
