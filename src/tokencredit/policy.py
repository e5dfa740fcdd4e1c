"""The policy as attribution needs it: what strategies call.

Attribution reads the model at the few positions that predict the answer. Rows run packed, without padding, where the
model allows it (`passes.PackedRows`), else side by side (`passes.WholeRows`); `calling` is the only module that calls
the model. All passes keep to one budget of tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize

from tokencredit.calling import Caller
from tokencredit.checks import packing_agrees, padding_agrees, refuse_without_gradient
from tokencredit.credit.outcome import Outcome
from tokencredit.edits import Edits
from tokencredit.errors import UsageError
from tokencredit.layout import (
    Batch,
    RowPlan,
    align,
    completion_row,
    empty_batch,
    first_read_row,
    outcome_row,
    reasoning_row,
)
from tokencredit.memory import LEAST_TOKENS, found_budget, ran_out
from tokencredit.passes import (
    Budget,
    Clean,
    Leaf,
    PackedRows,
    Passes,
    Predictions,
    WholeRows,
)
from tokencredit.policy_texts import PolicyTexts
from tokencredit.ranks import Ranks
from tokencredit.rollouts import Rollouts

logger = logging.getLogger(__name__)

LOGITS_PER_TOKEN = 2048  # numbers among a pass's logits, for each token of its budget
READ_LOGITS_PER_TOKEN = 8192  # the same where a pass reads most of its tokens


# Whether a model may run packed rows, and padded ones: found out when first needed.
_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_pads: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_differentiable: WeakSet[nn.Module] = WeakSet()


class Policy(PolicyTexts):
    """A causal language model behind the calls that strategies make.

    Args:
        model: a transformers causal language model, PEFT-wrapped or not.
        token_budget: tokens in one forward pass, at least one row; by default found from the free memory. When memory
            runs out it is halved.
        max_rows: rows in one forward pass, no limit by default.
        half_precision: whether passes compute in bfloat16 or float16; by default as the weights do, or the autocast
            around.
        in_step: run equal numbers of passes on every rank of the default process group, as a model in pieces over ranks
            needs and by default has it; then every rank must make the same calls.

    Raises:
        UsageError: the model has no input embedding module, is tuned by virtual prompt tokens, or was made under
            torch.inference_mode(); a budget that is no whole number from 1 on.
    """

    def __init__(
        self,
        model: nn.Module,
        token_budget: int | None = None,
        max_rows: int | None = None,
        half_precision: bool | None = None,
        in_step: bool | None = None,
    ) -> None:
        for name, limit in (("token_budget", token_budget), ("max_rows", max_rows)):
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise UsageError(f"{name} must be a whole number, at least 1, not {limit!r}")
        self._caller = Caller(model, half_precision)
        self._ranks = Ranks(self._caller.device, self._caller.sharded if in_step is None else in_step)
        self.token_budget = token_budget or found_budget(self._caller)
        self.max_rows = max_rows
        self._halved = False
        self.half_precision = self._caller.half_precision
        self.dtype = self._caller.dtype
        self.embedding_width = self._caller.embedding_width

    @property
    def in_step(self) -> bool:
        """Whether a strategy must be run even where this rank has no rows for it."""
        return self._ranks.together

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on some of the ranks that run in step."""
        return self._ranks.any(flag)

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks that run in step, of tensors of one shape."""
        return self._ranks.total(values)

    def largest(self, values: Tensor) -> Tensor:
        """As `total`, the largest of each entry."""
        return self._ranks.largest(values)

    @property
    def pad_token_id(self) -> int:
        """The model's pad token, 0 if it names none."""
        return getattr(self._caller.config, "pad_token_id", None) or 0

    # --- what strategies call -------------------------------------------------------------------------------------

    def map(
        self, rollouts: Rollouts, outcome: str, function: Callable[[Batch], Tensor], reasoning: bool = False
    ) -> Tensor:
        """What the function makes of the rows with an outcome to read and something to attribute it to.

        Args:
            outcome: the mode that will be read; `last` needs one position only.
            function: batch -> (b, T), for its b rows. When memory runs out it is called again with fewer of them.
            reasoning: read the predictions of the reasoning's tokens too, beside every position of the outcome.

        Returns:
            (B, T), 0 in all other rows.

        Raises:
            UsageError: an id that the model's embedding doesn't know, a row beyond its table of positions, or as
                `align`.
        """
        readable = rollouts.readable.nonzero().squeeze(1).tolist()
        build = first_read_row if outcome == "last" else outcome_row
        build = reasoning_row if reasoning else build
        # Gradients are asked for inside, whatever mode the caller is in.
        with torch.inference_mode(False), torch.enable_grad():
            result = torch.zeros(rollouts.shape, dtype=self.dtype, device=rollouts.completion_ids.device)
            for batch, values in self._batches(rollouts, readable, build, function):
                result[batch.rows] = values.to(result)
        return result

    def clean(self, batch: Batch) -> Clean:
        """The clean outcome of each row, without gradient: `.outcome` has logits (b, K, V)."""
        return self._passes().clean(batch)

    def watch(self, batch: Batch, function: Callable[[int, int, Tensor, Tensor], None]) -> None:
        """Shows the attention among each row's completion tokens, in one pass without gradient.

        Args:
            function: called with the batch's row, the layer, places (m,) of some of the row's n completion tokens, and
                their attention probabilities (H, m, n) to all n; prompt tokens have the rest of it.

        Raises:
            UsageError: the model's attention can't be taken over.
        """
        passes = self._passes()
        if not isinstance(passes, PackedRows):
            raise UsageError(
                f"the attention of {type(self._caller.model).__name__} can't be read, but this credit strategy needs it"
            )
        passes.watched(batch, function)

    def perturbed(
        self, batch: Batch, rows: Tensor, tokens: Tensor, new_ids: Tensor, m: int = 0
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        """The outcome before and after each edit, without gradient, in parts within the budget.

        Args:
            rows, tokens: (N,) of edit n: the batch's row and the first completion token that changes.
            new_ids: (N,) what takes that token's place, or (N, L) what takes the places of L tokens from it on; -1
                leaves a token as it is.
            m: for edits of one token, how many later reasoning positions are computed anew, those that attend most to
                the token; 0: all of them, which is exact. Rows that can't be packed are always exact.

        Yields:
            which edits (n,), and their clean and changed Outcome, (n, K, V) each.

        Raises:
            UsageError: a new id that the model's embedding doesn't know.
        """
        alone = new_ids.dim() == 1
        self._refuse_unknown((new_ids if alone else new_ids[new_ids >= 0]).unique().tolist())
        new_ids = new_ids[:, None] if alone else new_ids
        yield from self._passes().changed(batch, Edits(rows, tokens, new_ids), m, self._budget())

    def kept(self, batch: Batch, influence: bool = False) -> tuple[Clean, Tensor | None]:
        """As `clean`, with what `predictions` build on, and who attends to whom.

        Returns:
            the clean outcome, and how much the completion's token s attends to its token t, (b, n, n), 0 off the row:
            probability times the norm of the value, summed over heads and layers. None if it wasn't asked for or the
            rows can't be packed.
        """
        clean = self._passes().kept(batch, influence)
        if not influence or not isinstance(self._passes(), PackedRows):
            return clean, None
        size = max((segment.size for segment in clean.completions), default=0)
        found = torch.zeros(batch.size, size, size, device=batch.ids.device)
        for row, segment in enumerate(clean.completions):
            assert segment.influence is not None
            found[row, : segment.size, : segment.size] = segment.influence
        return clean, found

    def predictions(
        self,
        batch: Batch,
        clean: Clean,
        rows: Tensor,
        tokens: Tensor,
        new_ids: Tensor,
        anew: Tensor | None = None,
    ) -> Iterator[Predictions]:
        """What is predicted after each edit where it is computed anew, without gradient, in parts within the budget.

        Args:
            batch: of a `map` that reads the reasoning too.
            clean: what `kept` gave for the batch.
            rows, tokens, new_ids: (N,) each, as for `perturbed`.
            anew: (N, E) which columns are computed anew beside the token's own, later ones all, -1 for none, each once;
                the others keep their clean states and aren't predicted from. By default all that follow; where rows
                can't be packed it must be left out.

        Raises:
            UsageError: a new id that the model's embedding doesn't know.
        """
        self._refuse_unknown(new_ids.unique().tolist())
        edits = Edits(rows, tokens, new_ids[:, None])
        budget = replace(self._budget(), logits=self.token_budget * READ_LOGITS_PER_TOKEN)
        yield from self._passes().predictions(batch, clean, edits, anew, budget)

    def most_similar(self, ids: Tensor, candidates: Tensor) -> Tensor:
        """Of each token's candidates (n, k) the one whose input embedding is nearest in angle, (n,).

        Raises:
            UsageError: the model's embedding has no matrix of numbers to look into.
        """
        table = self._caller.embedding_table()
        own, others = (normalize(embedding(x, table).to(self.dtype), dim=-1) for x in (ids, candidates))
        nearest = torch.einsum("nh,nkh->nk", own, others).argmax(dim=1, keepdim=True)
        return candidates.gather(1, nearest).squeeze(1)

    def differentiable_outcome(
        self, batch: Batch, clean: Clean | None = None, noise: Tensor | None = None
    ) -> tuple[Outcome, Leaf]:
        """The outcome as a function of the input embeddings, with frozen parameters.

        Args:
            clean: what `clean` gave for the batch, if it was run: its prompts need not be run again.
            noise: (n, H) added to the embeddings of the n tokens that `batch.reasoning` marks, in its order.

        Returns:
            the outcome at the (noisy) embeddings, and the clean embeddings to differentiate with respect to.

        Raises:
            UsageError: a layer of the model passes no gradient on, as some quantised ones.
        """
        model = self._caller.model
        if model not in _differentiable:
            refuse_without_gradient(self._caller)
            _differentiable.add(model)
        return self._passes().differentiable(batch, clean, noise)

    def per_token(self, rollouts: Rollouts, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A number for each completion token, from the logits that predict it.

        Args:
            reduce: (logits (n, V), the tokens' ids (n,)) -> (n,).

        Returns:
            (B, T) of the type that `reduce` gives, 0 off the completion.
        """

        def values(batch: Batch) -> Tensor:
            read = self.clean(batch).outcome
            return reduce(read.logits[read.mask], read.targets[read.mask])

        rows = rollouts.completion_mask.any(dim=1).nonzero().squeeze(1).tolist()
        result: Tensor | None = None
        for batch, found in self._batches(rollouts, rows, completion_row, values):
            if result is None:
                result = torch.zeros(rollouts.shape, dtype=found.dtype, device=found.device)
            index, tokens = rollouts.completion_mask[batch.rows].nonzero(as_tuple=True)
            result[batch.rows[index], tokens] = found
        if result is None:
            return torch.zeros(rollouts.shape, dtype=self.dtype, device=rollouts.completion_ids.device)
        return result

    def token_logps(self, rollouts: Rollouts) -> Tensor:
        """(B, T) log-probability of each completion token, nats, at temperature 1."""

        def reduce(logits: Tensor, ids: Tensor) -> Tensor:
            return logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)

        return self.per_token(rollouts, reduce)

    @property
    def known_positions(self) -> int | None:
        """How many positions a learned table of them knows; None for models without one."""
        return self._caller.known_positions

    # --- batches ----------------------------------------------------------------------------------------------------

    def _passes(self) -> Passes:
        model = self._caller.model
        if model not in _packs:
            _packs[model] = packing_agrees(self._caller)
        return (PackedRows if _packs[model] else WholeRows)(self._caller, self._ranks)

    def _budget(self) -> Budget:
        return Budget(self.token_budget, self.token_budget * LOGITS_PER_TOKEN, self.max_rows)

    def _batches(
        self,
        rollouts: Rollouts,
        rows: list[int],
        build: Callable[[Rollouts, int], RowPlan],
        function: Callable[[Batch], Tensor],
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Batches of similar length with the function's values; without rows as long as only other ranks have some."""
        plans = {row: build(rollouts, row) for row in rows}
        for plan in plans.values():
            self._refuse_unknown(plan.ids)
        self._refuse_long(max((len(plan.ids) for plan in plans.values()), default=0))
        left = sorted(rows, key=lambda row: len(plans[row].ids))
        while self._ranks.any(bool(left)):
            self._find_out(plans)
            if not left:
                function(empty_batch(rollouts))
                continue
            chosen = left[: self._fitting([plans[row] for row in left])]
            batch = align(rollouts, chosen, [plans[row] for row in chosen])
            try:
                values = function(batch)
            except (RuntimeError, MemoryError) as error:
                if not self._halved_after(error):
                    raise
                continue
            yield batch, values
            left = left[len(chosen) :]

    def _refuse_unknown(self, ids: list[int]) -> None:
        """On a GPU such an id would end the process."""
        known = self._caller.known_ids
        if known is None or not ids:
            return
        for one in (min(ids), max(ids)):
            if not 0 <= one < known:
                raise UsageError(
                    f"the token id {one} is none of the {known} that the model's embedding knows; "
                    "tokenizer and pad token must be the model's own"
                )

    def _refuse_long(self, length: int) -> None:
        positions = self.known_positions
        if positions is not None and length > positions:
            raise UsageError(
                f"a row has {length} tokens, prompt and completion, but the model's table of positions ends "
                f"at {positions}; shorten prompts or completions"
            )

    def _find_out(self, plans: dict[int, RowPlan]) -> None:
        """What the model can do; ranks find out together, so that they run the same passes."""
        model = self._caller.model
        uneven = len({len(plan.ids) for plan in plans.values()}) > 1 or self._ranks.together
        if isinstance(self._passes(), WholeRows) and uneven and model not in _pads:
            _pads[model] = padding_agrees(self._caller)

    def _fitting(self, plans: list[RowPlan]) -> int:
        """How many of the first rows fit into one pass, at least one."""
        passes, budget = self._passes(), self._budget()
        most = len(plans) if isinstance(passes, PackedRows) or _pads.get(self._caller.model, True) else 1
        size = 1
        while size < most:
            members = plans[: size + 1]
            reads = max(plan.reads[-1] - plan.reads[0] + 1 for plan in members)
            if passes.size(members) > budget.tokens or size + 1 > budget.reads(
                reads, self._caller.vocabulary
            ):
                break
            size += 1
        return size

    def _halved_after(self, error: BaseException) -> bool:
        """Halves the budget if memory ran out; not where other ranks wait inside the pass that failed."""
        if not ran_out(error) or self._caller.sharded or self.token_budget <= LEAST_TOKENS:
            return False
        self.token_budget //= 2
        if not self._halved:
            logger.warning("memory ran out: attribution goes on with %d tokens a pass", self.token_budget)
        self._halved = True
        return True
