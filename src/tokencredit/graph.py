"""OAR-G in the graph of the loss: credit from a forward pass that the training step makes anyway.

The loss's forward already holds the graph from the input embeddings to the last hidden states. `GraphReader` catches
the two, computes the outcome's logits anew at the few positions that predict the answer, and lets a strategy
differentiate them with respect to the embeddings: a backward pass without parameter gradients. The graph stays whole
for the loss's own backward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tokencredit.calling import Caller
from tokencredit.credit.outcome import Outcome
from tokencredit.errors import UsageError
from tokencredit.layout import Batch, align, first_read_row, outcome_row
from tokencredit.passes import Clean, Leaf
from tokencredit.readiness import float32_head, forward_replaced
from tokencredit.rollouts import Rollouts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Graph:
    """The two ends of a forward pass: input embeddings and last hidden states, (b, L, H) each, and what else the
    model's body gave."""

    embeddings: Tensor
    hidden: Tensor
    output: Any


class GraphReader:
    """Reads outcomes and their gradients off forward passes that someone else makes.

    Args:
        model: a transformers causal language model, PEFT-wrapped or not.
        half_precision: as for `Policy`.

    Raises:
        UsageError: as for `Policy`.
    """

    def __init__(self, model: nn.Module, half_precision: bool | None = None) -> None:
        self.caller = Caller(model, half_precision)
        base: Any = model
        self._base = base.get_base_model() if hasattr(base, "get_base_model") else base
        self._body: nn.Module = getattr(self._base, "base_model", self._base)
        self._agrees: bool | None = None

    def obstacle(self) -> str | None:
        """Why credit can't be read from the model's forward passes as they are now; None if it can."""
        if self.caller.sharded:
            return "the model is in pieces over ranks, which must make equal passes"
        modules = list(self.caller.model.modules())
        if any(getattr(module, "gradient_checkpointing", False) for module in modules):
            return "gradient checkpointing is on, so the graph would be computed once more"
        if any(_drops(module) for module in modules):
            return "dropout is on, so the forward pass is that of a thinned-out model"
        if self._agrees is None:
            self._agrees = self._finds_logits()
        return None if self._agrees else "the model's logits can't be found again from its hidden states"

    @contextmanager
    def reading(self, rollouts: Rollouts, then: Callable[[GraphPolicy], None]) -> Iterator[None]:
        """Hands the model's next forward pass over to a function, before the pass's caller has its result.

        Args:
            rollouts: the rows of that pass, in its order: prompt and completion side by side, (b, P + T).
            then: called once, with the stand-in for a Policy that reads from the pass. What it costs beyond its own
                backward passes are the logits at the positions that predict the answers.

        Raises:
            RuntimeError: in the pass, if its rows are not those of the rollouts.
        """

        def policy(graph: _Graph) -> None:
            length = rollouts.prompt_ids.shape[1] + rollouts.shape[1]
            if graph.hidden.shape[:2] != (rollouts.shape[0], length):
                raise RuntimeError(
                    f"the loss ran {tuple(graph.hidden.shape[:2])} tokens at once, not its batch"
                )
            # As in a pass of attribution's own, which no autocast surrounds.
            with torch.autocast(graph.hidden.device.type, enabled=False), torch.enable_grad():
                then(GraphPolicy(self, graph, rollouts))

        with self._catching(policy):
            yield

    def logits(self, graph: _Graph, hidden: Tensor) -> Tensor:
        """Logits (n, V) of hidden states (n, H): the model's own forward, with its body's result put in."""
        given = type(graph.output)(**{**graph.output, "last_hidden_state": hidden[None]})
        ids = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=hidden.device)
        head = float32_head(self.caller.model) if self.caller.half_precision else nullcontext()
        with head, forward_replaced(self._body, lambda *args, **kwargs: given):
            return self._base(input_ids=ids, use_cache=False).logits[0]

    @contextmanager
    def _catching(self, then: Callable[[_Graph], None]) -> Iterator[None]:
        """Hooks for one forward pass; gone after it, and after an exception."""
        embedded: list[Tensor] = []
        outputs: list[Any] = []
        handles: list[Any] = []

        def embeds(_module: nn.Module, _args: Any, output: Tensor) -> None:
            if not output.requires_grad:  # as under LoRA, where the embedding is frozen
                output.requires_grad_(True)
            embedded.append(output)

        def encodes(_module: nn.Module, _args: Any, output: Any) -> None:
            outputs.append(output)

        def ends(_module: nn.Module, _args: Any, _output: Any) -> None:
            _remove(handles)
            if len(embedded) != 1 or len(outputs) != 1:
                raise UsageError("the model embeds its input more than once in a pass, or runs its body so")
            then(_Graph(embedded[0], outputs[0].last_hidden_state, outputs[0]))

        handles.append(self.caller.embedding.register_forward_hook(embeds))
        handles.append(self._body.register_forward_hook(encodes))
        handles.append(self.caller.model.register_forward_hook(ends))
        try:
            yield
        finally:
            _remove(handles)

    def _finds_logits(self) -> bool:
        """Whether `logits` gives the model's own, on a few tokens."""
        caller = self.caller
        found: list[_Graph] = []
        ids = (torch.arange(8, device=caller.device) % caller.vocabulary)[None]
        try:
            with torch.no_grad():
                with self._catching(found.append):
                    expected = caller.model(input_ids=ids, use_cache=False).logits[0]
                again = self.logits(found[0], found[0].hidden[0])
        except (UsageError, AttributeError, TypeError, LookupError) as error:
            logger.info("%s: %s", type(caller.model).__name__, error)
            return False
        return bool((again - expected).abs().max() <= 32 * caller.eps * expected.abs().max())


