"""What happens beside the training loop: metrics to a file, a short progress bar, stops in time."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tokencredit.ranks import Ranks
from tokencredit.report import append_metrics, drop_after
from tokencredit.signals import Interruptions
from tokencredit.trainer_resume import ResumableTrainer

# What the trainer logs once, after the last step; it is no measurement of that step.
_CLOSING = "train_runtime"


class MetricsFile(TrainerCallback):
    """Appends every logged step to a metrics file; a resumed run drops the steps that it will log again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step and state.is_world_process_zero:
            drop_after(self.path, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs and _CLOSING not in logs:
            append_metrics(self.path, {"step": state.global_step, **logs})


class Progress(ProgressCallback):
    """The trainer's progress bar with the reward beside it, in place of a dump of all metrics."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and self.training_bar is not None and logs and "reward" in logs:
            self.training_bar.set_postfix(reward=f"{logs['reward']:.3f}")


class SafeStops(TrainerCallback):
    """Saves and stops on SIGINT and SIGTERM, where a generation batch is used up.

    The first signal asks for it, on whichever rank it arrives; the second ends the process at once. Use it as a context
    manager around the training, so that the signals' former handlers come back.

    Attributes:
        stopped: whether the ranks have agreed to stop.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer
        self.stopped = False
        self._signals = Interruptions(self._on_signal)
        self._ranks = Ranks(trainer.accelerator.device, trainer.accelerator.num_processes > 1)

    def __enter__(self) -> SafeStops:
        self._signals.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._signals.__exit__(*error)

    def _on_signal(self, count: int) -> None:
        if count > 1:
            raise KeyboardInterrupt
        if self.trainer.is_world_process_zero():
            with suppress(RuntimeError):  # the signal came in the middle of another print
                print("\nstopping after this step; once more to stop at once", file=sys.stderr, flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.stopped = self._ranks.any(self._signals.count > 0)
        if self.stopped and self.trainer.generation_used_up:
            control.should_save = control.should_training_stop = True
