"""Bytes of each part of a step on one device: what is held throughout, and what the part adds at its peak."""

from __future__ import annotations

from dataclasses import dataclass

from tokencredit.plan.attribution import GRADIENT, attribution_work, batches, edits, in_loss
from tokencredit.plan.settings import Machine, Settings
from tokencredit.plan.shape import ModelShape
from tokencredit.plan.work import Work, cache_bytes, scored_positions, trained_numbers

TILE_TOKENS, TILE_COLUMNS = 4096, 32768
"""Of TRL's head, which computes logits a tile at a time."""
CPU_TILES, CPU_TILES_BACK = 4, 7
"""Tiles that its CPU form holds at once, forward and back; a GPU's kernel works in one."""
SCORES, SCORE_COPIES = 1 << 24, 3  # numbers of attention at once where it is summed, and copies of them
SAMPLED = 4  # copies of the last logits while a token is drawn
DOUBLES = 8  # bytes of a logit in the divergence, which is computed in float64


@dataclass(frozen=True)
class Held:
    """Bytes held throughout training."""

    weights: float
    reference: float
    gradients: float
    optimizer: float
    sampler: float

    @property
    def at_rest(self) -> float:
        """Between optimizer steps, when gradients are gone."""
        return self.weights + self.reference + self.optimizer + self.sampler


def held(shape: ModelShape, settings: Settings, machine: Machine) -> Held:
    """Weights, gradients and AdamW's two moments, each device's share of them; vLLM's part of the memory."""
    weights, gradients, optimizer = _states(shape, settings)
    colocated = settings.use_vllm and settings.vllm_mode == "colocate" and not settings.vllm_enable_sleep_mode
    return Held(
        weights,
        weights if settings.beta and not settings.use_peft else 0.0,
        gradients,
        optimizer,
        machine.memory * settings.vllm_gpu_memory_utilization if colocated else 0.0,
    )


def _states(shape: ModelShape, settings: Settings) -> tuple[float, float, float]:
    """Weights, gradients and AdamW's moments on one device."""
    trained = float(trained_numbers(shape, settings))
    frozen = float(shape.parameters if settings.use_peft else 0)
    if settings.gpus == 1 or settings.sharding == "ddp":
        each = 4 if settings.use_peft else settings.weight_bytes  # PEFT keeps adapters in float32
        copies = 2 if settings.gpus > 1 else 1  # ddp has its buckets beside the gradients
        return frozen * settings.weight_bytes + trained * each, copies * trained * each, 2 * trained * each
    share = 1 / settings.gpus
    if settings.sharding == "fsdp":
        # accelerate keeps what is trained in float32.
        return (
            (frozen * settings.weight_bytes + 4 * trained) * share,
            4 * trained * share,
            8 * trained * share,
        )
    # DeepSpeed computes in half precision and keeps float32 weights beside the moments.
    each, states = (2, 12) if settings.bf16 else (4, 8)
    weights = each * (frozen + trained) * (share if settings.sharding == "zero3" else 1)
    return weights, each * trained * share, states * trained * share


def ready_bytes(shape: ModelShape, settings: Settings) -> float:
    """What every pass has beside the weights: half-precision copies of float32 ones, or gathered shards.

    Of a sharded model two layers are gathered at once, and embedding and head.
    """
    if settings.shards_parameters:
        ends = shape.head * (1 if shape.tied else 2)
        return float(settings.compute_bytes * (2 * shape.layer + ends))
    whole = settings.sharding == "zero2" and settings.gpus > 1
    return 2.0 * shape.parameters if settings.mixed and not whole else 0.0


def pass_bytes(shape: ModelShape, settings: Settings, tokens: float) -> float:
    """A pass without gradient: four of the hidden width, and a layer's widest moment."""
    wide = max(3 * shape.feed_forward, 5 * shape.attention_width + 4 * shape.kv_width)
    return tokens * settings.compute_bytes * (4.0 * shape.hidden + wide)


def layer_bytes(shape: ModelShape, settings: Settings) -> float:
    """What a layer keeps of a token for the way back to its weights.

    Both norms their input in float32, what they make of it and what goes into the matrices; rotated queries, keys,
    values and what attention makes of them; four of the feed-forward's width.
    """
    norms = 2 * shape.hidden * (4 + 2 * settings.compute_bytes + (2 if settings.mixed else 0))
    wide = 2 * shape.attention_width + 2 * shape.kv_width + 4 * shape.feed_forward
    return float(norms + wide * settings.compute_bytes)


def frozen_layer_bytes(shape: ModelShape, settings: Settings) -> float:
    """What a layer with frozen weights keeps of a token for the way back to the embeddings."""
    wide = 2 * shape.attention_width + 2 * shape.kv_width + 3 * shape.feed_forward
    return float(2 * shape.hidden * 4 + wide * settings.compute_bytes)


