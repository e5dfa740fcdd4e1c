"""Optimizer steps that must not be made: one NaN in the gradient makes every weight NaN, and so the checkpoints."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


class FiniteSteps(TrainerCallback):
    """Leaves out optimizer steps whose gradient is NaN or infinite on any rank, as a row with such logits makes it.

    The log says so once and counts them, as `credit/steps_left_out`, the share of the steps since it was last written.
    Not in float16, where the gradient scaler does the same, nor under DeepSpeed, which keeps gradients to itself.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.said = False

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        assert model is not None
        if args.fp16:
            return
        finite = all_finite(model).float().to(self.trainer.accelerator.device)
        left_out = not bool(self.trainer.accelerator.gather(finite[None]).all())
        self.trainer._metrics["train"]["credit/steps_left_out"].append(float(left_out))
        if not left_out:
            return
        for parameter in model.parameters():
            parameter.grad = None
        if not self.said and self.trainer.accelerator.is_main_process:
            logger.warning(
                "step %d has a gradient that is NaN or infinite: such steps change nothing; credit/steps_left_out "
                "counts them",
                state.global_step + 1,
            )
        self.said = True


def all_finite(model: nn.Module) -> Tensor:
    """() bool: whether the gradients that this rank holds are finite numbers."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    local = [each.to_local() if isinstance(each, DTensor) else each for each in gradients]
    return torch.stack([each.isfinite().all() for each in local]).all() if local else torch.tensor(True)
