"""How a model is called for attribution: padded rows or one packed row, with or without gradient.

Passes run in evaluation mode, without dropout, without a cache and with frozen parameters (see `readiness`). Training
modes, `requires_grad`, hooks and the global random state are as before afterwards, also after an exception.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tokencredit.credit.outcome import Outcome
from tokencredit.errors import UsageError
from tokencredit.layout import Batch
from tokencredit.packing import Segment, run_packed
from tokencredit.readiness import made_ready

_HALVES = (torch.bfloat16, torch.float16)
_in_pass: WeakSet[nn.Module] = WeakSet()


class Caller:
    """A causal language model with what must be known to call it.

    Attributes:
        dtype: of the logits it gives, float32 or better.
        eps: rounding of the type that its passes compute in.
        half_precision: whether they compute in bfloat16 or float16, by default as the weights or the autocast around;
            the head computes in float32 all the same.
        accepts: names of its forward's parameters.

    Raises:
        UsageError: the model has no input embedding module, is tuned by virtual prompt tokens, or was made under
            torch.inference_mode().
    """

    def __init__(self, model: nn.Module, half_precision: bool | None = None) -> None:
        # What is compiled would be compiled anew for every shape of a pass, which takes far longer than the pass.
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.embedding = _embedding_module(model)
        if any(parameter.is_inference() for parameter in model.parameters()):
            raise UsageError(
                f"{type(model).__name__} was made under torch.inference_mode(), so that no gradient can pass it; "
                "make it outside"
            )
        weight = next((p for p in model.parameters() if p.is_floating_point()), None)
        weight_dtype = torch.float32 if weight is None else weight.dtype
        halves = weight_dtype in _HALVES
        if half_precision is None:
            half_precision = halves or torch.is_autocast_enabled(self.device.type)
        self.half_precision = half_precision
        self.dtype = torch.float64 if weight_dtype == torch.float64 else torch.float32
        computes_in = torch.bfloat16 if self.half_precision and not halves else weight_dtype
        self.eps = torch.finfo(computes_in).eps
        self.accepts = _forward_parameters(model)

    @property
    def device(self) -> torch.device:
        """Where passes compute; pieces of parameters may wait elsewhere, as FSDP's `CPUOffloadPolicy` has them."""
        weight = next(self.model.parameters())
        return torch.device(weight.device_mesh.device_type) if isinstance(weight, DTensor) else weight.device

    @property
    def sharded(self) -> bool:
        """Whether ranks hold pieces of the parameters, so that each pass waits for all of them."""
        # FSDP2's pieces are DTensors; ZeRO-3 numbers the parameters that it has taken to pieces.
        return any(isinstance(p, DTensor) or hasattr(p, "ds_id") for p in self.model.parameters())

    @property
    def config(self) -> Any:
        """The configuration of the text model; None where there is none."""
        config: Any = getattr(self.model, "config", None)
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def known_ids(self) -> int | None:
        """How many ids the input embedding knows; None where it doesn't tell."""
        return getattr(self.embedding, "num_embeddings", None)

    @property
    def known_positions(self) -> int | None:
        """How many positions a learned table of them knows, as GPT-2's does; None for models without one."""
        most = getattr(self.config, "max_position_embeddings", None)
        tables = [m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)]
        known = [size for size in tables if size != self.known_ids]
        # Some tables begin with a few rows that no position uses.
        return most if most and any(0 <= size - most <= 2 for size in known) else None

    @property
    def vocabulary(self) -> int:
        return getattr(self.config, "vocab_size", None) or 1

    @property
    def embedding_width(self) -> int:
        """H, from the embedding's declared width or the shape of its weight."""
        width = getattr(self.embedding, "embedding_dim", None)
        return int(width if width is not None else next(self.embedding.parameters()).shape[-1])

    def embedding_table(self) -> Tensor:
        """(V, H) the matrix of input embeddings, whole also where ranks hold pieces of it: then all must ask.

        Raises:
            UsageError: the embedding has none, or one that is quantised.
        """
        weight: Any = getattr(self.embedding, "weight", None)
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            raise UsageError(
                f"{type(self.embedding).__name__} has no matrix of embeddings to compare tokens by; use "
                "counterfactual=alternative"
            )
        if isinstance(weight, DTensor):
            return weight.full_tensor().detach()
        if hasattr(weight, "ds_id"):
            from deepspeed.zero import GatheredParameters

            with GatheredParameters([weight]):
                return weight.detach().clone()
        return weight.detach()

    def rows(self, batch: Batch, ids: Tensor) -> Outcome:
        """Padded rows with these ids; a batch without rows is a pass all the same."""
        count, width = batch.read_mask.shape
        reads = torch.arange(batch.read_from, batch.read_from + width, device=ids.device)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": batch.mask.long(), "use_cache": False}
        if "position_ids" in self.accepts:
            inputs["position_ids"] = batch.positions
        if not count:
            inputs |= {
                name: x.new_ones(1, *x.shape[1:]) for name, x in inputs.items() if isinstance(x, Tensor)
            }
        with self._calls():
            if "logits_to_keep" in self.accepts:
                logits = self.model(**inputs, logits_to_keep=reads).logits
            else:
                logits = self.model(**inputs).logits[:, reads]
        return Outcome(logits[:count].to(self.dtype), batch.read_mask, batch.targets)

    def packed(self, segments: Sequence[Segment], reads: Tensor) -> Tensor:
        """One packed row; logits (reads, V). No segments are a pass all the same."""
        with self._calls():
            return run_packed(self.model, segments or [_one_token(self.device)], reads).to(self.dtype)

    def empty(self) -> None:
        """A pass for the sake of the other ranks, without gradient."""
        with torch.no_grad(), self._calls():
            self.model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self.device), use_cache=False)

    @contextmanager
    def counted_positions(self) -> Iterator[None]:
        """Passes that others make inside count positions from each row's first token, as ours do.

        Where nobody says which they are, a model with a table of positions counts padding too.
        """
        if self.known_positions is None or "position_ids" not in self.accepts:
            yield
            return

        def count(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            mask = kwargs.get("attention_mask")
            if mask is not None and kwargs.get("position_ids") is None:
                kwargs = {**kwargs, "position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0)}
            return args, kwargs

        handle = self.model.register_forward_pre_hook(count, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def leaf(self, places: Tensor, noise: Tensor | None) -> Iterator[list[Tensor]]:
        """Differentiates with respect to the input embeddings of the one pass made inside.

        Args:
            places: (n,) tokens of the pass, counted through its rows, that get the noise.
            noise: (n, H) added to their embeddings.

        Yields:
            a list that holds the clean embeddings (tokens, H) after the pass.

        Raises:
            UsageError: the model did not embed its input once.
        """
        captured: list[Tensor] = []

        def capture(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            flat = output.detach().flatten(0, 1).requires_grad_(True)
            captured.append(flat)
            if noise is None:
                return flat.view_as(output)
            return flat.index_add(0, places, noise.to(flat)).view_as(output)

        handle = self.embedding.register_forward_hook(capture)
        try:
            with torch.enable_grad():
                yield captured
        finally:
            handle.remove()
        if len(captured) != 1:
            raise UsageError(
                f"the model called its embedding module {len(captured)} times in one pass, not once"
            )

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """A pass by itself.

        Raises:
            UsageError: the model is in a pass already.
        """
        if self.model in _in_pass:
            raise UsageError(
                f"{type(self.model).__name__} is in a pass of attribution already; two at once, in threads or hooks, "
                "need a copy each"
            )
        try:
            _in_pass.add(self.model)
            with made_ready(self.model, self.half_precision):
                yield
        finally:
            _in_pass.discard(self.model)


def _one_token(device: torch.device) -> Segment:
    return Segment(torch.zeros(1, dtype=torch.long, device=device))


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


def _forward_parameters(model: nn.Module) -> frozenset[str]:
    """Names that the model's forward takes; compiled and PEFT wrappers are looked through."""
    base: Any = getattr(model, "_orig_mod", model)
    base = base.get_base_model() if hasattr(base, "get_base_model") else base
    return frozenset(inspect.signature(base.forward).parameters)