def tile_bytes(shape: ModelShape, settings: Settings, rows: int, tiles: int) -> float:
    """TRL's head over so many rows; `tiles` are those of its CPU form."""
    size = min(scored_positions(settings, rows), TILE_TOKENS) * min(shape.vocabulary, TILE_COLUMNS)
    return float(size * (4 * tiles if settings.use_cpu else settings.compute_bytes))


def log_prob_bytes(shape: ModelShape, settings: Settings) -> float:
    rows = settings.per_device_train_batch_size
    tiles = tile_bytes(shape, settings, rows, CPU_TILES)
    tiles += 2.0 * settings.compute_bytes * rows * settings.length * shape.hidden
    return ready_bytes(shape, settings) + max(pass_bytes(shape, settings, rows * settings.length), tiles)


def training_bytes(shape: ModelShape, settings: Settings, found: Held) -> float:
    """Beyond weights and optimizer: activations with the head's tiles and gradient, or all gradients at the end.

    Where a step has several batches, the gradients of the first are there beside the activations of the next.
    """
    rows = settings.per_device_train_batch_size
    tokens = rows * settings.length
    stream = 4 if settings.mixed else settings.compute_bytes
    layer = layer_bytes(shape, settings)
    if settings.gradient_checkpointing:
        activations = tokens * (shape.layers * shape.hidden * stream + layer)
    else:
        activations = tokens * shape.layers * layer
    head_gradient = 0.0 if settings.use_peft else 4.0 * shape.head
    tiles = (
        tile_bytes(shape, settings, rows, CPU_TILES_BACK)
        + 4.0 * scored_positions(settings, rows) * shape.hidden
    )
    peak = activations + head_gradient + max(tiles, pass_bytes(shape, settings, tokens))
    kept = found.gradients if settings.gradient_accumulation_steps > 1 else 0.0
    return ready_bytes(shape, settings) + max(peak + kept, found.gradients)


def generation_bytes(shape: ModelShape, settings: Settings, machine: Machine) -> float:
    """The cache at its longest, one layer of it twice while it grows, and the last logits; vLLM's where it sleeps."""
    if settings.use_vllm:
        wakes = settings.vllm_mode == "colocate" and settings.vllm_enable_sleep_mode
        return machine.memory * settings.vllm_gpu_memory_utilization if wakes else 0.0
    weights = ready_bytes(shape, settings)
    if settings.sharding == "zero3" and settings.gpus > 1:
        weights = float(shape.parameters * settings.compute_bytes)  # TRL gathers all of them
    rows, cache = settings.rows, cache_bytes(shape, settings)
    prompts = rows * settings.max_prompt_length
    first = prompts * cache + pass_bytes(shape, settings, prompts)
    last = rows * settings.length * cache * (1 + 1 / shape.layers)
    return weights + max(first, last) + 4.0 * SAMPLED * rows * shape.vocabulary


def sampler_lacks(shape: ModelShape, settings: Settings, machine: Machine) -> float:
    """Bytes that vLLM's share of the memory is too small by for its weights and the cache of one row."""
    if not settings.use_vllm or settings.vllm_mode != "colocate":
        return 0.0
    row = settings.length * cache_bytes(shape, settings)
    needs = (shape.parameters * settings.compute_bytes + row) / settings.vllm_tensor_parallel_size
    return max(0.0, needs - machine.memory * settings.vllm_gpu_memory_utilization)


def attribution_bytes(shape: ModelShape, settings: Settings, budget: int) -> float:
    """Of the largest pass."""
    if attribution_work(shape, settings, budget) == Work():
        return 0.0
    if settings.credit in GRADIENT and in_loss(settings):
        # Training's graph is there anyway.
        return _logit_bytes(shape, settings.per_device_train_batch_size * settings.answer_tokens)
    each = batches(shape, settings, budget)
    ready, cache = ready_bytes(shape, settings), cache_bytes(shape, settings)
    own = each.rows * each.own
    if settings.credit in GRADIENT:
        graph = own * shape.layers * frozen_layer_bytes(shape, settings) + pass_bytes(shape, settings, own)
        # Each row has its prompt's keys and values beside its own.
        keys = (each.prompts + each.rows) * each.prompt * cache
        return ready + keys + graph + _logit_bytes(shape, each.rows * each.reads)
    clean = pass_bytes(shape, settings, each.kept) + _logit_bytes(shape, each.rows * each.reads)
    if settings.credit == "entropy":
        return ready + clean
    found, influence = edits(shape, settings, each), 0.0
    if settings.credit_m:
        scores = shape.heads * each.own * (each.prompt + each.own)
        clean += 4.0 * SCORE_COPIES * min(SCORES, scores)
        influence = 4.0 * each.rows * each.own**2
    changed = pass_bytes(shape, settings, found.tokens / found.passes)
    changed += _logit_bytes(shape, each.reads * found.count / found.passes)
    return ready + each.kept * cache + influence + max(clean, changed)


def _logit_bytes(shape: ModelShape, positions: float) -> float:
    """Logits in float32, and three times in float64 while the divergence is computed."""
    return positions * shape.vocabulary * (4.0 + 3 * DOUBLES)
