"""What a plan is told: the flags of training that cost memory or time, and the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from tokencredit.errors import UsageError

SHARDINGS = ("ddp", "fsdp", "zero2", "zero3")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Settings:
    """The flags of `tokencredit train` that a plan reads, under their own names, and four that are the plan's.

    Attributes:
        sharding: what the GPUs share, one of SHARDINGS.
        max_prompt_length: tokens of every prompt.
        answer_tokens: of a completion, those of its answer, at the end.
        credited: share of completions that attribution runs on: those with an advantage and an answer.

    Raises:
        UsageError: a value out of range, by its flag.
    """

    gpus: int = 1
    sharding: str = "ddp"
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int | None = None
    num_generations: int = 8
    num_iterations: int = 1
    max_prompt_length: int = 512
    max_completion_length: int = 256
    answer_tokens: int = 8
    credited: float = 1.0
    dtype: str = "float32"
    bf16: bool = True
    use_cpu: bool = False
    gradient_checkpointing: bool = True
    beta: float = 0.0
    use_peft: bool = False
    lora_r: int = 16
    lora_target_modules: tuple[str, ...] | None = None
    use_vllm: bool = False
    vllm_mode: str = "colocate"
    vllm_gpu_memory_utilization: float = 0.3
    vllm_tensor_parallel_size: int = 1
    vllm_enable_sleep_mode: bool = False
    vllm_importance_sampling_correction: bool = True
    credit: str = "oar-g"
    credit_stage: str = "rollout"
    credit_outcome: str | None = None
    credit_counterfactual: str = "pad"
    credit_m: int = 8
    credit_gradient: str | None = None
    credit_draws: int = 1
    credit_labels: int = 1
    credit_token_budget: int | None = None

    def __post_init__(self) -> None:
        if self.sharding not in SHARDINGS:
            raise UsageError(f"--sharding must be one of {', '.join(SHARDINGS)}, not {self.sharding!r}")
        if self.dtype not in BYTES:
            raise UsageError(f"--dtype must be one of {', '.join(BYTES)} for a plan, not {self.dtype!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if (
                field.type in ("int", "int | None")
                and value is not None
                and value < _LEAST.get(field.name, 1)
            ):
                raise UsageError(f"--{field.name} must be at least {_LEAST.get(field.name, 1)}, not {value}")
        if not 0 < self.credited <= 1:
            raise UsageError(f"--credited must lie in (0, 1], not {self.credited}")
        if self.answer_tokens >= self.max_completion_length:
            raise UsageError(
                f"--answer_tokens {self.answer_tokens} leave nothing of --max_completion_length "
                f"{self.max_completion_length} to give credit to"
            )
        if self.rows * self.gpus % self.num_generations:
            raise UsageError(
                f"per_device_train_batch_size {self.per_device_train_batch_size} x {self.micro_batches} batches a "
                f"generation x {self.gpus} GPU(s) = {self.rows * self.gpus} completions, which is not a multiple of "
                f"num_generations {self.num_generations}; change one of them"
            )

    @property
    def micro_batches(self) -> int:
        """Batches of one device that a generation is trained on, once through."""
        return self.steps_per_generation or self.gradient_accumulation_steps

    @property
    def rows(self) -> int:
        """Completions of one device in a generation."""
        return self.per_device_train_batch_size * self.micro_batches

    @property
    def prompts(self) -> int:
        """Distinct prompts of one device in a generation."""
        return math.ceil(self.rows / self.num_generations)

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return self.max_prompt_length + self.max_completion_length

    @property
    def reasoning(self) -> int:
        """Tokens of a completion that get credit."""
        return self.max_completion_length - self.answer_tokens

    @property
    def weight_bytes(self) -> int:
        """Bytes of a parameter as it is loaded."""
        return BYTES[self.dtype]

    @property
    def mixed(self) -> bool:
        """Whether float32 weights compute in half precision."""
        return self.dtype == "float32" and self.bf16

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the passes."""
        return 2 if self.mixed else self.weight_bytes

    @property
    def off_policy(self) -> bool:
        """Whether TRL runs a pass for the log-probabilities of the sampling policy."""
        uneven = self.gradient_accumulation_steps % (self.micro_batches * self.num_iterations) != 0
        return uneven or (self.use_vllm and self.vllm_importance_sampling_correction)

    @property
    def shards_parameters(self) -> bool:
        return self.gpus > 1 and self.sharding in ("fsdp", "zero3")

    @property
    def gradient_form(self) -> str:
        """OAR-G's form, as the strategy chooses it."""
        if self.credit_stage == "loss":
            return "labels"
        return self.credit_gradient or ("labels" if self.compute_bytes == 2 else "noise")


_LEAST = {"credit_m": 0, "num_generations": 2}


@dataclass(frozen=True)
class Machine:
    """One device.

    Attributes:
        memory: bytes.
        flops: floating-point operations a second that a forward pass reaches.
        bandwidth: bytes a second that memory is read and written at.
        decode_rate: tokens a second of generation, all rows of the device together; None: from the two above.
    """

    memory: float
    flops: float = 4e14
    bandwidth: float = 2e12
    decode_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "flops", "bandwidth", "decode_rate"):
            value: Any = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UsageError(f"--{name} must be a number above 0, not {value}")

    def seconds(self, flops: float, moved: float = 0.0) -> float:
        """Of so many operations, and of so many bytes moved."""
        return flops / self.flops + moved / self.bandwidth
