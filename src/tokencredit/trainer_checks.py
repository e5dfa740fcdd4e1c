"""What `OARTrainer` refuses before it trains, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from tokencredit.errors import UsageError
from tokencredit.tasks.data import IMAGE_COLUMNS, RESERVED_COLUMNS


def check_sharding(accelerator: Any) -> None:
    """A model in pieces gathers them module by module, whoever calls it.

    Raises:
        UsageError: under FSDP 1, whose wrapper alone gathers the embedding.
    """
    from accelerate.utils import DistributedType

    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UsageError(
            "token credit does not work with FSDP 1; set fsdp_version: 2 in the FSDP configuration, "
            "or credit=uniform with credit_records=0"
        )


def check_room(prompt_ids: list[list[int]], completion_length: int, positions: int | None) -> None:
    """Every prompt leaves room for a completion among the positions that the model knows.

    Raises:
        UsageError: one does not.
    """
    longest = max((len(ids) for ids in prompt_ids), default=0)
    if positions is not None and longest + completion_length > positions:
        raise UsageError(
            f"a prompt has {longest} tokens and max_completion_length is {completion_length}, but the model's table of "
            f"positions ends at {positions}; shorten the prompts or lower max_completion_length"
        )


def check_rewards(reward_funcs: Any) -> None:
    """Functions take **kwargs.

    Raises:
        UsageError: one does not, by its name.
    """
    functions: list[Callable[..., Any] | Any] = (
        reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    )
    for function in functions:
        if function is None or isinstance(function, (str, torch.nn.Module)) or not callable(function):
            continue
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            name = getattr(function, "__name__", type(function).__name__)
            raise UsageError(
                f"the reward function {name} must accept **kwargs, as TRL passes every column to it"
            )


def check_columns(dataset: Any, credit: str) -> None:
    """No column has a name that TRL gives to something else, nor images that credit would not look at.

    Raises:
        UsageError: one has, by its name.
    """
    columns = getattr(dataset, "column_names", None) or []
    for name in RESERVED_COLUMNS:
        if name in columns:
            raise UsageError(
                f"the dataset has a column {name!r}, a name that TRL gives to rewards; rename it"
            )
    if credit != "uniform":
        for name in IMAGE_COLUMNS:
            if name in columns:
                raise UsageError(
                    f"the dataset has a column {name!r}, but credit={credit} does not support multimodal inputs; "
                    "use credit=uniform or drop the column"
                )
