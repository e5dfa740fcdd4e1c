"""The sizes of a model, from its config: nothing is loaded, parameters are counted on the meta device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tokencredit.errors import UsageError

MOST_LAYERS = 10_000


@dataclass(frozen=True)
class ModelShape:
    """Sizes that memory and work follow from.

    Attributes:
        parameters: all that are stored, tied ones once.
        body: those that a token passes between embedding and head; of a mixture's experts the share that is chosen.
        layers, hidden, heads, kv_heads, head_dim, feed_forward, vocabulary: as in the config.
        tied: whether embedding and head are one matrix.
        layer: parameters of the largest layer, the unit that FSDP and ZeRO-3 gather.
        linears: name of each kind of linear layer (the head's left out) -> sum of inputs and outputs over the model.
    """

    parameters: int
    body: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    tied: bool
    layer: int
    linears: Mapping[str, int]

    @property
    def attention_width(self) -> int:
        """Numbers in a token's queries."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers in a token's keys, and in its values, of one layer."""
        return self.kv_heads * self.head_dim

    @property
    def head(self) -> int:
        """Parameters of the matrix that gives logits."""
        return self.vocabulary * self.hidden

    def adapter(self, rank: int, targets: list[str] | None) -> int:
        """Parameters of LoRA of this rank: rank x (inputs + outputs) of every target.

        Args:
            targets: names of linear layers; None or "all-linear": all of them.

        Raises:
            UsageError: the model has no linear layer of one of the names.
        """
        names = None if targets is None or "all-linear" in targets else targets
        for name in names or []:
            if name not in self.linears:
                raise UsageError(
                    f"lora_target_modules {name!r} is none of the model's linear layers: {', '.join(self.linears)}"
                )
        return rank * sum(size for name, size in self.linears.items() if names is None or name in names)


def shape_of(config: Any) -> ModelShape:
    """The shape of the causal language model that a transformers config stands for.

    Raises:
        UsageError: transformers can't build it, or the config doesn't say how wide its layers are.
    """
    text = config.get_text_config()
    _check_sizes(text)
    try:
        model = _on_meta(text)
    except Exception as error:  # building raises anything where a config is not a language model's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"cannot build a language model of type {text.model_type!r}: {reason}") from error
    hidden, heads = _number(text, "hidden_size"), _number(text, "num_attention_heads")
    embedding = model.get_input_embeddings()
    head = model.get_output_embeddings()
    if head is None:
        raise UsageError(f"a model of type {text.model_type!r} has no head that gives logits")
    tied = head.weight is embedding.weight
    ends = _size(embedding) + (0 if tied else _size(head))
    total = _size(model)
    experts = sum(parameter.numel() for name, parameter in model.named_parameters() if ".experts." in name)
    return ModelShape(
        parameters=total,
        body=int(total - ends - experts * (1 - _chosen_experts(text))),
        layers=_number(text, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        feed_forward=_feed_forward(text, hidden),
        vocabulary=_number(text, "vocab_size"),
        tied=tied,
        layer=_largest_layer(model),
        linears=_linears(model, head),
    )


def _check_sizes(config: Any) -> None:
    """What building would take for ever, or let pass, or say in words of its own."""
    layers, heads = _number(config, "num_hidden_layers"), _number(config, "num_attention_heads")
    if layers > MOST_LAYERS:
        raise UsageError(f"the config has num_hidden_layers {layers}; a plan takes at most {MOST_LAYERS}")
    _number(config, "vocab_size")
    for name, size in (("hidden_size", _number(config, "hidden_size")), ("num_attention_heads", heads)):
        parts = {"hidden_size": "num_attention_heads", "num_attention_heads": "num_key_value_heads"}[name]
        count = getattr(config, parts, None) or 1
        if size % count and not (name == "hidden_size" and getattr(config, "head_dim", None)):
            raise UsageError(f"the config has {name} {size}, which is no multiple of its {parts} {count}")


def _on_meta(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _number(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"the config of type {config.model_type!r} has no {name}, which a plan needs")
    return value


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _chosen_experts(config: Any) -> float:
    """The share of a mixture's experts that a token passes."""
    chosen = getattr(config, "num_experts_per_tok", None)
    all_of_them = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    return chosen / all_of_them if chosen and all_of_them else 1.0


def _feed_forward(config: Any, hidden: int) -> int:
    """Of a mixture the width of all experts that a token passes."""
    width = getattr(config, "moe_intermediate_size", None)
    if width:
        return int(width * config.num_experts_per_tok)
    width = getattr(config, "intermediate_size", None) or 4 * hidden
    return int(max(width) if isinstance(width, (list, tuple)) else width)


def _largest_layer(model: nn.Module) -> int:
    """Of the longest list of modules; the whole model where there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        return _size(model)
    return max(_size(layer) for layer in max(lists, key=len))


def _linears(model: nn.Module, head: nn.Module) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, module in model.named_modules():
        if module is head or getattr(module, "weight", None) is None or module.weight.dim() != 2:
            continue
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            found[name.rsplit(".", 1)[-1]] += sum(module.weight.shape)
    return dict(found)
