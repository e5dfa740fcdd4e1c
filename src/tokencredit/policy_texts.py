"""The part of a policy that puts texts after the first tokens of completions: given ones, or ones that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tokencredit.calling import Caller
from tokencredit.continuations import (
    Continuations,
    clean_row,
    distinct_continuations,
    packed_logps,
    target_logps,
    whole_row,
)
from tokencredit.errors import UsageError
from tokencredit.layout import Batch, RowPlan
from tokencredit.passes import Budget, Clean, PackedRows, Passes
from tokencredit.ranks import Ranks
from tokencredit.rollouts import Rollouts
from tokencredit.sampling import Draws, Samples, end_ids, packed_samples, whole_samples

Plans = Callable[[Rollouts, int], RowPlan]


class PolicyTexts:
    """What `Policy` adds to this: its model, and how rows fall into passes."""

    _caller: Caller
    _ranks: Ranks
    clean: Callable[[Batch], Clean]
    _passes: Callable[[], Passes]
    _budget: Callable[[], Budget]
    _batches: Callable[
        [Rollouts, list[int], Plans, Callable[[Batch], Tensor]], Iterator[tuple[Batch, Tensor]]
    ]
    _refuse_unknown: Callable[[list[int]], None]
    _refuse_long: Callable[[int], None]

    def continued(self, rollouts: Rollouts, rows: Tensor, cuts: Tensor, ids: Tensor) -> Tensor:
        """The log-probability of each token of given texts, put after the first tokens of completions.

        Args:
            rows, cuts: (N,) text n comes after the first cuts[n] completion tokens of row rows[n].
            ids: (N, L) the texts, of at least one token each, padded on the right with -1.

        Returns:
            (N, L) float64, nats, 0 off the texts. The same text after the same tokens is run once.

        Raises:
            UsageError: an id that the model's embedding doesn't know, or a row beyond its table of positions.
        """
        self._check(rollouts, Continuations(rows, cuts, ids), 1)
        asked, which = distinct_continuations(rollouts, Continuations(rows, cuts, ids))
        found = torch.zeros(asked.ids.shape, dtype=torch.float64, device=ids.device)

        def packed(passes: PackedRows, batch: Batch, own: Continuations, mine: Tensor) -> None:
            found[mine] = packed_logps(passes, batch, own, self._budget())

        def whole(batch: Batch) -> Tensor:
            values = target_logps(self.clean(batch).outcome)
            found[batch.rows, : values.shape[1]] = values
            return values

        if not self._packed(rollouts, asked, packed):
            plans = partial(whole_row, cuts=asked.cuts.tolist(), texts=asked.ids.tolist())
            every = list(range(asked.rows.numel()))
            for _ in self._batches(rollouts.select(asked.rows), every, plans, whole):
                pass
        return found[which]

    def sampled(
        self,
        rollouts: Rollouts,
        rows: Tensor,
        cuts: Tensor,
        ids: Tensor,
        uniforms: Tensor,
        temperature: float = 1.0,
    ) -> Samples:
        """Texts that the policy writes after the first tokens of completions and a given text.

        Args:
            rows, cuts: (N,) after the first cuts[n] completion tokens of row rows[n],
            ids: (N, L) and after this text, padded on the right with -1; it may have no token.
            uniforms: (N, D, S) float64 random numbers in [0, 1), for D texts of S tokens at most.
            temperature: of the draws, above 0.

        Returns:
            the texts. They end with the model's own end token, or where its table of positions does.

        Raises:
            UsageError: the model is in pieces over ranks, which would have to write texts of equal length; or as for
                `continued`.
        """
        if self._caller.sharded:
            raise UsageError(
                f"credit that samples from the policy does not work while {type(self._caller.model).__name__} is in "
                "pieces over ranks (FSDP, ZeRO-3); use another strategy, or a whole model on each rank"
            )
        asked = Continuations(rows, cuts, ids)
        lengths = self._check(rollouts, asked, 0)
        most, known = uniforms.shape[2], self._caller.known_positions
        room = torch.full_like(rows, most) if known is None else (known - lengths + 1).clamp(max=most)
        ends = torch.tensor(end_ids(self._caller), dtype=torch.long, device=rows.device)
        draws = Draws(uniforms, temperature, room, ends)
        found = draws.blank()

        def packed(passes: PackedRows, batch: Batch, own: Continuations, mine: Tensor) -> None:
            written = packed_samples(passes, batch, own, draws.select(mine), self._budget())
            found.ids[mine], found.entropies[mine] = written.ids, written.entropies

        if not rows.numel() and not self._ranks.together:
            return found
        if self._packed(rollouts, asked, packed):
            return found
        return whole_samples(draws, partial(self._next_logits, rollouts, asked), self._ranks.any)

    def _next_logits(
        self, rollouts: Rollouts, asked: Continuations, prefixes: list[int], written: list[list[int]]
    ) -> Tensor:
        """(n, V) after each prefix, its text and what has been written after it."""
        texts = [
            [*(token for token in asked.ids[prefix].tolist() if token >= 0), *more]
            for prefix, more in zip(prefixes, written, strict=True)
        ]
        chosen = torch.tensor(prefixes, dtype=torch.long, device=asked.rows.device)
        cuts = asked.cuts[chosen].tolist()
        found = torch.zeros(len(texts), self._caller.vocabulary, dtype=torch.float64, device=chosen.device)

        def plans(some: Rollouts, row: int) -> RowPlan:
            before = clean_row(some, row, cuts)
            ids = [*before.ids, *texts[row]]
            return RowPlan(ids, before.completion_start, [len(ids) - 1], [-1])

        def read(batch: Batch) -> Tensor:
            logits = self.clean(batch).outcome.logits[:, 0]
            found[batch.rows] = logits.double()
            return logits

        for _ in self._batches(rollouts.select(asked.rows[chosen]), list(range(len(texts))), plans, read):
            pass
        return found

    def _check(self, rollouts: Rollouts, asked: Continuations, unread: int) -> Tensor:
        """(N,) how many tokens each row has, its last `unread` ones left out."""
        self._refuse_unknown(asked.ids[asked.ids >= 0].unique().tolist())
        lengths = rollouts.prompt_mask.sum(1)[asked.rows] + asked.cuts + (asked.ids >= 0).sum(1) - unread
        self._refuse_long(max(lengths.tolist(), default=0))
        return lengths

    def _packed(
        self,
        rollouts: Rollouts,
        asked: Continuations,
        function: Callable[[PackedRows, Batch, Continuations, Tensor], None],
    ) -> bool:
        """Runs the function on packed batches of clean rows, with what is asked of them and which of all that is (n,);
        False where the model cannot be packed."""
        if not isinstance(self._passes(), PackedRows):
            return False

        def packed(batch: Batch) -> Tensor:
            passes = self._passes()
            assert isinstance(passes, PackedRows)
            mine, place = torch.isin(asked.rows, batch.rows).nonzero().squeeze(1), batch.rows.argsort()
            local = torch.searchsorted(batch.rows[place], asked.rows[mine])
            function(passes, batch, replace(asked.select(mine), rows=place[local]), mine)
            return batch.rows

        last = rollouts.completion_mask.new_zeros(rollouts.shape[0], dtype=torch.long)
        last = last.scatter_reduce(0, asked.rows, asked.cuts, "amax")
        plans = partial(clean_row, cuts=last.tolist())
        for _ in self._batches(rollouts, asked.rows.unique().tolist(), plans, packed):
            pass
        return True
