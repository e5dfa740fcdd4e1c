"""The policy as attribution needs it: the only module that calls a model.

Attribution reads the model at the few positions that predict the answer. Rows are laid out so that the first of these
positions sits in the same column of every row, and logits are asked for in those columns only.

Passes run in evaluation mode without dropout and without a cache; the mode of every module, parameter gradients, hooks
and the global random state are as before afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tokencredit.credit.outcome import Outcome
from tokencredit.errors import UsageError
from tokencredit.rollouts import Rollouts

TOKEN_BUDGET = 8192
LOGIT_BUDGET = 1 << 26  # numbers, 256 MB in float32


@dataclass(frozen=True)
class Batch:
    """Some rows of the rollouts, laid out for the model.

    Attributes:
        rows: (b,) which rows of the rollouts.
        ids, mask, positions: (b, L) token ids, real tokens, and position ids counted from each row's first token.
        columns: (b, T) the column that holds completion token t; meaningless for tokens that were left out.
        reasoning: (b, T) bool, the tokens to attribute to.
        read_from, read_mask, targets: first column that is read, (b, K) which of the K columns from there count,
            (b, K) the token that follows each, -1 for none.
    """

    rows: Tensor
    ids: Tensor
    mask: Tensor
    positions: Tensor
    columns: Tensor
    reasoning: Tensor
    read_from: int
    read_mask: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True)
class _Row:
    """One row as lists: its ids, where the completion starts among them, and which positions are read."""

    ids: list[int]
    completion_start: int
    reads: list[int]
    targets: list[int]


class Policy:
    """A causal language model behind the calls that strategies make.

    Args:
        model: a transformers causal language model, PEFT-wrapped or not.
        token_budget: tokens in one forward pass, at least one row.
        max_rows: rows in one forward pass, no limit by default.

    Raises:
        UsageError: the model has no input embedding module.
    """

    def __init__(
        self, model: nn.Module, token_budget: int = TOKEN_BUDGET, max_rows: int | None = None
    ) -> None:
        if token_budget < 1 or (max_rows is not None and max_rows < 1):
            raise UsageError("the token budget and the number of rows a pass must be at least 1")
        self.model = model
        self.embedding = _embedding_module(model)
        self.token_budget = token_budget
        self.max_rows = max_rows
        weight = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.dtype = torch.float64 if weight is not None and weight.dtype == torch.float64 else torch.float32
        self.embedding_width = _embedding_width(self.embedding)
        self._accepts = _forward_parameters(model)

    # --- what strategies call -------------------------------------------------------------------------------------

    def batches(self, rollouts: Rollouts) -> Iterator[Batch]:
        """The rows with an outcome to read and something to attribute it to, in batches within the budgets."""
        readable = rollouts.readable.nonzero().squeeze(1).tolist()
        yield from self._lay_out(rollouts, readable, _outcome_row)

    def outcome(self, batch: Batch) -> Outcome:
        """The clean outcome of each row, without gradient: logits (b, K, V)."""
        with _inference(self.model), torch.no_grad():
            return self._read(batch, batch.ids)

    def perturbed(
        self, batch: Batch, rows: Tensor, tokens: Tensor, new_ids: Tensor
    ) -> Iterator[tuple[slice, Outcome]]:
        """The outcome after each edit, without gradient, in parts within the token budget.

        Args:
            rows, tokens, new_ids: (N,) edit n puts new_ids[n] in place of completion token tokens[n] of the batch's
                row rows[n].

        Yields:
            which edits, and their Outcome (n, K, V).
        """
        columns = batch.columns[rows, tokens]
        limit = self._rows_a_pass(batch.ids.shape[1], batch.read_mask.shape[1])
        for start in range(0, rows.numel(), limit):
            part = slice(start, start + limit)
            edited = _take(batch, rows[part])
            ids = edited.ids.clone()
            ids[torch.arange(ids.shape[0], device=ids.device), columns[part]] = new_ids[part]
            with _inference(self.model), torch.no_grad():
                yield part, self._read(edited, ids)

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
        for batch in self._lay_out(rollouts, rows, _completion_row):
            with _inference(self.model), torch.no_grad():
                read = self._read(batch, batch.ids)
            values = reduce(read.logits[read.mask], read.targets[read.mask])
            if result is None:
                result = torch.zeros(rollouts.shape, dtype=values.dtype, device=values.device)
            index, tokens = rollouts.completion_mask[batch.rows].nonzero(as_tuple=True)
            result[batch.rows[index], tokens] = values
        return torch.zeros(rollouts.shape, dtype=self.dtype) if result is None else result

    def token_logps(self, rollouts: Rollouts) -> Tensor:
        """(B, T) log-probability of each completion token, nats, at temperature 1."""

        def reduce(logits: Tensor, ids: Tensor) -> Tensor:
            return logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)

        return self.per_token(rollouts, reduce)

    # --- how the model is called ----------------------------------------------------------------------------------

    def _rows_a_pass(self, length: int, reads: int) -> int:
        limit = min(self.token_budget // length, LOGIT_BUDGET // (reads * self._vocabulary()))
        return max(1, limit if self.max_rows is None else min(limit, self.max_rows))

    def _vocabulary(self) -> int:
        config: Any = getattr(self.model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        return getattr(text, "vocab_size", None) or 1

    def _lay_out(
        self, rollouts: Rollouts, rows: list[int], build: Callable[[Rollouts, int], _Row]
    ) -> Iterator[Batch]:
        """Rows of similar length together, as many as the budgets allow."""
        built = {row: build(rollouts, row) for row in rows}
        order = sorted(rows, key=lambda row: len(built[row].ids))
        start = 0
        while start < len(order):
            size = 1
            while start + size < len(order):
                members = [built[row] for row in order[start : start + size + 1]]
                length = max(len(row.ids) for row in members) + max(len(row.reads) for row in members)
                if size + 1 > self._rows_a_pass(length, max(len(row.reads) for row in members)):
                    break
                size += 1
            chosen = order[start : start + size]
            yield _align(rollouts, chosen, [built[row] for row in chosen])
            start += size

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


def _outcome_row(rollouts: Rollouts, row: int) -> _Row:
    """Prompt, reasoning, probe if any, answer if any: up to the last position that is read, nothing after it."""
    prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
    completion = rollouts.completion_ids[row].tolist()
    answer = rollouts.answer_mask[row].nonzero().squeeze(1).tolist()
    probe: list[int] = []
    if rollouts.probe_mask is not None and rollouts.probe_ids is not None:
        probe = rollouts.probe_ids[row][rollouts.probe_mask[row]].tolist()
    if probe:
        end = int(rollouts.reasoning_mask[row].nonzero().max()) + 1
        ids = prompt + completion[:end] + probe
        first = len(ids)
        ids += [completion[token] for token in answer]
        reads = list(range(first - 1, first - 1 + max(1, len(answer))))
        targets = [completion[token] for token in answer] or [-1]
    else:
        ids = prompt + completion
        reads = [len(prompt) + token - 1 for token in answer]
        targets = [completion[token] for token in answer]
    return _Row(ids[: reads[-1] + 1], len(prompt), reads, targets)


def _completion_row(rollouts: Rollouts, row: int) -> _Row:
    """Prompt and completion, read wherever a completion token is predicted."""
    prompt = rollouts.prompt_ids[row][rollouts.prompt_mask[row]].tolist()
    tokens = rollouts.completion_mask[row].nonzero().squeeze(1).tolist()
    ids = prompt + rollouts.completion_ids[row].tolist()
    reads = [len(prompt) + token - 1 for token in tokens]
    targets = [ids[len(prompt) + token] for token in tokens]
    return _Row(ids[: reads[-1] + 1], len(prompt), reads, targets)


def _align(rollouts: Rollouts, rows: list[int], built: list[_Row]) -> Batch:
    """Pads so that the first position read is in the same column of every row."""
    device = rollouts.completion_ids.device
    count, length = rollouts.shape[1], len(built)
    before = max(row.reads[0] for row in built)
    width = max(row.reads[-1] - row.reads[0] + 1 for row in built)
    if min(row.reads[0] for row in built) < 0:
        raise UsageError("a row has an empty prompt, so nothing predicts its first token")
    ids = torch.zeros(length, before + width, dtype=torch.long)
    mask = torch.zeros(length, before + width, dtype=torch.bool)
    columns = torch.zeros(length, count, dtype=torch.long)
    read_mask = torch.zeros(length, width, dtype=torch.bool)
    targets = torch.full((length, width), -1, dtype=torch.long)
    for index, row in enumerate(built):
        shift = before - row.reads[0]
        ids[index, shift : shift + len(row.ids)] = torch.tensor(row.ids)
        mask[index, shift : shift + len(row.ids)] = True
        columns[index] = shift + row.completion_start + torch.arange(count)
        offsets = torch.tensor(row.reads) - row.reads[0]
        read_mask[index, offsets] = True
        targets[index, offsets] = torch.tensor(row.targets)
    chosen = torch.tensor(rows, device=device)
    return Batch(
        rows=chosen,
        ids=ids.to(device),
        mask=mask.to(device),
        positions=(mask.long().cumsum(1) - 1).clamp(min=0).to(device),
        columns=columns.to(device),
        reasoning=rollouts.reasoning_mask[chosen],
        read_from=before,
        read_mask=read_mask.to(device),
        targets=targets.to(device),
    )


def _take(batch: Batch, index: Tensor) -> Batch:
    """The batch's rows `index`, repeated as often as they are named."""
    names = ("rows", "ids", "mask", "positions", "columns", "reasoning", "read_mask", "targets")
    return Batch(read_from=batch.read_from, **{name: getattr(batch, name)[index] for name in names})


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
    """Names that the model's forward takes; a PEFT wrapper is looked through."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return frozenset(inspect.signature(base.forward).parameters)
