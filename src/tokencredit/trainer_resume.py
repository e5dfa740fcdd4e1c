"""A GRPOTrainer that a stopped run can be continued with: same prompts, completions and numbers as without the stop.

TRL keeps a generation batch in memory alone, until its completions are used up: `steps_per_generation * num_iterations`
micro-steps. A run that resumed in between would train on other completions.
"""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from tokencredit.checkpoints import NOTE, contents, flaw, last_checkpoint, no_room
from tokencredit.errors import UsageError
from tokencredit.report.records import RECORDS, drop_after

logger = logging.getLogger(__name__)


class ResumableTrainer(GRPOTrainer):
    """GRPOTrainer whose checkpoints fall where a generation batch is used up, and say whether they are whole.

    Raises:
        UsageError: `enable_jit_checkpoint`, which saves at any moment; a checkpoint that can't be continued from, or
            for which the disk has no room.
    """

    args: GRPOConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self.args, "enable_jit_checkpoint", False):
            raise UsageError(
                "enable_jit_checkpoint saves in the middle of a generation batch, which no run can go on from; "
                "`tokencredit train` saves and stops on SIGTERM without it"
            )
        self._sampler: Any = None
        self.add_callback(WholeGenerations(self))

    @property
    def generation_used_up(self) -> bool:
        """Whether the next micro-step would generate anew."""
        return bool(self._step % self.micro_steps == 0)

    @property
    def micro_steps(self) -> int:
        """That one generation batch serves."""
        return (self.args.steps_per_generation or 1) * self.num_iterations

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; True takes the last checkpoint that is whole, and says which ones it passed over.

        Raises:
            UsageError: there is none, or the given one isn't.
        """
        self._step, self._buffered_inputs = 0, None  # of an earlier call
        if resume_from_checkpoint is True:
            found = last_checkpoint(Path(self.args.output_dir or "."), self.args.max_steps, logger.warning)
            if found is None:
                raise UsageError(f"nothing to resume: {self.args.output_dir} has no whole checkpoint")
            resume_from_checkpoint = str(found)
        elif resume_from_checkpoint:
            reason = flaw(Path(resume_from_checkpoint), self.args.max_steps)
            if reason is not None:
                raise UsageError(f"cannot resume: {resume_from_checkpoint} {reason}")
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """With the prompts in the order that they have in this epoch, whichever the run began in.

        Nothing where no step is left, as after a resumption from the last one: the Trainer would make one more.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        self._set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)

    def _set_epoch(self, epoch: int) -> None:
        """TRL's sampler draws its permutations one after another, and a resumed run would begin with the first."""
        generator = getattr(self._sampler, "generator", None)
        if generator is None:
            return
        generator.manual_seed(self.args.seed)
        for _ in range(epoch):
            torch.randperm(self._sampler.num_samples, generator=generator)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        self._sampler = super()._get_train_sampler(*args, **kwargs)
        return self._sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A whole checkpoint or none."""
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")

        def remove() -> None:
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)

        remove()  # a broken one of the same step, into which this one would be mixed
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
        except BaseException as error:
            remove()
            reason = no_room(error)
            if reason is None:
                raise
            raise UsageError(f"cannot save {folder}: {reason}") from error

    def _save_rng_state(self, output_dir: str) -> None:
        """The last thing but trainer_state.json, which is to say that every rank's files are there."""
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            notes = cast(dict[str, Any], self.state.stateful_callbacks)
            notes[NOTE] = contents(Path(output_dir), self.generation_used_up)


class WholeGenerations(TrainerCallback):
    """Saves fall where a generation batch is used up, but for that of the last step.

    `save_steps` is rounded up, said once; a save that others ask for in between waits. What was recorded after the
    checkpoint of a resumed run is dropped, as it will be recorded again.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer
        self._save_due = False
        self._saved_at = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._save_due, self._saved_at = False, state.global_step
        # A checkpoint brings the intervals that it was written with, but those of now are meant.
        state.compute_steps(args, state.max_steps)
        accumulation = args.gradient_accumulation_steps
        period = math.lcm(self.trainer.micro_steps, accumulation) // accumulation
        given = int(state.save_steps)
        state.save_steps = math.ceil(given / period) * period
        if args.save_strategy == "steps" and state.save_steps != given and state.is_world_process_zero:
            logger.warning(
                "save_steps %d is rounded up to %d: a generation batch is used up every %d steps",
                given,
                state.save_steps,
                period,
            )
        records = Path(args.output_dir or ".", RECORDS)
        if state.global_step and state.is_world_process_zero and records.exists():
            drop_after(records, state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._save_due = self._save_due or control.should_save
        control.should_save = self._save_due and (
            self.trainer.generation_used_up or state.global_step >= state.max_steps
        )
        if control.should_save:
            self._save_due = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._saved_at = state.global_step

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The step that ended the epoch may be saved already, and its checkpoint must not be taken down again."""
        if self._saved_at == state.global_step:
            control.should_save = False
