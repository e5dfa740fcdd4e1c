"""The policy as attribution needs it: the only module that calls a model.

Attribution reads the model at the few positions that predict the answer. Rows are laid out so that the first of these
positions sits in the same column of every row, and logits are asked for in those columns only.

Passes run in evaluation mode without dropout and without a cache; the mode of every module, parameter gradients, hooks
and the global random state are as before afterwards.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tokencredit.credit.outcome import Outcome
from tokencredit.errors import UsageError
from tokencredit.layout import (
    Batch,
    RowPlan,
    align,
    completion_row,
    first_read_row,
    outcome_row,
    parts,
    take,
    unpadded,
)
from tokencredit.packing import Segment, UnsupportedAttentionError, run_packed
from tokencredit.rollouts import Rollouts

logger = logging.getLogger(__name__)

# Whether packed rows give a model its own logits: found out at its first edits.
_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
# Whether a model reads a padded row as it reads the row alone: found out at its first padded batch.
_pads: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

TOKEN_BUDGET = 2048
LOGIT_BUDGET = 1 << 26  # numbers, 256 MB in float32


class Policy:
    """A causal language model behind the calls that strategies make.

    Args:
        model: a transformers causal language model, PEFT-wrapped or not.
        token_budget: tokens in one forward pass, at least one row.
        max_rows: rows in one forward pass, no limit by default.
        half_precision: whether passes compute in bfloat16 or float16; by default as the weights do.

    Raises:
        UsageError: the model has no input embedding module, or is tuned by virtual prompt tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        token_budget: int = TOKEN_BUDGET,
        max_rows: int | None = None,
        half_precision: bool | None = None,
    ) -> None:
        if token_budget < 1 or (max_rows is not None and max_rows < 1):
            raise UsageError("the token budget and the number of rows a pass must be at least 1")
        self.model = model
        self.embedding = _embedding_module(model)
        self.token_budget = token_budget
        self.max_rows = max_rows
        weight = next((p for p in model.parameters() if p.is_floating_point()), None)
        weight_dtype = torch.float32 if weight is None else weight.dtype
        halves = weight_dtype in (torch.bfloat16, torch.float16)
        self.half_precision = halves if half_precision is None else half_precision
        self.dtype = torch.float64 if weight_dtype == torch.float64 else torch.float32
        computes_in = torch.bfloat16 if self.half_precision and not halves else weight_dtype
        self._eps = torch.finfo(computes_in).eps
        self.embedding_width = _embedding_width(self.embedding)
        self._accepts = _forward_parameters(model)

    # --- what strategies call -------------------------------------------------------------------------------------

    def batches(self, rollouts: Rollouts, outcome: str) -> Iterator[Batch]:
        """The rows with an outcome to read and something to attribute it to, in batches within the budgets.

        Args:
            outcome: the mode that will be read; `last` needs one position only.
        """
        readable = rollouts.readable.nonzero().squeeze(1).tolist()
        yield from self._lay_out(rollouts, readable, first_read_row if outcome == "last" else outcome_row)

    def outcome(self, batch: Batch) -> Outcome:
        """The clean outcome of each row, without gradient: logits (b, K, V)."""
        with _inference(self.model), torch.no_grad():
            return self._read(batch, batch.ids)

    def perturbed(
        self, batch: Batch, rows: Tensor, tokens: Tensor, new_ids: Tensor
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        """The outcome before and after each edit, without gradient, in parts within the token budget.

        Packed suffixes (see `packing`) where the model's attention allows it, whole rows elsewhere.

        Args:
            rows, tokens, new_ids: (N,) edit n puts new_ids[n] in place of completion token tokens[n] of the batch's
                row rows[n].

        Yields:
            which edits (n,), and their clean and changed Outcome, (n, K, V) each.
        """
        columns = batch.columns[rows, tokens]
        if rows.numel() and self.model not in _packs:
            _packs[self.model] = self._packing_agrees(batch, rows, columns, new_ids)
        run = self._packed_edits if _packs.get(self.model) else self._whole_row_edits
        yield from run(batch, rows, columns, new_ids)

    def differentiable_outcome(self, batch: Batch, noise: Tensor | None = None) -> tuple[Outcome, Tensor]:
        """The outcome as a function of the input embeddings.

        Args:
            noise: (b, T, H) added to the embeddings of the completion tokens; zero where there should be none.

        Returns:
            the outcome at the (noisy) embeddings, and the clean embeddings (b, L, H), the leaf to differentiate with
            respect to.
        """
        captured: list[Tensor] = []

        def capture(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            leaf = output.detach().requires_grad_(True)
            captured.append(leaf)
            if noise is None:
                return leaf
            spread = torch.zeros_like(leaf)
            rows, tokens = batch.reasoning.nonzero(as_tuple=True)
            spread[rows, batch.columns[rows, tokens]] = noise[rows, tokens].to(leaf)
            return leaf + spread

        handle = self.embedding.register_forward_hook(capture)
        try:
            with _inference(self.model), torch.enable_grad():
                outcome = self._read(batch, batch.ids)
        finally:
            handle.remove()
        if len(captured) != 1:
            raise UsageError(
                f"the model called its embedding module {len(captured)} times in one pass, not once"
            )
        return outcome, captured[0]

    def per_token(self, rollouts: Rollouts, reduce: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A number for each completion token, from the logits that predict it.

        Args:
            reduce: (logits (n, V), the tokens' ids (n,)) -> (n,).

        Returns:
            (B, T) of the type that `reduce` gives, 0 off the completion.
        """
        rows = rollouts.completion_mask.any(dim=1).nonzero().squeeze(1).tolist()
        result: Tensor | None = None
        for batch in self._lay_out(rollouts, rows, completion_row):
            with _inference(self.model), torch.no_grad():
                read = self._read(batch, batch.ids)
            values = reduce(read.logits[read.mask], read.targets[read.mask])
            if result is None:
                result = torch.zeros(rollouts.shape, dtype=values.dtype, device=values.device)
            index, tokens = rollouts.completion_mask[batch.rows].nonzero(as_tuple=True)
            result[batch.rows[index], tokens] = values
        if result is None:
            return torch.zeros(rollouts.shape, dtype=self.dtype, device=rollouts.completion_ids.device)
        return result

    def token_logps(self, rollouts: Rollouts) -> Tensor:
        """(B, T) log-probability of each completion token, nats, at temperature 1."""

        def reduce(logits: Tensor, ids: Tensor) -> Tensor:
            return logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)

        return self.per_token(rollouts, reduce)

    # --- two ways to run edits --------------------------------------------------------------------------------------

    def _whole_row_edits(
        self, batch: Batch, rows: Tensor, columns: Tensor, new_ids: Tensor
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        """Each edit as a whole row of its own."""
        clean = self.outcome(batch)
        limit = self._rows_a_pass(batch.ids.shape[1], batch.read_mask.shape[1])
        for part in torch.arange(rows.numel(), device=rows.device).split(limit):
            edited = take(batch, rows[part])
            ids = edited.ids.clone()
            ids[torch.arange(part.numel(), device=ids.device), columns[part]] = new_ids[part]
            with _inference(self.model), torch.no_grad():
                changed = self._read(edited, ids)
            yield part, clean.select(rows[part]), changed

    def _packed_edits(
        self, batch: Batch, rows: Tensor, columns: Tensor, new_ids: Tensor
    ) -> Iterator[tuple[Tensor, Outcome, Outcome]]:
        """The suffixes of many edits in one row, after a clean pass that keeps its keys and values."""
        starts = batch.mask.long().argmax(dim=1)
        everything = torch.arange(batch.size, device=rows.device)
        sources = [Segment(batch.ids[row][batch.mask[row]], keep=True) for row in range(batch.size)]
        clean = self._read_packed(batch, everything, sources)
        places = (columns - starts[rows]).tolist()
        segments = []
        for row, place, new_id in zip(rows.tolist(), places, new_ids, strict=True):
            suffix = sources[row].ids[place:].clone()
            suffix[0] = new_id
            segments.append(Segment(suffix, place, prefix=sources[row]))
        limit = self._logit_rows(batch.read_mask.shape[1])
        # Suffixes of equal shape share one attention call, so they go into the same pass.
        order = sorted(
            range(len(segments)), key=lambda index: (segments[index].start, segments[index].ids.numel())
        )
        sizes = [segments[index].ids.numel() for index in order]
        for run in parts(sizes, self.token_budget, limit):
            chosen = [order[place] for place in run]
            part = torch.tensor(chosen, device=rows.device)
            changed = self._read_packed(batch, rows[part], [segments[index] for index in chosen])
            yield part, clean.select(rows[part]), changed

    def _read_packed(self, batch: Batch, rows: Tensor, segments: list[Segment]) -> Outcome:
        """One packed pass; the outcome of each segment, whose last token is the last that its row reads."""
        mask, targets = batch.read_mask[rows], batch.targets[rows]
        last = torch.tensor([s.ids.numel() for s in segments], device=rows.device).cumsum(0) - 1
        width = mask.shape[1]
        last_read = mask.long().cumsum(1).argmax(1)
        reads = (last[:, None] + torch.arange(width, device=rows.device) - last_read[:, None])[mask]
        with _inference(self.model), torch.no_grad():
            found = run_packed(self.model, segments, reads).to(self.dtype)
        logits = found.new_zeros(*mask.shape, found.shape[-1])
        logits[mask] = found
        return Outcome(logits, mask, targets)

    def _packing_agrees(self, batch: Batch, rows: Tensor, columns: Tensor, new_ids: Tensor) -> bool:
        """Whether packing gives this model's own logits: tried once, on the longest and the shortest suffix."""
        name = type(self.model).__name__
        if not {"position_ids", "logits_to_keep"} <= self._accepts or not hasattr(self.model, "config"):
            return False
        few = torch.stack([columns.argmin(), columns.argmax()])
        small = take(batch, rows[few])
        edits = (small, torch.arange(2, device=rows.device), columns[few], new_ids[few])
        try:
            packed = _changed_logits(self._packed_edits(*edits), small)
        except (UnsupportedAttentionError, AttributeError, TypeError, LookupError, RuntimeError) as error:
            logger.warning("%s: attribution runs whole rows, as packing fails with it (%s)", name, error)
            return False
        whole = _changed_logits(self._whole_row_edits(*edits), small)
        if self._agree(packed, whole):
            return True
        logger.warning("%s: attribution runs whole rows, as packed rows give it other logits", name)
        return False

    # --- how the model is called ----------------------------------------------------------------------------------

    def _rows_a_pass(self, length: int, reads: int) -> int:
        return max(1, min(self.token_budget // length, self._logit_rows(reads)))

    def _logit_rows(self, reads: int) -> int:
        limit = max(1, LOGIT_BUDGET // (reads * self._vocabulary()))
        return limit if self.max_rows is None else min(limit, self.max_rows)

    @property
    def pad_token_id(self) -> int:
        """The model's pad token, 0 if it names none."""
        return getattr(self._text_config(), "pad_token_id", None) or 0

    def _vocabulary(self) -> int:
        return getattr(self._text_config(), "vocab_size", None) or 1

    def _text_config(self) -> Any:
        config: Any = getattr(self.model, "config", None)
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    def _lay_out(
        self, rollouts: Rollouts, rows: list[int], build: Callable[[Rollouts, int], RowPlan]
    ) -> Iterator[Batch]:
        """Rows of similar length together, as many as the budgets allow."""
        built = {row: build(rollouts, row) for row in rows}
        order = sorted(rows, key=lambda row: len(built[row].ids))
        start = 0
        while start < len(order):
            size = 1
            while start + size < len(order) and _pads.get(self.model, True):
                members = [built[row] for row in order[start : start + size + 1]]
                length = max(len(row.ids) for row in members) + max(len(row.reads) for row in members)
                if size + 1 > self._rows_a_pass(length, max(len(row.reads) for row in members)):
                    break
                size += 1
            chosen = order[start : start + size]
            batch = align(rollouts, chosen, [built[row] for row in chosen])
            if self._pads_wrongly(batch):
                continue
            yield batch
            start += size

    def _pads_wrongly(self, batch: Batch) -> bool:
        """Finds out, once a model, whether padding changes its logits; from then on its rows run one by one."""
        if batch.mask.all() or self.model in _pads:
            return False
        shortest = int(batch.mask.sum(1).argmin())
        with _inference(self.model), torch.no_grad():
            padded = self._read(batch, batch.ids).logits[shortest][batch.read_mask[shortest]]
            alone = unpadded(batch, shortest)
            bare = self._read(alone, alone.ids).logits[alone.read_mask]
        _pads[self.model] = self._agree(padded, bare)
        if not _pads[self.model]:
            name = type(self.model).__name__
            logger.warning("%s: attribution runs rows one by one, as padding changes its logits", name)
        return not _pads[self.model]

    def _agree(self, found: Tensor, expected: Tensor) -> bool:
        """Equal up to a pass's rounding, relative to the largest logit; half precision has few digits to spare."""
        rounding = 6 * self._eps if self.half_precision else 256 * self._eps
        return bool((found - expected).abs().max() <= rounding * expected.abs().max())

    def _read(self, batch: Batch, ids: Tensor) -> Outcome:
        """One forward pass; logits (b, K, V) in float32 or better."""
        width = batch.read_mask.shape[1]
        reads = torch.arange(batch.read_from, batch.read_from + width, device=ids.device)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": batch.mask.long(), "use_cache": False}
        if "position_ids" in self._accepts:
            inputs["position_ids"] = batch.positions
        if "logits_to_keep" in self._accepts:
            logits = self.model(**inputs, logits_to_keep=reads).logits
        else:
            logits = self.model(**inputs).logits[:, reads]
        return Outcome(logits.to(self.dtype), batch.read_mask, batch.targets)


def _changed_logits(edits: Iterable[tuple[Tensor, Outcome, Outcome]], batch: Batch) -> Tensor:
    """The logits that are read after each edit, in the order of the edits."""
    found: dict[int, Tensor] = {}
    for part, _, changed in edits:
        found |= dict(zip(part.tolist(), changed.logits, strict=True))
    return torch.stack([found[edit] for edit in sorted(found)])[batch.read_mask]


@contextmanager
def _inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, then the mode that each module had before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _embedding_module(model: nn.Module) -> nn.Module:
    adapter: Any = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise UsageError(
            f"the adapter {adapter.peft_type} puts virtual tokens before the prompt, which credit cannot be given to; "
            "use LoRA"
        )
    try:
        module = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        module = None
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"{type(model).__name__} has no input embedding module (get_input_embeddings() gives none), "
            "so no credit can be attributed to its tokens; use a causal language model of transformers"
        )
    return module


def _embedding_width(module: nn.Module) -> int:
    """H, from the module's declared width or the shape of its weight."""
    width = getattr(module, "embedding_dim", None)
    return int(width if width is not None else next(module.parameters()).shape[-1])


def _forward_parameters(model: nn.Module) -> frozenset[str]:
    """Names that the model's forward takes; compiled and PEFT wrappers are looked through."""
    base: Any = getattr(model, "_orig_mod", model)
    base = base.get_base_model() if hasattr(base, "get_base_model") else base
    return frozenset(inspect.signature(base.forward).parameters)