class GraphPolicy:
    """What `Policy` is to a strategy that can run in the loss's graph (see `Strategy.in_graph`), for one pass.

    Rows are recognised by their row keys.
    """

    in_step = False

    def __init__(self, reader: GraphReader, graph: _Graph, rollouts: Rollouts) -> None:
        assert rollouts.row_keys is not None
        self._reader = reader
        self._graph = graph
        self._row_of = {key: row for row, key in enumerate(rollouts.row_keys.tolist())}
        self._prompt_width = rollouts.prompt_ids.shape[1]
        self.half_precision = reader.caller.half_precision
        self.dtype = reader.caller.dtype
        self.embedding_width = reader.caller.embedding_width

    def map(self, rollouts: Rollouts, outcome: str, function: Callable[[Batch], Tensor]) -> Tensor:
        """As `Policy.map`, with all rows in one batch. A row that a probe asks is refused: the loss didn't read it."""
        if rollouts.probe_mask is not None and rollouts.probe_mask.any():
            raise UsageError("a row with a probe can't be read from the graph of the loss")
        result = torch.zeros(rollouts.shape, dtype=self.dtype, device=rollouts.completion_ids.device)
        rows = rollouts.readable.nonzero().squeeze(1).tolist()
        if not rows:
            return result
        build = first_read_row if outcome == "last" else outcome_row
        batch = align(rollouts, rows, [build(rollouts, row) for row in rows])
        assert rollouts.row_keys is not None
        places = [self._row_of[key] for key in rollouts.row_keys[batch.rows].tolist()]
        in_graph = _Rows(**vars(batch), places=torch.tensor(places, device=result.device))
        result[batch.rows] = function(in_graph).to(result)
        return result

    def differentiable_outcome(
        self, batch: Batch, clean: Clean | None = None, noise: Tensor | None = None
    ) -> tuple[Outcome, Leaf]:
        """As `Policy.differentiable_outcome`, without noise."""
        assert isinstance(batch, _Rows) and clean is None and noise is None
        reader, graph = self._reader, self._graph
        embeddings = graph.embeddings.detach().flatten(0, 1).requires_grad_(True)
        hidden = _Through.apply(embeddings, graph)
        # The batch is aligned at the first position read, the pass at the end of the prompt.
        first = batch.read_from - batch.columns[:, 0] + self._prompt_width
        columns = first[:, None] + torch.arange(batch.read_mask.shape[1], device=first.device)
        places = batch.places[:, None].expand_as(columns)
        found = reader.logits(graph, hidden[places[batch.read_mask], columns[batch.read_mask]])
        logits = found.new_zeros(*batch.read_mask.shape, found.shape[-1], dtype=self.dtype)
        logits[batch.read_mask] = found.to(self.dtype)
        tokens = torch.arange(batch.columns.shape[1], device=first.device)
        starts = batch.places * graph.hidden.shape[1] + self._prompt_width
        return Outcome(logits, batch.read_mask, batch.targets), Leaf(embeddings, starts[:, None] + tokens)


@dataclass(frozen=True)
class _Rows(Batch):
    """A batch with the (b,) rows of the pass that its rows are."""

    places: Tensor


class _Through(torch.autograd.Function):
    """Hidden states as a function of the embeddings. The backward goes through the graph of the pass and keeps it,
    whatever the caller does with its own."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, graph: _Graph) -> Tensor:
        ctx.graph = graph
        return graph.hidden.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (found,) = torch.autograd.grad(ctx.graph.hidden, ctx.graph.embeddings, gradient, retain_graph=True)
        return found.flatten(0, 1), None


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def _drops(module: nn.Module) -> bool:
    """Whether the module drops at random: a dropout layer, or attention that is told to."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.training and module.p > 0
    rates = [value for name, value in vars(module).items() if "dropout" in name and isinstance(value, float)]
    return module.training and any(rate > 0 for rate in rates)
