"""GRPO with token-level credit through TRL: `OARConfig` for `GRPOConfig`, `OARTrainer` for `GRPOTrainer`.

TRL generates, rewards, normalises and optimises; the one override replaces its (B,) advantages by (B, T).
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from tokencredit.credit import Options, TokenCredit, assign, get_strategy
from tokencredit.credit.keys import keyed_generator
from tokencredit.errors import UsageError
from tokencredit.grounding import PROBE, ground, probe_tokens
from tokencredit.policy import Policy
from tokencredit.report.records import append_record
from tokencredit.report.token_record import token_record
from tokencredit.rollouts import Rollouts
from tokencredit.spans import Spans
from tokencredit.tasks.data import IMAGE_COLUMNS, RESERVED_COLUMNS

NO_ANSWER = ("uniform", "probe")


def _option(name: str, text: str, **training: Any) -> Any:
    """A config field with the default that the strategies have, or one that suits training better."""
    default = next(f.default for f in dataclasses.fields(Options) if f.name == name)
    return field(**{"default": default, **training}, metadata={"help": text})


@dataclass
class OARConfig(GRPOConfig):
    """GRPOConfig with the options of token-level credit; `beta` stays TRL's KL coefficient.

    Every option of `tokencredit.Options` is here as `credit_NAME`. Seeds and steps of random draws come from
    training itself.
    """

    credit: str = field(default="oar-g", metadata={"help": "Credit strategy, see `tokencredit strategies`."})
    credit_outcome: str | None = _option(
        "outcome",
        "Outcome: last, answer_mean, answer_joint, answer_kl. Default: the strategy's published one.",
    )
    credit_counterfactual: str = _option("counterfactual", "OAR-P replaces a token by: pad, alternative.")
    credit_gradient: str | None = _option(
        "gradient",
        "OAR-G's objective: noise (published), labels (no noise). Default: noise, in half precision labels.",
    )
    credit_saliency: str = _option("saliency", "OAR-G's reduction: product (gradient x embedding), norm.")
    credit_m: int = _option(
        "m",
        "Later tokens that OAR-P computes anew, those that attend most to the replaced one; 0: all, exact.",
        default=8,
    )
    credit_noise_std: float = _option("noise_std", "Standard deviation of OAR-G's embedding noise.")
    credit_draws: int = _option("draws", "Noise draws of OAR-G, averaged.")
    credit_labels: int = _option("labels", "Labels of OAR-G's labels form.")
    credit_labels_from: str = _option(
        "labels_from", "Labels are the top ones weighted by p0, or a sample from p0."
    )
    credit_q: float = _option("q", "Gate: quantile (or absolute value) that parts dull from pivotal tokens.")
    credit_floor: float = _option(
        "floor", "Gate: smallest weight of a dull token before the mass is restored."
    )
    credit_beta: float = _option("beta", "Gate: largest boost of a pivotal token.")
    credit_threshold: str = _option("threshold", "Gate: q is a quantile of the row, or an absolute value.")
    credit_mass: bool = _option("mass", "Gate: rescale so that the weights sum to their number.")
    credit_bias: float = _option("bias", "What the bias control adds to every reasoning token.")
    credit_no_answer: str = field(
        default="uniform",
        metadata={"help": "Rows without an answer: weights 1 (uniform), or ask with the probe."},
    )
    credit_probe: str = field(
        default=PROBE, metadata={"help": "Text put after the reasoning to ask for the answer."}
    )
    credit_probe_always: bool = field(
        default=False, metadata={"help": "Use the probe in rows with an answer too."}
    )
    credit_marker: str | None = field(
        default=None,
        metadata={"help": "The task's own answer marker, such as ans. Default: boxed, ####, ..."},
    )
    credit_token_budget: int | None = field(
        default=None,
        metadata={"help": "Tokens in one forward pass of attribution. Default: what the free memory holds."},
    )
    credit_records: int = field(
        default=4,
        metadata={"help": "Completions recorded with their token credit at each logged step; 0: none."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        get_strategy(self.credit)
        self.credit_options(step=0)
        if self.credit_no_answer not in NO_ANSWER:
            raise UsageError(
                f"credit_no_answer must be one of {', '.join(NO_ANSWER)}, not {self.credit_no_answer!r}"
            )
        for name in ("credit_probe", "credit_marker"):
            if getattr(self, name) == "":
                raise UsageError(f"{name} must not be empty")
        if self.credit_token_budget is not None and self.credit_token_budget < 1:
            raise UsageError(f"credit_token_budget must be at least 1, not {self.credit_token_budget}")
        if self.credit_records < 0:
            raise UsageError(f"credit_records must not be negative, but is {self.credit_records}")

    def credit_options(self, step: int, pad_token_id: int | None = None) -> Options:
        """The strategies' options for one generation step.

        Raises:
            UsageError: an option out of range, named as in this config.
        """
        own = [f.name for f in dataclasses.fields(Options) if f.name not in ("seed", "step", "pad_token_id")]
        values = {name: getattr(self, f"credit_{name}") for name in own}
        try:
            return Options(seed=self.seed, step=step, pad_token_id=pad_token_id, **values)
        except UsageError as error:
            raise UsageError(f"credit_{error}") from None


class OARTrainer(GRPOTrainer):
    """GRPOTrainer whose advantages are per token. Takes the same arguments.

    Raises:
        UsageError: before training, where a strategy, a reward function, a column or a model can't work, by name.
    """

    args: OARConfig
    model: torch.nn.Module
    _logs: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs).arguments
        config = bound.get("args")
        if config is not None and not isinstance(config, OARConfig):
            raise UsageError(f"OARTrainer takes an OARConfig, not a {type(config).__name__}")
        _check_rewards(bound.get("reward_funcs"))
        _check_columns(bound.get("train_dataset"), config.credit if config is not None else OARConfig.credit)
        if config is None:
            model = bound["model"]
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
            bound["args"] = OARConfig(output_dir=f"{str(name).rstrip('/').split('/')[-1]}-OAR")
        bound.pop("self")
        super().__init__(**bound)
        self.strategy = get_strategy(self.args.credit)
        self._multimodal = hasattr(self.processing_class, "image_processor")
        if self.args.credit != "uniform" and self._multimodal:
            raise UsageError(
                f"credit={self.args.credit} does not support multimodal models; use credit=uniform"
            )
        self._probes = self.args.credit_no_answer == "probe" or self.args.credit_probe_always
        if self._probes:
            probe_tokens(self._tokenizer, self.args.credit_probe)
        if self.args.credit != "uniform" or self.args.credit_records:
            _check_whole_model(self.accelerator)
        self._policy = Policy(
            self.accelerator.unwrap_model(self.model),
            self.args.credit_token_budget,
            half_precision=True if self.args.bf16 or self.args.fp16 else None,
        )
        self._credit_seconds = 0.0
        self.add_callback(_StepClock(self))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's rollouts with `advantages` (B, T) in place of (B,): A_i w_{i,t} + b_{i,t}, for the loss alone.

        `uniform` leaves them as they are, and so does evaluation.
        """
        started = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        rolled_out = time.perf_counter()
        spans, rollouts, credit = None, None, None
        if self.args.credit != "uniform":
            rollouts, spans = self._ground(output)
            options = self.args.credit_options(self._generation_key(), self._tokenizer.pad_token_id)
            credit = assign(self.strategy, self._policy, rollouts, options)
            output["advantages"] = credit.token_advantages(output["advantages"]).to(torch.float32).detach()
        self._credit_seconds += time.perf_counter() - rolled_out
        self._metrics["train"]["credit/rollout_seconds"].append(rolled_out - started)
        self._metrics["train"]["credit/seconds"].append(time.perf_counter() - rolled_out)
        if rollouts is not None and credit is not None:
            self._log_credit(rollouts, credit)
        if self._records_due():
            if rollouts is None:
                rollouts, spans = self._ground(output)
            self._record(output, rollouts, spans, credit)
        return output

    def _ground(self, output: dict[str, Any]) -> tuple[Rollouts, list[Spans]]:
        """TRL's output as Rollouts, with the rows keyed by their place in the whole generation batch."""
        rows = output["completion_ids"].shape[0]
        first = self.accelerator.process_index * rows
        device = output["completion_ids"].device
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
            advantages=output["advantages"],
            row_keys=torch.arange(first, first + rows, device=device),
        )

    def _generation_key(self) -> int:
        """Counts micro-steps, and continues where a resumed run left off (TRL's own counter starts again at 0)."""
        accumulation = self.args.gradient_accumulation_steps
        return self.state.global_step * accumulation + self._step % accumulation

    def _log_credit(self, rollouts: Rollouts, credit: TokenCredit) -> None:
        """Means over all ranks, into TRL's log."""
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
            ]
        )
        total = self.accelerator.gather(sums.float()).view(-1, sums.numel()).sum(0).tolist()
        ess_sum, rows, suppressed, boosted, covered, no_answer, everything = total
        metrics = {"credit/no_answer": no_answer / everything, "credit/skipped": 1 - rows / everything}
        if rows:
            metrics["credit/ess_ratio"] = ess_sum / rows
            metrics["credit/suppressed"] = suppressed / covered
            metrics["credit/boosted"] = boosted / covered
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def _records_due(self) -> bool:
        """At the first step, and where a logged step is among those that this generation serves."""
        if not self.args.credit_records or not self.accelerator.is_main_process or self._multimodal:
            return False
        done = self.state.global_step
        micro_steps = (self.args.steps_per_generation or 1) * self.num_iterations
        served = micro_steps // self.args.gradient_accumulation_steps
        every = max(1, int(self.state.logging_steps or 1))
        return done == 0 or (done + max(1, served)) // every > done // every

    def _record(
        self,
        output: dict[str, Any],
        rollouts: Rollouts,
        spans: list[Spans] | None,
        credit: TokenCredit | None,
    ) -> None:
        """A few rows, chosen by a keyed draw, to `records.jsonl` in the output directory."""
        assert spans is not None and rollouts.advantages is not None
        rows = rollouts.shape[0]
        generator = keyed_generator(self.args.seed, self._generation_key(), 0, -1)
        drawn = torch.randperm(rows, generator=generator)
        has_tokens = rollouts.completion_mask.any(dim=1).cpu()  # a truncated row may have been masked out
        written = drawn[has_tokens[drawn]]
        chosen = written[: self.args.credit_records].sort().values
        sample = rollouts.select(chosen)
        logps = self._policy.token_logps(sample)
        rewards = self._logged_rewards(rows)
        for index, row in enumerate(chosen.tolist()):
            append_record(
                Path(self.args.output_dir or ".") / "records.jsonl",
                {
                    "step": self.state.global_step + 1,
                    "row": row,
                    "credit": self.args.credit,
                    "reward": rewards[row],
                    **token_record(self._tokenizer, sample, index, spans[row], logps, credit, row),
                },
            )

    def _logged_rewards(self, rows: int) -> list[float | None]:
        """Total reward of each local row, from what TRL logged for this generation (all ranks, rank by rank)."""
        world = self.accelerator.num_processes * rows
        start = self.accelerator.process_index * rows
        columns = [list(values)[-world:][start : start + rows] for values in self._logs["rewards"].values()]
        weighted = [
            [None if value is None or value != value else float(weight) * value for value in column]
            for weight, column in zip(self.reward_weights.tolist(), columns, strict=True)
        ]
        totals: list[float | None] = []
        for values in zip(*weighted, strict=True):
            judged = [value for value in values if value is not None]
            totals.append(sum(judged) if judged else None)
        return totals


class _StepClock(TrainerCallback):
    """Logs which share of each step's time attribution took."""

    def __init__(self, trainer: OARTrainer) -> None:
        self.trainer = trainer
        self.started = time.perf_counter()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.started = time.perf_counter()
        self.trainer._credit_seconds = 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        share = self.trainer._credit_seconds / (time.perf_counter() - self.started)
        self.trainer._metrics["train"]["credit/share_of_step"].append(share)


def _check_whole_model(accelerator: Any) -> None:
    """Ranks make as many passes as their rows ask for, which a model in pieces would wait for."""
    from accelerate.utils import DistributedType

    kind = accelerator.distributed_type
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if kind == DistributedType.FSDP or (plugin is not None and plugin.zero_stage == 3):
        raise UsageError(
            "token credit does not work yet with a model that FSDP or ZeRO-3 shards over ranks; use DDP or ZeRO-2, "
            "or credit=uniform with credit_records=0"
        )


def _check_rewards(reward_funcs: Any) -> None:
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


def _check_columns(dataset: Any, credit: str) -> None:
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
