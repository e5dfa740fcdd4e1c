"""Texts that a policy writes after a row's first tokens, token by token, from given random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokencredit.calling import Caller
from tokencredit.continuations import Continuations, heads
from tokencredit.layout import Batch, parts
from tokencredit.packing import Segment
from tokencredit.passes import Budget, PackedRows, distinct, row_segments


@dataclass(frozen=True)
class Samples:
    """D texts after each of N prefixes, of S tokens at most.

    Attributes:
        ids: (N, D, S) with the end token, padded with -1.
        entropies: (N, D, S) float64 of the prediction of each token, nats; 0 off the texts.
    """

    ids: Tensor
    entropies: Tensor


@dataclass(frozen=True)
class Draws:
    """How texts are drawn.

    Attributes:
        uniforms: (N, D, S) in [0, 1), one a token.
        temperature: of the draws; entropies are those of the policy itself.
        room: (N,) tokens at most, beside S.
        ends: ids after which a text ends.
    """

    uniforms: Tensor
    temperature: float
    room: Tensor
    ends: Tensor

    def select(self, index: Tensor) -> Draws:
        """Those of the prefixes that the index names."""
        return Draws(self.uniforms[index], self.temperature, self.room[index], self.ends)

    def blank(self) -> Samples:
        """No text yet."""
        ids = torch.full(self.uniforms.shape, -1, dtype=torch.long, device=self.uniforms.device)
        return Samples(ids, torch.zeros_like(self.uniforms))

    def write(self, samples: Samples, texts: tuple[Tensor, Tensor], step: int, logits: Tensor) -> Tensor:
        """Draws token `step` of some texts from its logits (n, V); which of them go on, (n,) bool.

        Args:
            texts: (n,) each, prefix and number of each text.
        """
        prefixes, numbers = texts
        tokens, entropies = drawn(logits, self.uniforms[prefixes, numbers, step], self.temperature)
        samples.ids[prefixes, numbers, step] = tokens
        samples.entropies[prefixes, numbers, step] = entropies
        return ~torch.isin(tokens, self.ends) & (step + 1 < self.room[prefixes])


def drawn(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token (n,) of each softmax(logits / temperature), (n, V), and the entropies at temperature 1, nats."""
    logits = logits.double()
    log_p = logits.log_softmax(-1)
    entropies = -torch.where(log_p.isneginf(), 0.0, log_p.exp() * log_p).sum(-1)
    cumulative = (logits / temperature).softmax(-1).cumsum(-1)
    places = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    return places.squeeze(1).clamp(max=logits.shape[1] - 1), entropies


def end_ids(caller: Caller) -> list[int]:
    """The ids after which the model's own generation stops."""
    found: list[int] = []
    for config in (getattr(caller.model, "generation_config", None), caller.config):
        ends = getattr(config, "eos_token_id", None)
        found += ends if isinstance(ends, list) else [] if ends is None else [ends]
    return sorted(set(found))


def packed_samples(
    passes: PackedRows, batch: Batch, asked: Continuations, draws: Draws, budget: Budget
) -> Samples:
    """See `Policy.sampled`; `asked.rows` are the batch's.

    Each token is a segment that reads the kept keys and values of those before it.
    """
    caller, found = passes.caller, draws.blank()
    prompts, completions = row_segments(batch, keep=True)
    clean = [*distinct(prompts), *distinct(completions)]
    with torch.no_grad():
        caller.packed(clean, torch.zeros(1, dtype=torch.long, device=batch.ids.device))
        sizes = (asked.ids >= 0).sum(1).tolist()
        segments = heads(asked, sizes, prompts, completions, keep=True)
        count = draws.uniforms.shape[1]
        kept = sum(segment.size for segment in clean)
        most = max(budget.tokens - kept, budget.tokens // 2)
        limit = max(1, min(most, budget.logits // caller.vocabulary, budget.rows or most) // count)
        for part in parts([segment.size for segment in segments], most, limit):
            _write_part(caller, [segments[n] for n in part], torch.tensor(part), draws, found)
    return found


def _write_part(caller: Caller, before: list[Segment], part: Tensor, draws: Draws, found: Samples) -> None:
    """All texts after a part of the prefixes."""
    count, length = draws.uniforms.shape[1:]
    device = draws.uniforms.device
    sizes = torch.tensor([segment.size for segment in before], device=device)
    logits = caller.packed(before, sizes.cumsum(0) - 1).repeat_interleave(count, dim=0)
    roots = [segment for segment in before for _ in range(count)]
    texts: list[Segment | None] = [None] * len(roots)
    prefixes = part.to(device).repeat_interleave(count)
    numbers = torch.arange(count, device=device).repeat(len(before))
    for step in range(length):
        goes_on = draws.write(found, (prefixes, numbers), step, logits)
        left = goes_on.nonzero().squeeze(1).tolist()
        if not left or step + 1 == length:
            return
        prefixes, numbers = prefixes[goes_on], numbers[goes_on]
        tokens = found.ids[prefixes, numbers, step]
        roots, texts = [roots[place] for place in left], [texts[place] for place in left]
        last = [
            Segment(token[None], (text or root).end, prefix=text or root, keep=True)
            for token, text, root in zip(tokens, texts, roots, strict=True)
        ]
        logits = caller.packed(last, torch.arange(len(last), device=device))
        for place, (text, segment) in enumerate(zip(texts, last, strict=True)):
            if text is None:
                texts[place] = segment
            else:
                text.append(segment)


def whole_samples(
    draws: Draws, run: Callable[[list[int], list[list[int]]], Tensor], together: Callable[[bool], bool]
) -> Samples:
    """See `Policy.sampled`: every token of every text from a pass over all that precedes it.

    Args:
        run: (prefix of each text, what has been written of it) -> the logits (n, V) after it.
        together: whether any rank has texts left, given whether this one has.
    """
    found = draws.blank()
    total, count, length = draws.uniforms.shape
    device = draws.uniforms.device
    prefixes = torch.arange(total, device=device).repeat_interleave(count)
    numbers = torch.arange(count, device=device).repeat(total)
    for step in range(length):
        if not together(prefixes.numel() > 0):
            break
        logits = run(prefixes.tolist(), found.ids[prefixes, numbers, :step].tolist())
        goes_on = draws.write(found, (prefixes, numbers), step, logits)
        prefixes, numbers = prefixes[goes_on], numbers[goes_on]
    return found
