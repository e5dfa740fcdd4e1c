"""From token ids as sampled to Rollouts: where the reasoning and the answer are, and what asks for a missing answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from tokencredit.errors import UsageError
from tokencredit.rollouts import Rollouts
from tokencredit.spans import Spans, find_spans, span_masks
from tokencredit.steps import step_numbers

StepVerifier = Callable[[Sequence[str], Sequence[Sequence[str]]], Sequence[Sequence[bool | None]]]
"""(B prompts, the texts of the steps of each of B completions) -> True, False or None for each step."""

PROBE = "\n\nThe final answer is \\boxed{"


def ground(
    tokenizer: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    *,
    marker: str | None = None,
    probe: str | None = None,
    probe_always: bool = False,
    credited_mask: Tensor | None = None,
    needs: Collection[str] = (),
    ask: str = PROBE,
    golds: Sequence[str] = (),
    verifier: StepVerifier | None = None,
    **fields: Any,
) -> tuple[Rollouts, list[Spans]]:
    """Finds each row's spans and lays down the masks that credit works on.

    Args:
        tokenizer: the policy's tokenizer; it decodes, and encodes nothing but the probe.
        prompt_ids, prompt_mask: (B, P).
        completion_ids, completion_mask: (B, T), real tokens first.
        marker: the task's own answer marker, such as "ans"; None for the usual ones.
        probe: text that asks rows without an answer for one; None leaves them without (their weights are 1).
        probe_always: put the probe into rows with an answer too, before that answer.
        credited_mask: (B, T), tokens that may get credit; false for what a tool wrote.
        needs: which of the fields steps, ask_ids and gold_ids are wanted, see `Strategy.needs`.
        ask: text that asks for the answer early, for ask_ids.
        golds: the B right answers, for gold_ids.
        verifier: what judges the steps, for step_verdicts.
        **fields: further fields of Rollouts, such as advantages.

    Returns:
        the rollouts, and the B spans in token indices.
    """
    spans = []
    for row in range(completion_ids.shape[0]):
        ids = completion_ids[row][completion_mask[row].bool()].tolist()
        prompt_text = tokenizer.decode(
            prompt_ids[row][prompt_mask[row].bool()].tolist(), skip_special_tokens=False
        )
        spans.append(find_spans(ids, tokenizer, prompt_text=prompt_text, marker=marker))
    reasoning_mask, answer_mask = span_masks(spans, completion_ids.shape[1])
    allowed = (
        completion_mask.bool() if credited_mask is None else completion_mask.bool() & credited_mask.bool()
    )
    answered = answer_mask.to(completion_ids.device) & allowed
    reasoning_mask = reasoning_mask.to(completion_ids.device) & allowed
    if "steps" in needs:
        fields["steps"] = step_numbers(tokenizer, completion_ids, completion_mask.bool(), reasoning_mask)
    if "step_verdicts" in needs and verifier is not None:
        fields["step_verdicts"] = _verdicts(
            tokenizer, prompt_ids, prompt_mask, completion_ids, fields["steps"], verifier
        )
    fields |= _asked_fields(tokenizer, completion_ids, needs, ask, golds)
    rollouts = Rollouts(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        completion_mask=completion_mask,
        reasoning_mask=reasoning_mask,
        answer_mask=answered,
        **_probe_fields(tokenizer, probe, ~answered.any(dim=1) | probe_always),
        **fields,
    )
    return rollouts, spans


def _asked_fields(
    tokenizer: Any, completion_ids: Tensor, needs: Collection[str], ask: str, golds: Sequence[str]
) -> dict[str, Tensor]:
    """What asks each row for its answer early, ask_ids (B, N), and what is right, gold_ids (B, M), where needed."""
    fields = {}
    if "ask_ids" in needs:
        fields["ask_ids"] = [probe_tokens(tokenizer, ask)] * completion_ids.shape[0]
    if "gold_ids" in needs:
        fields["gold_ids"] = [tokenizer(gold, add_special_tokens=False)["input_ids"] for gold in golds]
    return {name: _padded(rows, completion_ids.device) for name, rows in fields.items()}


def _verdicts(
    tokenizer: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    steps: Tensor,
    verifier: StepVerifier,
) -> Tensor:
    """(B, T) what the verifier says of each token's step: 1 right, 0 wrong, -1 nothing.

    Raises:
        UsageError: it does not say one thing of each step.
    """
    prompts = [
        tokenizer.decode(ids[mask.bool()].tolist(), skip_special_tokens=True)
        for ids, mask in zip(prompt_ids, prompt_mask, strict=True)
    ]
    counts = [int(own.max()) + 1 for own in steps]
    texts = [
        [tokenizer.decode(ids[own == number].tolist(), skip_special_tokens=True) for number in range(count)]
        for ids, own, count in zip(completion_ids, steps, counts, strict=True)
    ]
    said = verifier(prompts, texts)
    if [len(row) for row in said] != counts:
        raise UsageError("the step verifier must return a verdict for each step of each completion")
    found = torch.full_like(steps, -1)
    for row, verdicts in enumerate(said):
        for number, verdict in enumerate(verdicts):
            found[row, steps[row] == number] = -1 if verdict is None else int(verdict)
    return found


def _padded(rows: Sequence[list[int]], device: torch.device) -> Tensor:
    """The rows (B, L), padded with -1."""
    ids = torch.full((len(rows), max(map(len, rows), default=0)), -1, dtype=torch.long)
    for own, row in zip(ids, rows, strict=True):
        own[: len(row)] = torch.tensor(row, dtype=torch.long)
    return ids.to(device)


def _probe_fields(tokenizer: Any, probe: str | None, asked: Tensor) -> dict[str, Any]:
    """The probe in the rows (B,) that are asked."""
    if probe is None:
        return {}
    ids = torch.tensor(probe_tokens(tokenizer, probe), device=asked.device)
    return {
        "probe_ids": ids.expand(asked.numel(), -1),
        "probe_mask": asked[:, None].expand(-1, ids.numel()).clone(),
    }


def probe_tokens(tokenizer: Any, probe: str) -> list[int]:
    """The probe's ids, without special tokens.

    Raises:
        UsageError: it has none.
    """
    ids: list[int] = tokenizer(probe, add_special_tokens=False)["input_ids"]
    if not ids:
        raise UsageError(f"the probe {probe!r} has no tokens; give some text that asks for the answer")
    return ids
