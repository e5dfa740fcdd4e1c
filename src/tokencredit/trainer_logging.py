"""What `OARTrainer` logs of its credit: metrics over all ranks, a few completions as records, shares of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tokencredit.credit import TokenCredit
from tokencredit.rollouts import Rollouts


def credit_metrics(
    rollouts: Rollouts, credit: TokenCredit, gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Means over all ranks, by their names in the log, how many rows came out NaN or infinite, and a bonus's size.

    `gather` joins the ranks' tensors.
    """
    asked, mask = credit.rows, rollouts.reasoning_mask
    weights = credit.weights.double() * mask
    tokens = mask.sum(1).clamp(min=1)
    ess = weights.sum(1).square() / (tokens * weights.square().sum(1).clamp(min=1e-300))
    sums = torch.stack(
        [
            ess[asked].sum(),
            asked.sum().double(),
            credit.suppressed.sum().double(),
            credit.boosted.sum().double(),
            mask[asked].sum().double(),
            (~rollouts.answer_mask.any(1)).sum().double(),
            torch.tensor(float(asked.numel()), dtype=torch.float64, device=asked.device),
            credit.lost.sum().double(),
            (credit.bonus.double() * mask)[asked].square().sum(),
        ]
    )
    total = gather(sums.float()).view(-1, sums.numel()).sum(0).tolist()
    ess_sum, rows, suppressed, boosted, covered, no_answer, everything, lost, bonus = total
    metrics = {
        "credit/no_answer": no_answer / everything,
        "credit/skipped": 1 - rows / everything,
        "credit/not_finite": lost,
    }
    if rows:
        metrics["credit/ess_ratio"] = ess_sum / rows
        metrics["credit/suppressed"] = suppressed / covered
        metrics["credit/boosted"] = boosted / covered
    if bonus:
        metrics["credit/bonus"] = (bonus / covered) ** 0.5
    return metrics


def total_rewards(
    logged: Mapping[str, Any], weights: Tensor, rows: int, processes: int, process: int
) -> list[float | None]:
    """Total reward of each local row, from what TRL logged for this generation (all ranks, rank by rank).

    Args:
        logged: rewards by the name of their function, the newest last.
        weights: of the functions.
        rows: how many each rank has.
    """
    columns = [
        list(values)[-processes * rows :][process * rows : (process + 1) * rows] for values in logged.values()
    ]
    weighted = [
        [None if value is None or value != value else float(weight) * value for value in column]
        for weight, column in zip(weights.tolist(), columns, strict=True)
    ]
    totals: list[float | None] = []
    for values in zip(*weighted, strict=True):
        judged = [value for value in values if value is not None]
        totals.append(sum(judged) if judged else None)
    return totals


class StepClock(TrainerCallback):
    """Logs which share of each step's time attribution took: the seconds that the trainer adds up over the step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.started = time.perf_counter()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.started = time.perf_counter()
        self.trainer.credit_seconds = 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        share = self.trainer.credit_seconds / (time.perf_counter() - self.started)
        self.trainer._metrics["train"]["credit/share_of_step"].append(share)
