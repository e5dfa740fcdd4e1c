"""What happens beside the training loop: metrics to a file, a short progress bar, checkpoints and stops in time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tokencredit.report import append_metrics

# What the trainer logs once, after the last step; it is no measurement of that step.
_CLOSING = "train_runtime"


class MetricsFile(TrainerCallback):
    """Appends every logged step to a metrics file."""

    def __init__(self, path: Path) -> None:
        self.path = path

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
    """Saves and stops only where a generation batch is used up; stops on SIGINT and SIGTERM.

    In between, its completions exist in memory alone, and a run that resumed there would train on others. The first
    signal asks for a checkpoint and a stop at the next such step, the second ends the run at once. Use it as a context
    manager around the training, so that the signals' former handlers come back.
    """

    def __init__(self, used_up: Callable[[], bool]) -> None:
        self.used_up = used_up
        self.stopped = False
        self._save_due = False
        self._delay_told = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SafeStops:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True
        print("\nstopping after this step; once more to stop at once", file=sys.stderr, flush=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Moves a save or stop that is due to the end of the generation batch."""
        self._save_due = self._save_due or control.should_save or self.stopped
        safe = state.global_step >= state.max_steps or self.used_up()
        if control.should_save and not safe and not self._delay_told:
            print(
                f"the save at step {state.global_step} waits until its generation batch is used up",
                file=sys.stderr,
            )
            self._delay_told = True
        control.should_save = self._save_due and safe
        if control.should_save:
            self._save_due = False
        if self.stopped and safe:
            control.should_training_stop = True
