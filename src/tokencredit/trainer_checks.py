"""What `OARTrainer` refuses before it trains, by name."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tokencredit.credit import get_strategy
from tokencredit.errors import UsageError
from tokencredit.tasks.data import GOLD_COLUMNS, IMAGE_COLUMNS, RESERVED_COLUMNS

logger = logging.getLogger("tokencredit.trl")
GOLD = GOLD_COLUMNS[0]
NO_GOLD = f"the credit strategy reads the right answers, but the dataset has no column {GOLD!r} with them"


def check_sharding(accelerator: Any, samples: bool = False) -> None:
    """A model in pieces gathers them module by module, whoever calls it.

    Args:
        samples: whether credit writes texts with the policy, of different lengths on each rank.

    Raises:
        UsageError: under FSDP 1, whose wrapper alone gathers the embedding; under FSDP with credit that samples.
    """
    from accelerate.utils import DistributedType

    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UsageError(
            "token credit does not work with FSDP 1; set fsdp_version: 2 in the FSDP configuration, "
            "or credit=uniform with credit_records=0"
        )
    if samples and accelerator.distributed_type == DistributedType.FSDP:
        raise UsageError(
            "credit that samples from the policy does not work with FSDP; use another strategy, or a whole model on "
            "each rank"
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
    """No column has a name that TRL gives to something else, nor images that credit would not look at; and the right
    answers are there if credit reads them.

    Raises:
        UsageError: one has, or is missing, by its name.
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
    if columns and GOLD not in columns and "gold_ids" in get_strategy(credit).needs:
        raise UsageError(NO_GOLD)


def gold_texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The right answer of each row of the data set.

    Raises:
        UsageError: a row without one.
    """
    found = [row.get(GOLD) for row in rows]
    if any(gold is None for gold in found):
        raise UsageError(NO_GOLD)
    return [str(gold) for gold in found]


def say_split_groups(args: Any) -> None:
    """Warns where completions of one prompt are spread over ranks, as credit sees those of its own rank alone."""
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if rows % args.num_generations:
        logger.warning(
            "credit=%s compares the completions of a prompt on each rank by itself, and %d rows a rank split groups of "
            "%d over ranks; make per_device_train_batch_size x steps_per_generation a multiple of num_generations",
            args.credit,
            rows,
            args.num_generations,
        )
