"""Passes and floating-point operations of each part of a step, on one device.

A multiplication with an addition counts as two operations. What isn't a product of matrices is counted by the bytes
that it moves, and only where there is much of it: in TRL's head, and in the optimizer.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from tokencredit.plan.settings import Settings
from tokencredit.plan.shape import ModelShape

CPU_HEAD, CPU_HEAD_BACK = 56, 105
"""Bytes that the CPU form of TRL's head moves for each logit, counted in its code."""
ADAMW = 28  # bytes that the fused optimizer moves for each number: weight, gradient and two moments


@dataclass(frozen=True)
class Work:
    """What one device does.

    Attributes:
        forwards, backwards: passes.
        tokens: that pass the layers forward.
        flops: operations of products.
        moved: bytes read and written number by number.
    """

    forwards: int = 0
    backwards: int = 0
    tokens: int = 0
    flops: float = 0.0
    moved: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.tokens + other.tokens,
            self.flops + other.flops,
            self.moved + other.moved,
        )

    def times(self, count: int) -> Work:
        """So often."""
        return Work(*(count * value for value in dataclasses.astuple(self)))


def layers_flops(shape: ModelShape, tokens: float, keys: float) -> float:
    """2 body tokens + 4 L A keys: the layers over so many tokens, which read so many keys all together."""
    return 2.0 * shape.body * tokens + 4.0 * shape.layers * shape.attention_width * keys


def head_flops(shape: ModelShape, positions: float) -> float:
    """2 H V for each position whose logits are computed."""
    return 2.0 * shape.head * positions


def causal_keys(length: int) -> float:
    """Keys that the tokens of a row read: S (S + 1) / 2."""
    return length * (length + 1) / 2


def scored_positions(settings: Settings, rows: int) -> int:
    """Positions that TRL's head scores: the completions', on a CPU the prompts' too."""
    return rows * (settings.length if settings.use_cpu else settings.max_completion_length)


def head_moved(shape: ModelShape, settings: Settings, rows: int, back: bool) -> float:
    """Bytes that TRL's head moves beside its products; a GPU's kernel reads each tile once, and writes it on the way
    back."""
    logits = float(scored_positions(settings, rows) * shape.vocabulary)
    if settings.use_cpu:
        return logits * (CPU_HEAD + (CPU_HEAD_BACK if back else 0))
    return logits * settings.compute_bytes * (3 if back else 1)


def trained_numbers(shape: ModelShape, settings: Settings) -> int:
    """All parameters, or those of the adapter."""
    targets = settings.lora_target_modules
    names = None if targets is None else list(targets)
    return shape.adapter(settings.lora_r, names) if settings.use_peft else shape.parameters


def log_prob_work(shape: ModelShape, settings: Settings) -> Work:
    """TRL's passes without gradient: for the sampling policy where steps are off-policy, for the reference if any."""
    batch, count = settings.per_device_train_batch_size, settings.micro_batches
    flops = layers_flops(shape, batch * settings.length, batch * causal_keys(settings.length))
    flops += head_flops(shape, scored_positions(settings, batch))
    moved = head_moved(shape, settings, batch, back=False)
    one = Work(1, 0, batch * settings.length, flops, moved).times(count)
    return one.times(int(settings.off_policy) + int(settings.beta != 0))


def training_work(shape: ModelShape, settings: Settings) -> Work:
    """Each batch forward and back.

    Back costs the layers twice a forward pass, or once where LoRA leaves their weights alone, and once more where
    activations are recomputed. TRL's head computes its logits anew on the way back: three times, or twice.
    """
    batch, count = settings.per_device_train_batch_size, settings.micro_batches * settings.num_iterations
    layers = layers_flops(shape, batch * settings.length, batch * causal_keys(settings.length))
    head = head_flops(shape, scored_positions(settings, batch))
    back = 1 if settings.use_peft else 2
    flops = layers * (1 + back + int(settings.gradient_checkpointing)) + head * (1 + back + 1)
    recomputed = 1 + int(settings.gradient_checkpointing)
    moved = head_moved(shape, settings, batch, back=True)
    passes = Work(recomputed, 1, batch * settings.length * recomputed, flops, moved).times(count)
    updates = count / settings.gradient_accumulation_steps
    share = settings.gpus if settings.sharding != "ddp" else 1
    return passes + Work(moved=ADAMW * updates * trained_numbers(shape, settings) / share)


def generation_work(shape: ModelShape, settings: Settings) -> Work:
    """The prompts at once, then a pass a token."""
    rows, prompt, new = settings.rows, settings.max_prompt_length, settings.max_completion_length
    decoded = new - 1  # the prompts' pass gives the first token
    keys = rows * causal_keys(prompt) + rows * decoded * (prompt + new / 2)
    tokens = rows * (prompt + decoded)
    flops = layers_flops(shape, tokens, keys) + head_flops(shape, rows * new)
    return Work(new, 0, tokens, flops)


def prompts_flops(shape: ModelShape, settings: Settings) -> float:
    """Of generation the pass over the prompts."""
    rows, prompt = settings.rows, settings.max_prompt_length
    return layers_flops(shape, rows * prompt, rows * causal_keys(prompt)) + head_flops(shape, rows)


def step_bytes(shape: ModelShape, settings: Settings) -> float:
    """Bytes that a decoding step reads on one device: weights, and the cache at its mean length."""
    share = settings.vllm_tensor_parallel_size if settings.use_vllm else 1
    length = settings.max_prompt_length + settings.max_completion_length / 2
    return shape.parameters * settings.compute_bytes / share + settings.rows * length * cache_bytes(
        shape, settings
    )


def cache_bytes(shape: ModelShape, settings: Settings) -> float:
    """Keys and values of a token: 2 L x their width."""
    return 2.0 * shape.layers * shape.kv_width * settings.compute_bytes


def parts(total: float, each: float) -> int:
    return max(1, math.ceil(total / each))
