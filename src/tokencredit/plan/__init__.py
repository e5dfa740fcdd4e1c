"""What a training step will take: memory, passes and time of each part, from a model's config and the flags alone.

`ModelShape` and `Settings` go in, a `Plan` comes out. `docs/plan.md` states every formula and what it assumes.
"""

from tokencredit.plan.advice import advise
from tokencredit.plan.settings import Machine, Settings
from tokencredit.plan.shape import ModelShape, shape_of
from tokencredit.plan.step import Part, Plan, plan_step, strategies

__all__ = [
    "Machine",
    "ModelShape",
    "Part",
    "Plan",
    "Settings",
    "advise",
    "plan_step",
    "shape_of",
    "strategies",
]
