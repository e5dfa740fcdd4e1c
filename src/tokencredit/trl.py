"""GRPO with token-level credit through TRL: `OARConfig` for `GRPOConfig`, `OARTrainer` for `GRPOTrainer`.

TRL generates, rewards, normalises and optimises; its (B,) advantages are replaced by (B, T), after the generation or,
where credit is read from the loss's own forward pass, in the loss.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from trl import GRPOTrainer

from tokencredit.calling import Caller
from tokencredit.credit import NOT_FINITE, TokenCredit, get_strategy
from tokencredit.credit.keys import keyed_generator
from tokencredit.errors import UsageError
from tokencredit.generation import Generation, KnownPolicy
from tokencredit.graph import GraphPolicy, GraphReader
from tokencredit.grounding import ground, probe_tokens
from tokencredit.policy import Policy
from tokencredit.report.records import RECORDS, append_record
from tokencredit.report.token_record import token_record
from tokencredit.rollouts import Grader, Rollouts
from tokencredit.spans import Spans
from tokencredit.step_verifiers import get_verifier
from tokencredit.trainer_checks import (
    check_columns,
    check_rewards,
    check_room,
    check_sharding,
    gold_texts,
    say_split_groups,
)
from tokencredit.trainer_config import OARConfig
from tokencredit.trainer_graders import check_gradable, grader_of
from tokencredit.trainer_logging import StepClock, credit_metrics, total_rewards
from tokencredit.trainer_resume import ResumableTrainer
from tokencredit.trainer_rewards import checked_rewards
from tokencredit.trainer_steps import FiniteSteps

__all__ = ["OARConfig", "OARTrainer"]

logger = logging.getLogger(__name__)


class OARTrainer(ResumableTrainer):
    """GRPOTrainer whose advantages are per token. Takes the same arguments.

    Raises:
        UsageError: before training, where a strategy, a reward function, a column or a model can't work, by name; in
            training, where a reward function fails, by its name and the row.
    """

    args: OARConfig
    model: torch.nn.Module
    _logs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs).arguments
        config = bound.get("args")
        if config is not None and not isinstance(config, OARConfig):
            raise UsageError(f"OARTrainer takes an OARConfig, not a {type(config).__name__}")
        check_rewards(bound.get("reward_funcs"))
        check_columns(bound.get("train_dataset"), config.credit if config is not None else OARConfig.credit)
        if config is None:
            model = bound["model"]
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
            bound["args"] = OARConfig(output_dir=f"{str(name).rstrip('/').split('/')[-1]}-OAR")
        bound.pop("self")
        super().__init__(**bound)
        self.reward_funcs = checked_rewards(self.reward_funcs, self.reward_func_names)
        self.strategy = get_strategy(self.args.credit)
        judges = "step_verdicts" in self.strategy.needs
        self._verifier = get_verifier(self.args.credit_verifier) if judges else None
        if "grader" in self.strategy.needs:
            check_gradable(self.reward_funcs, self.reward_func_names)
        self._multimodal = hasattr(self.processing_class, "image_processor")
        if self.args.credit != "uniform" and self._multimodal:
            raise UsageError(
                f"credit={self.args.credit} does not support multimodal models; use credit=uniform"
            )
        self._probes = self.args.credit_no_answer == "probe" or self.args.credit_probe_always
        if self._probes:
            probe_tokens(self._tokenizer, self.args.credit_probe)
        if self.args.credit != "uniform" or self.args.credit_records:
            check_sharding(self.accelerator, self.strategy.samples)
        unwrapped = self.accelerator.unwrap_model(self.model)
        half = True if self.args.bf16 or self.args.fp16 else None
        several = self.accelerator.num_processes > 1
        if several and "groups" in self.strategy.needs:
            say_split_groups(self.args)
        self._policy = Policy(unwrapped, self.args.credit_token_budget, half_precision=half, in_step=several)
        self._reader = GraphReader(unwrapped, half) if self.args.credit_stage == "loss" else None
        self._said, self._lost = (
            False,
            False,
        )  # what is said once: why not in the loss, that rows weren't finite
        self._generation: Generation | None = None
        self._with_logps: Callable[[torch.Tensor], None] | None = None  # of the next forward pass
        self.credit_seconds = 0.0  # of the step so far
        self.add_callback(FiniteSteps(self))
        self.add_callback(StepClock(self))

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """TRL's completions, if the model has room for them."""
        model = self.accelerator.unwrap_model(self.model)
        check_room(prompt_ids, self.max_completion_length or 0, Caller(model).known_positions)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """TRL's log-probabilities, at the positions that the completions were sampled at."""
        with Caller(self.accelerator.unwrap_model(model)).counted_positions():
            found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        then, self._with_logps = self._with_logps, None
        if then is not None:
            then(found[0].detach())
        return found

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts with `advantages` (B, T) in place of (B,): A_i w_{i,t} + b_{i,t}, for the loss alone.

        `uniform` leaves them as they are, and so does evaluation. Where credit is for the loss to assign, they stay
        (B,) until then, and `credit_row` (B,) says which row of the generation each is.
        """
        started = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        rolled_out = time.perf_counter()
        self._metrics["train"]["credit/rollout_seconds"].append(rolled_out - started)
        if self.args.credit == "uniform" or self._on_policy(output):
            self._metrics["train"]["credit/seconds"].append(0.0)
            if self._records_due():
                self._record(*self._ground(output, inputs), None, self._generation_key())
            return output
        options = self.args.credit_options(self._generation_key(), self._tokenizer.pad_token_id)
        generation = Generation.of(*self._ground(output, inputs), options, self._policy.dtype)
        rows = torch.arange(output["advantages"].shape[0], device=output["advantages"].device)
        if self.strategy.at_loss or self._in_loss():
            output["credit_row"] = rows
            self._generation = generation
            self._count(generation, time.perf_counter() - rolled_out)
            return output
        generation.assign(self.strategy, self._policy, rows)
        output["advantages"] = generation.token_advantages(rows)
        self._count(generation, time.perf_counter() - rolled_out)
        self._finish(generation)
        return output

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss, with the token advantages put in between its forward pass and what it makes of them."""
        if "credit_row" not in inputs:
            return cast(torch.Tensor, super()._compute_loss(model, inputs))
        if self.strategy.at_loss:
            return self._loss_with_logps(model, inputs)
        generation, rows = self._generation, inputs["credit_row"]
        assert generation is not None and self._reader is not None
        started = time.perf_counter()
        probed = generation.probed[rows]
        generation.assign(self.strategy, self._policy, rows[probed])
        batch = generation.rollouts.select(rows)
        # NaN until they are known, so that a loss that doesn't wait for them shows.
        advantages = torch.full(batch.shape, torch.nan, device=rows.device)
        self._count(generation, time.perf_counter() - started)

        def assign(policy: GraphPolicy) -> None:
            started = time.perf_counter()
            generation.assign(self.strategy, policy, rows[~probed])
            advantages.copy_(generation.token_advantages(rows))
            self._count(generation, time.perf_counter() - started)

        with self._reader.reading(batch, assign):
            loss = super()._compute_loss(model, {**inputs, "advantages": advantages})
        if not generation.left:
            self._finish(generation)
        return cast(torch.Tensor, loss)

    def _loss_with_logps(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss, with token advantages from the log-probabilities that it has just computed."""
        generation, rows = self._generation, inputs["credit_row"]
        assert generation is not None
        batch = generation.rollouts.select(rows)
        advantages = torch.full(batch.shape, torch.nan, device=rows.device)

        def assign(logps: torch.Tensor) -> None:
            started = time.perf_counter()
            generation.assign(self.strategy, KnownPolicy(batch, logps), rows)
            advantages.copy_(generation.token_advantages(rows))
            self._count(generation, time.perf_counter() - started)

        self._with_logps = assign
        loss = super()._compute_loss(model, {**inputs, "advantages": advantages})
        if not generation.left:
            self._finish(generation)
            generation.left, generation.seconds = generation.rollouts.shape[0], 0.0
        return cast(torch.Tensor, loss)

    def _ground(
        self, output: dict[str, Any], inputs: Sequence[dict[str, Any]] = ()
    ) -> tuple[Rollouts, list[Spans]]:
        """TRL's output as Rollouts, with rows keyed and groups numbered by their place in the whole generation batch.

        `inputs` are the rows of the data set, for strategies that need the right answers.
        """
        rows = output["completion_ids"].shape[0]
        first = self.accelerator.process_index * rows
        device = output["completion_ids"].device
        keys = torch.arange(first, first + rows, device=device)
        needs = self.strategy.needs
        return ground(
            self._tokenizer,
            output["prompt_ids"],
            output["prompt_mask"].bool(),
            output["completion_ids"],
            output["completion_mask"].bool(),
            marker=self.args.credit_marker,
            probe=self.args.credit_probe if self._probes else None,
            probe_always=self.args.credit_probe_always,
            credited_mask=output.get("tool_mask"),
            needs=needs,
            ask=self.args.credit_probe,
            golds=gold_texts(inputs) if "gold_ids" in needs else (),
            verifier=self._verifier,
            rewards=self._rewards(rows) if "rewards" in needs else None,
            advantages=output["advantages"],
            old_logps=output.get("old_per_token_logps"),
            grader=self._grader(inputs, first) if "grader" in needs else None,
            groups=keys // (self.num_generations or 1),
            row_keys=keys,
        )

    def _rewards(self, rows: int) -> torch.Tensor:
        """(B,) float64 of the local rows, NaN where there is none."""
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        found = total_rewards(self._logs["rewards"], self.reward_weights, rows, processes, rank)
        values = [torch.nan if reward is None else reward for reward in found]
        return torch.tensor(values, dtype=torch.float64, device=self.accelerator.device)

    def _grader(self, inputs: Sequence[dict[str, Any]], first: int) -> Grader:
        """The rewards of other completions for the local rows."""
        weights = self.reward_weights.tolist()
        told = {"trainer_state": self.state, "log_extra": _nothing, "log_metric": _nothing}
        return grader_of(cast(Any, self.reward_funcs), weights, self._tokenizer, inputs, first, **told)

    def _generation_key(self) -> int:
        """Counts micro-steps, and continues where a resumed run left off (TRL's own counter starts again at 0)."""
        accumulation = self.args.gradient_accumulation_steps
        return self.state.global_step * accumulation + self._step % accumulation

    def _on_policy(self, output: dict[str, Any]) -> bool:
        """Whether the strategy has nothing to compare, so that this is plain GRPO; said once."""
        if not self.strategy.at_loss or "old_per_token_logps" in output:
            return False
        if not self._said and self.accelerator.is_main_process:
            logger.warning(
                "credit=%s has no older policy to compare with, as every optimizer step has completions of its own: it "
                "is plain GRPO; set num_iterations, or steps_per_generation above gradient_accumulation_steps",
                self.args.credit,
            )
        self._said = True
        return True

    def _in_loss(self) -> bool:
        """Whether the loss is to assign this generation's credit; why it can't is said once."""
        if self._reader is None:
            return False
        reason = self._obstacle() or self._reader.obstacle()
        if reason is not None and not self._said:
            logger.warning("credit_stage=loss: %s; a separate pass assigns the credit", reason)
            self._said = True
        return reason is None

    def _obstacle(self) -> str | None:
        """Why these settings keep the loss's forward pass from assigning credit."""
        args = self.args
        if self.num_iterations > 1 or args.gradient_accumulation_steps % (args.steps_per_generation or 1):
            return (
                "a generation serves more than one optimizer step, and its credit is that of generation time"
            )
        if args.torch_compile:
            return "a compiled model frees its graph after one backward"
        return (
            "every row is asked by a probe, which the loss doesn't read" if args.credit_probe_always else None
        )

    def _count(self, generation: Generation, seconds: float) -> None:
        """Adds time that credit took."""
        self.credit_seconds += seconds
        generation.seconds += seconds

    def _finish(self, generation: Generation) -> None:
        """Logs a generation whose rows all have their credit."""
        metrics = credit_metrics(generation.rollouts, generation.credit, self.accelerator.gather)
        if metrics["credit/not_finite"] and not self._lost:
            self._lost = True
            if self.accelerator.is_main_process:
                logger.warning("%s; credit/not_finite counts them", NOT_FINITE)
        for name, value in {**metrics, "credit/seconds": generation.seconds}.items():
            self._metrics["train"][name].append(value)
        if self._records_due():
            self._record(generation.rollouts, generation.spans, generation.credit, generation.options.step)

    def _records_due(self) -> bool:
        """At the first step, and where a logged step is among those that this generation serves."""
        if not self.args.credit_records or self._multimodal:
            return False
        done = self.state.global_step
        micro_steps = (self.args.steps_per_generation or 1) * self.num_iterations
        served = micro_steps // self.args.gradient_accumulation_steps
        every = max(1, int(self.state.logging_steps or 1))
        return done == 0 or (done + max(1, served)) // every > done // every

    def _record(
        self, rollouts: Rollouts, spans: list[Spans], credit: TokenCredit | None, generation_key: int
    ) -> None:
        """A few rows of the main process, chosen by a keyed draw, to `records.jsonl` in the output directory."""
        rows = rollouts.shape[0]
        generator = keyed_generator(self.args.seed, generation_key, 0, -1)
        drawn = torch.randperm(rows, generator=generator)
        has_tokens = rollouts.completion_mask.any(dim=1).cpu()  # a truncated row may have been masked out
        written = drawn[has_tokens[drawn]]
        count = self.args.credit_records if self.accelerator.is_main_process else 0
        chosen = written[:count].sort().values
        sample = rollouts.select(chosen)
        logps = self._policy.token_logps(sample)
        rank = self.accelerator.process_index
        rewards = total_rewards(
            self._logs["rewards"], self.reward_weights, rows, self.accelerator.num_processes, rank
        )
        for index, row in enumerate(chosen.tolist()):
            append_record(
                Path(self.args.output_dir or ".") / RECORDS,
                {
                    "step": self.state.global_step + 1,
                    "row": row,
                    "credit": self.args.credit,
                    "reward": rewards[row],
                    **token_record(self._tokenizer, sample, index, spans[row], logps, credit, row),
                },
            )


def _nothing(*_: Any, **__: Any) -> None:
    """In the place of TRL's logs, which are of training's own completions."""
