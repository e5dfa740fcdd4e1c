"""The credit of one generation batch, assigned at once or row by row as the rows come up in the loss."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tokencredit.credit import Options, Strategy, TokenCredit, assign
from tokencredit.graph import GraphPolicy
from tokencredit.policy import Policy
from tokencredit.rollouts import Rollouts
from tokencredit.spans import Spans


class KnownPolicy:
    """What `Policy` is to a strategy that is run at the loss (see `Strategy.at_loss`): its log-probabilities there.

    Args:
        rollouts: rows that the log-probabilities are of, recognised by their row keys.
        logps: (B, T) nats.
    """

    in_step = False

    def __init__(self, rollouts: Rollouts, logps: Tensor) -> None:
        assert rollouts.row_keys is not None
        self._row_of = {key: row for row, key in enumerate(rollouts.row_keys.tolist())}
        self._logps = logps
        self.dtype = torch.promote_types(logps.dtype, torch.float32)

    def token_logps(self, rollouts: Rollouts) -> Tensor:
        """As `Policy.token_logps`."""
        assert rollouts.row_keys is not None
        rows = [self._row_of[key] for key in rollouts.row_keys.tolist()]
        return self._logps[rows].to(self.dtype)


@dataclass
class Generation:
    """Rollouts with the credit that their rows have so far.

    Attributes:
        rollouts: the local rows, with advantages.
        spans: of each row.
        options: their `step` keys the generation's random draws.
        credit: weights 1 in rows that are still to come.
        left: how many those are.
        seconds: what credit has taken.
    """

    rollouts: Rollouts
    spans: list[Spans]
    options: Options
    credit: TokenCredit
    left: int
    seconds: float = 0.0

    @classmethod
    def of(cls, rollouts: Rollouts, spans: list[Spans], options: Options, dtype: torch.dtype) -> Generation:
        """A generation of which no row has credit yet."""
        zeros = torch.zeros(rollouts.shape, dtype=dtype, device=rollouts.completion_ids.device)
        no = zeros.bool()
        credit = TokenCredit(
            zeros.clone(),
            torch.ones_like(zeros),
            zeros.clone(),
            no.clone(),
            no.clone(),
            no.any(dim=1),
            no.any(dim=1),
        )
        return cls(rollouts, spans, options, credit, rollouts.shape[0])

    @property
    def probed(self) -> Tensor:
        """(B,) bool: rows in which a probe asks for the answer."""
        mask = self.rollouts.probe_mask
        return torch.zeros_like(self.credit.rows) if mask is None else mask.any(dim=1)

    def assign(self, strategy: Strategy, policy: Policy | GraphPolicy | KnownPolicy, rows: Tensor) -> None:
        """Gives the rows (n,) their credit; of those that came out NaN or infinite `credit.lost` alone tells."""
        # The strategies that run on another policy are those that ask no more of a Policy than it has.
        chosen = self.rollouts.select(rows)
        found = assign(strategy, cast(Policy, policy), chosen, self.options, warns=False)
        for field in dataclasses.fields(TokenCredit):
            getattr(self.credit, field.name)[rows] = getattr(found, field.name)
        self.left -= rows.numel()

    def token_advantages(self, rows: Tensor) -> Tensor:
        """(n, T) float32, detached: A_i w_{i,t} + b_{i,t} of the given rows."""
        assert self.rollouts.advantages is not None
        both = self.credit.token_advantages(self.rollouts.advantages)
        return both[rows].to(torch.float32).detach()
