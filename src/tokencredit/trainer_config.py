"""`OARConfig`: what `OARTrainer` may be told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from tokencredit.credit import STRATEGIES, Options, get_strategy
from tokencredit.errors import UsageError
from tokencredit.grounding import PROBE

NO_ANSWER = ("uniform", "probe")
STAGES = ("rollout", "loss")


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
    credit_stage: str = field(
        default="rollout",
        metadata={
            "help": "When credit is assigned: rollout (a pass of its own), loss (oar-g, in the loss's own pass)."
        },
    )
    credit_outcome: str | None = _option(
        "outcome",
        "Outcome: last, answer_mean, answer_joint, answer_kl. Default: the strategy's published one.",
    )
    credit_counterfactual: str | None = _option(
        "counterfactual",
        "A token is replaced by: pad, alternative, similar. Default: the strategy's own.",
    )
    credit_gradient: str | None = _option(
        "gradient",
        "OAR-G's objective: noise (published), labels (no noise). Default: noise, in half precision labels.",
    )
    credit_saliency: str = _option("saliency", "OAR-G's reduction: product (gradient x embedding), norm.")
    credit_m: int | None = _option(
        "m",
        "OAR-P: later tokens computed anew, those that attend most to the replaced one; path: earlier tokens that each "
        "asks for, those that it attends to most; 0: all, exact. Default: 8, for path 4.",
        default=None,
    )
    credit_noise_std: float = _option("noise_std", "Standard deviation of OAR-G's embedding noise.")
    credit_draws: int = _option("draws", "Noise draws of OAR-G, averaged.")
    credit_labels: int = _option(
        "labels", "Labels of OAR-G's labels form, each a backward pass of its own.", default=1
    )
    credit_labels_from: str = _option(
        "labels_from", "Labels are a sample from p0, or the top ones weighted by p0.", default="sample"
    )
    credit_kappa: float = _option("kappa", "Path: what each token leaks to the prompt, nats.")
    credit_focus: float = _option("focus", "Path: how much a replacement must be about one later token.")
    credit_q: float = _option("q", "Gate: quantile (or absolute value) that parts dull from pivotal tokens.")
    credit_floor: float = _option(
        "floor", "Gate: smallest weight of a dull token before the mass is restored."
    )
    credit_beta: float = _option("beta", "Gate: largest boost of a pivotal token.")
    credit_threshold: str = _option("threshold", "Gate: q is a quantile of the row, or an absolute value.")
    credit_mass: bool = _option("mass", "Gate: rescale so that the weights sum to their number.")
    credit_bias: float = _option("bias", "What the bias control adds to every reasoning token.")
    credit_coefficient: float = _option(
        "coefficient", "What the bonuses of sibling and early-answer are multiplied by."
    )
    credit_siblings: int = _option(
        "siblings",
        "Successes of its group that sibling compares a failed completion with, those most like it.",
    )
    credit_sibling_over: str = _option("sibling_over", "The potential's mean or max over the siblings.")
    credit_most_steps: int = _option(
        "most_steps", "Steps of a completion that are told apart; of more, neighbours count as one."
    )
    credit_future_clip: float = _option("future_clip", "FIPO's largest boost.")
    credit_half_life: float = _option("half_life", "Tokens after which the future counts half in FIPO.")
    credit_samples: int = _option("samples", "Answers that SPAE draws after each step.")
    credit_sample_tokens: int = _option("sample_tokens", "Tokens of such an answer at most.")
    credit_sample_temperature: float = _option("sample_temperature", "Temperature of SPAE's draws.")
    credit_xi: float = _option("xi", "Weight of the potential's gains in SPAE.")
    credit_alpha: float = _option(
        "alpha", "How much of the advantage SPAE leaves out at most once the answer was there."
    )
    credit_continuations: int = _option("continuations", "Completions that vine goes on with from each step.")
    credit_continuation_tokens: int = _option("continuation_tokens", "Tokens that they go on for at most.")
    credit_before_error: float = _option(
        "before_error", "Process-verified: what steps of failures get before their first error."
    )
    credit_from_error: float = _option("from_error", "Process-verified: what they get from it on.")
    credit_verifier: str = field(
        default="arithmetic",
        metadata={
            "help": "What judges the steps: arithmetic, task (a built-in task's truth), lean:FOLDER, or a dotted path."
        },
    )
    credit_global_heads: float = _option(
        "global_heads", "Attention-influence: the share of heads that count, those that look back farthest."
    )
    credit_amplified_share: float = _option(
        "amplified_share", "Attention-influence: the share of tokens that are amplified."
    )
    credit_amplification: float = _option("amplification", "Attention-influence: by how much they are.")
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
        metadata={
            "help": "What the answer comes after, for the reward accuracy too. Default: boxed, ####, ..."
        },
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
        strategy = get_strategy(self.credit)
        self.credit_m = strategy.m if self.credit_m is None else self.credit_m
        self.credit_options(step=0)
        if self.credit_no_answer not in NO_ANSWER:
            raise UsageError(
                f"credit_no_answer must be one of {', '.join(NO_ANSWER)}, not {self.credit_no_answer!r}"
            )
        if self.credit_stage not in STAGES:
            raise UsageError(f"credit_stage must be one of {', '.join(STAGES)}, not {self.credit_stage!r}")
        if self.credit_stage == "loss" and not strategy.in_graph:
            able = ", ".join(name for name, row in STRATEGIES.items() if row.in_graph)
            raise UsageError(f"credit_stage=loss works with {able}, not with credit={self.credit}")
        if self.credit_stage == "loss" and self.credit_gradient == "noise":
            raise UsageError(
                "credit_stage=loss has no noise in its forward pass; use credit_gradient=labels or credit_stage=rollout"
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
        if self.credit_stage == "loss":
            values["gradient"] = "labels"
        try:
            return Options(seed=self.seed, step=step, pad_token_id=pad_token_id, **values)
        except UsageError as error:
            raise UsageError(f"credit_{error}") from None
