"""Attribution by strategy: how rows fall into passes, and what these compute.

Rows are taken to be packed (`tokencredit.packing`), as models of the common families allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokencredit.errors import UsageError
from tokencredit.memory import CPU_BYTES, CPU_TOKENS, DEVICE_TOKENS, LEAST_TOKENS
from tokencredit.plan.settings import Settings
from tokencredit.plan.shape import ModelShape
from tokencredit.plan.work import Work, head_flops, layers_flops, parts
from tokencredit.policy import LOGITS_PER_TOKEN

PUBLISHED_OUTCOME = {"oar-p": "last", "oar-g": "answer_mean", "inverted": "answer_mean"}
GRADIENT = ("oar-g", "inverted")
FREE = ("uniform", "random", "position", "bias", "fipo", "process-verified")
"""They run no pass of their own."""


@dataclass(frozen=True)
class Batches:
    """How the rows with credit fall into passes.

    Attributes:
        count: batches.
        rows, prompts: of a batch, and how many distinct prompts they have.
        prompt, own: tokens of a prompt, and those of a completion that are run.
        reads: positions of a row that are read.
        budget: tokens of a pass.
    """

    count: int
    rows: int
    prompts: int
    prompt: int
    own: int
    reads: int
    budget: int

    @property
    def kept(self) -> int:
        """Tokens of prompts and completions, equal prompts once."""
        return self.prompts * self.prompt + self.rows * self.own


def found_budget(shape: ModelShape, settings: Settings, free: float) -> int:
    """Tokens of a pass, as `tokencredit.memory.found_budget` finds them where so many bytes are free."""
    if settings.credit_token_budget is not None:
        return settings.credit_token_budget
    layer = settings.compute_bytes * (8 * shape.hidden + 4 * shape.feed_forward)
    most = DEVICE_TOKENS
    if settings.use_cpu:
        fewest, most = CPU_TOKENS
        most = max(fewest, min(most, CPU_BYTES // layer))
    return max(LEAST_TOKENS, min(most, int(free / 2 / (shape.layers * layer))))


def in_loss(settings: Settings) -> bool:
    """Whether the loss's own pass assigns the credit; else a pass of its own does, as training says once."""
    aligned = (
        settings.num_iterations == 1 and settings.gradient_accumulation_steps % settings.micro_batches == 0
    )
    return settings.credit_stage == "loss" and aligned and not settings.gradient_checkpointing


def batches(shape: ModelShape, settings: Settings, budget: int) -> Batches:
    """As `Policy` lays out rows of equal length."""
    outcome = settings.credit_outcome or PUBLISHED_OUTCOME.get(settings.credit, "answer_mean")
    reads = 1 if outcome == "last" else settings.answer_tokens
    own = settings.reasoning + reads - 1
    if settings.credit == "entropy":
        own, reads = settings.max_completion_length - 1, settings.max_completion_length
    rows = math.ceil(settings.rows * settings.credited)
    fitting = budget // (settings.max_prompt_length + own)
    readable = budget * LOGITS_PER_TOKEN // (reads * shape.vocabulary)
    count = parts(rows, max(1, min(rows, fitting, readable)))
    each = math.ceil(rows / count)
    return Batches(count, each, min(each, settings.prompts), settings.max_prompt_length, own, reads, budget)


def attribution_work(shape: ModelShape, settings: Settings, budget: int) -> Work:
    """What the chosen strategy runs on one device for a generation.

    Raises:
        UsageError: a strategy whose passes are not known here.
    """
    known = (*GRADIENT, "oar-p", "entropy", *FREE)
    if settings.credit not in known:
        raise UsageError(
            f"plan does not know what credit={settings.credit} costs; it knows {', '.join(known)}"
        )
    if settings.credit in FREE:
        return Work()
    if settings.credit in GRADIENT and in_loss(settings):
        return _in_loss_work(shape, settings)
    each = batches(shape, settings, budget)
    if settings.credit == "entropy":
        work = _clean(shape, each)
    elif settings.credit == "oar-p":
        work = _clean(shape, each) + _edits_work(shape, settings, each)
        if settings.credit_counterfactual == "alternative":
            work = work + _clean(shape, each)
    elif settings.gradient_form == "noise":
        work = _clean(shape, each) + _gradient(shape, each, 1).times(settings.credit_draws)
    else:
        prompts = Work(1, 0, each.prompts * each.prompt, _prompt_flops(shape, each))
        work = prompts + _gradient(shape, each, settings.credit_labels)
    return work.times(each.count)


def _prompt_flops(shape: ModelShape, each: Batches) -> float:
    return layers_flops(shape, each.prompts * each.prompt, each.prompts * each.prompt**2)


def _own_flops(shape: ModelShape, each: Batches) -> float:
    """The completions on top of their prompts' keys; packed attention computes masked scores too."""
    tokens = each.rows * each.own
    return layers_flops(shape, tokens, tokens * (each.prompt + each.own))


def _clean(shape: ModelShape, each: Batches) -> Work:
    flops = _prompt_flops(shape, each) + _own_flops(shape, each) + head_flops(shape, each.rows * each.reads)
    return Work(1, 0, each.kept, flops)


def _gradient(shape: ModelShape, each: Batches, backwards: int) -> Work:
    """Completions forward once and back to the embeddings, each way back as dear as a forward pass."""
    once = _own_flops(shape, each) + head_flops(shape, each.rows * each.reads)
    return Work(1, backwards, each.rows * each.own, once * (1 + backwards))


@dataclass(frozen=True)
class Edits:
    """OAR-P's edits of one batch: how many, their tokens, those among them with gaps in between, in how many passes."""

    count: int
    tokens: int
    scattered: int
    passes: int


def edits(shape: ModelShape, settings: Settings, each: Batches) -> Edits:
    """Every reasoning token with all that follows it, or with the m that attend to it most and what is read."""
    whole = [each.own - token for token in range(settings.reasoning)]
    most = 1 + settings.credit_m + each.reads if settings.credit_m else each.own
    tokens = each.rows * sum(min(size, most) for size in whole)
    count = each.rows * len(whole)
    room = max(each.budget - each.kept, each.budget // 2)
    readable = max(1, each.budget * LOGITS_PER_TOKEN // (each.reads * shape.vocabulary))
    scattered = each.rows * sum(most for size in whole if size > most)
    return Edits(count, tokens, scattered, max(parts(tokens, room), parts(count, readable)))


def _edits_work(shape: ModelShape, settings: Settings, each: Batches) -> Work:
    found, reach = edits(shape, settings, each), each.prompt + each.own
    # Pieces with gaps read, beside the clean tokens, all pieces of their block.
    block = min(max(reach, 128), found.scattered // each.rows)
    flops = layers_flops(shape, found.tokens, found.tokens * reach + found.scattered * block)
    flops += head_flops(shape, found.count * each.reads)
    if settings.credit_m:
        # The clean pass also sums who attends to whom: scores once more.
        flops += 2.0 * shape.layers * shape.attention_width * each.rows * each.own * reach
    return Work(found.passes, 0, found.tokens, flops)


def _in_loss_work(shape: ModelShape, settings: Settings) -> Work:
    """Labels' ways back through the graphs that training makes, with all prompts and padding."""
    batch, labels = settings.per_device_train_batch_size, settings.credit_labels
    tokens = batch * settings.length
    flops = layers_flops(shape, tokens, tokens * (settings.length + 1) / 2)
    flops += 2 * head_flops(shape, batch * settings.answer_tokens)
    return Work(0, labels, 0, flops * labels).times(settings.micro_batches)
