"""One completion and its credit as a record."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tokencredit.credit import TokenCredit
from tokencredit.rollouts import Rollouts
from tokencredit.spans import Spans, token_offsets


def token_record(
    tokenizer: Any,
    rollouts: Rollouts,
    index: int,
    spans: Spans,
    logps: Tensor,
    credit: TokenCredit | None,
    credit_row: int,
) -> dict[str, Any]:
    """One completion with what each of its tokens got: lists with one entry a token.

    Args:
        rollouts, index: the completion; its advantages are the sequence advantages.
        logps: (B, T) of these rollouts, nats.
        credit, credit_row: the credit and the completion's row in it; None means weights 1.
    """
    mask = rollouts.completion_mask[index]
    ids = rollouts.completion_ids[index][mask].tolist()
    text, offsets = token_offsets(ids, tokenizer)
    assert rollouts.advantages is not None
    advantage = float(rollouts.advantages[index])
    weights, importance = [1.0] * len(ids), [None] * len(ids)
    advantages = [advantage] * len(ids)
    if credit is not None:
        weights = credit.weights[credit_row][mask].tolist()
        bonus = credit.bonus[credit_row][mask].tolist()
        advantages = [advantage * weight + added for weight, added in zip(weights, bonus, strict=True)]
        if bool(credit.rows[credit_row]):
            covered = rollouts.reasoning_mask[index][mask].tolist()
            values = credit.importance[credit_row][mask].tolist()
            importance = [value if inside else None for value, inside in zip(values, covered, strict=True)]
    prompt = rollouts.prompt_ids[index][rollouts.prompt_mask[index]].tolist()
    return {
        "prompt": tokenizer.decode(prompt, skip_special_tokens=False),
        "tokens": _pieces(text, offsets),
        "importance": importance,
        "weights": weights,
        "advantages": advantages,
        "probability": logps[index][mask].exp().tolist(),
        "advantage": advantage,
        "reasoning": list(spans.reasoning),
        "answer": None if spans.answer is None else list(spans.answer),
        "rule": spans.rule,
    }


def _pieces(text: str, offsets: list[tuple[int, int]]) -> list[str]:
    """Each token's own text. A character that several tokens share is the first one's, so that the pieces join."""
    pieces, done = [], 0
    for start, end in offsets:
        pieces.append(text[max(start, done) : end])
        done = max(done, end)
    return pieces
