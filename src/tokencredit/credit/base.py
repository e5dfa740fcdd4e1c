"""What a strategy is and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from tokencredit.errors import UsageError

if TYPE_CHECKING:
    from tokencredit.credit.options import Options
    from tokencredit.policy import Policy
    from tokencredit.rollouts import Rollouts


NEEDED = {
    "advantages": "the completions' advantages",
    "rewards": "the completions' rewards",
    "groups": "several completions of each prompt",
    "steps": "the reasoning's steps",
    "gold_ids": "the right answers",
    "ask_ids": "a text that asks for the answer",
    "grader": "a grader of other completions",
    "step_verdicts": "verdicts on the reasoning's steps",
    "old_logps": "the log-probabilities under the policy that wrote the completions",
}
"""What strategies may need beyond ids and masks, by the fields of Rollouts."""


@dataclass(frozen=True)
class Credit:
    """A strategy's verdict on each token, (B, T) each; what is absent is implied.

    Attributes:
        importance: >= 0, how much the token moves the outcome; absent: none was measured.
        weights: what multiplies the row's advantage; absent: what the gate makes of the importance.
        bonus: what is added to the token's advantage; absent: 0.
    """

    importance: Tensor | None = None
    weights: Tensor | None = None
    bonus: Tensor | None = None


@dataclass(frozen=True)
class Strategy:
    """A row of the table of strategies.

    Attributes:
        function: (policy, rollouts, options) -> Credit.
        summary: one line for listings.
        additive: gives a bonus, so rows with zero advantage need it too; others never see such rows.
        centred: a bonus is centred by its mean over the reasoning tokens of the rows that carry one.
        needs: further fields of Rollouts that it reads, see `NEEDED`.
        in_graph: can run in the graph of the loss: of the policy it asks `map` and `differentiable_outcome` alone,
            without a clean outcome or noise where its gradient is `labels`.
        at_loss: compares the policy that is trained with the one that wrote the completions: of the policy it asks
            `token_logps` alone, and it is run anew in every loss.
        samples: writes texts with the policy, which a model in pieces over ranks can't.
        m: the option of that name in training, where nobody sets it.
    """

    function: Callable[[Policy, Rollouts, Options], Credit]
    summary: str
    additive: bool = False
    centred: bool = True
    needs: tuple[str, ...] = ()
    in_graph: bool = False
    at_loss: bool = False
    samples: bool = False
    m: int = 8

    def check(self, rollouts: Rollouts) -> None:
        """Refuses rollouts that lack what the strategy reads.

        Raises:
            UsageError: naming what is missing.
        """
        missing = [NEEDED[name] for name in self.needs if getattr(rollouts, name) is None]
        if missing:
            name = getattr(self.function, "__name__", "this strategy").replace("_", "-")
            raise UsageError(
                f"the credit strategy {name} needs {' and '.join(missing)}, which are not known here"
            )
