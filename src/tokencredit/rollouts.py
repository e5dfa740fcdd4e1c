"""Rollouts: the one batch type that flows through the package.

Legend of shapes, used everywhere:

    B  rows (completions)            P  prompt length, padded on the left
    G  completions per prompt        T  completion length, padded on the right
    V  vocabulary                    K  positions that predict the answer
    H  hidden size                   N  edits: one changed token in one row
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokencredit.errors import UsageError

Grader = Callable[[Sequence[int], Sequence[list[int]]], Sequence[float | None]]


@dataclass(frozen=True)
class Rollouts:
    """Prompts and sampled completions with what is known about them.

    Token ids are those that were sampled. Masks are the truth about padding and spans; token values never are.

    Attributes:
        prompt_ids, prompt_mask: (B, P), real tokens anywhere, usually padded on the left.
        completion_ids, completion_mask: (B, T), padded on the right.
        reasoning_mask: (B, T), the tokens that credit is assigned to.
        answer_mask: (B, T), the tokens of the completion's own answer; an empty row means no answer.
        advantages, rewards: (B,), the sequence advantages and rewards, if known.
        groups: (B,) integers, equal for completions of the same prompt.
        gold_ids: (B, L) ids of the right answers, padded with -1.
        ask_ids: (B, L) ids of a short text that asks for the answer early, after any step, padded with -1.
        steps: (B, T) integers, the reasoning step of each token, counted from 0; -1 outside.
        step_verdicts: (B, T) integers, what a verifier says of each reasoning token's step: 1 right, 0 wrong, -1 none.
        texts: the B completions as text.
        old_logps, sampling_logps: (B, T) log-probabilities in nats under the policy before the update and
            under the sampler.
        probe_ids, probe_mask: (B, L), text that asks for the answer, put after the reasoning; a row with an empty
            mask has none.
        row_keys: (B,) integers that key each row's random draws; by default 0, ..., B - 1.
        grader: (row keys, other completions of these rows as ids) -> their rewards, None where one cannot be judged.
        model_inputs: further tensors that the model's forward needs.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    reasoning_mask: Tensor
    answer_mask: Tensor
    advantages: Tensor | None = None
    rewards: Tensor | None = None
    groups: Tensor | None = None
    gold_ids: Tensor | None = None
    ask_ids: Tensor | None = None
    steps: Tensor | None = None
    step_verdicts: Tensor | None = None
    texts: list[str] | None = None
    old_logps: Tensor | None = None
    sampling_logps: Tensor | None = None
    model_inputs: dict[str, Any] | None = None
    probe_ids: Tensor | None = None
    probe_mask: Tensor | None = None
    row_keys: Tensor | None = None
    grader: Grader | None = None

    def __post_init__(self) -> None:
        if self.prompt_ids.dim() != 2 or self.completion_ids.dim() != 2:
            raise UsageError("prompt_ids must be (B, P) and completion_ids (B, T)")
        rows = self.completion_ids.shape[0]
        shapes = {
            "prompt_ids": (rows, self.prompt_ids.shape[1]),
            "prompt_mask": tuple(self.prompt_ids.shape),
            "completion_mask": tuple(self.completion_ids.shape),
            "reasoning_mask": tuple(self.completion_ids.shape),
            "answer_mask": tuple(self.completion_ids.shape),
        }
        for name, shape in shapes.items():
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise UsageError(f"{name} has shape {found}, but the other tensors ask for {shape}")
        for name in ("prompt_mask", "completion_mask", "reasoning_mask", "answer_mask", "probe_mask"):
            mask = getattr(self, name)
            if mask is not None and mask.dtype != torch.bool:
                object.__setattr__(self, name, mask.bool())
        if (self.completion_mask[:, 1:] & ~self.completion_mask[:, :-1]).any():
            raise UsageError(
                "completion_mask has gaps or pads before tokens; completions are padded on the right"
            )
        for name in ("reasoning_mask", "answer_mask"):
            if (getattr(self, name) & ~self.completion_mask).any():
                raise UsageError(f"{name} marks tokens that completion_mask does not")
        answered = self.answer_mask.cumsum(dim=1) > 0
        if (self.reasoning_mask & answered).any():
            raise UsageError(
                "reasoning_mask marks tokens in or after the answer, which they cannot have caused"
            )
        if self.model_inputs:
            raise UsageError(
                "multimodal inputs are not supported by the credit strategies; use credit='uniform'"
            )
        for name in ("advantages", "rewards", "groups", "row_keys"):
            vector = getattr(self, name)
            if vector is not None and tuple(vector.shape) != (rows,):
                raise UsageError(f"{name} must have one entry a row, ({rows},), not {tuple(vector.shape)}")
        for name in ("gold_ids", "ask_ids"):
            ids = getattr(self, name)
            if ids is not None and (ids.dim() != 2 or ids.shape[0] != rows):
                raise UsageError(f"{name} must be ({rows}, L), not {tuple(ids.shape)}")
        if self.steps is not None and self.steps.shape != self.completion_ids.shape:
            raise UsageError(
                f"steps must be {tuple(self.completion_ids.shape)}, not {tuple(self.steps.shape)}"
            )
        if (self.probe_ids is None) != (self.probe_mask is None):
            raise UsageError("probe_ids and probe_mask go together")
        for probe in (self.probe_ids, self.probe_mask):
            if probe is not None and (probe.shape != self.probe_ids.shape or probe.shape[0] != rows):  # type: ignore[union-attr]
                raise UsageError(f"probe_ids and probe_mask must both be ({rows}, L)")
        if self.row_keys is None:
            object.__setattr__(self, "row_keys", torch.arange(rows, device=self.completion_ids.device))

    @property
    def shape(self) -> torch.Size:
        """(B, T)."""
        return self.completion_ids.shape

    @property
    def readable(self) -> Tensor:
        """(B,) bool: rows in which an outcome can be read, from the row's own answer or from a probe."""
        has_outcome = self.answer_mask.any(dim=1)
        if self.probe_mask is not None:
            has_outcome = has_outcome | self.probe_mask.any(dim=1)
        return has_outcome & self.reasoning_mask.any(dim=1)

    def to(self, device: torch.device) -> Rollouts:
        """The same rollouts with every tensor on the device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **moved)

    def select(self, rows: Tensor) -> Rollouts:
        """The given rows (indices or a (B,) bool mask), with their row keys."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero().squeeze(1)
        changes: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = value[rows.to(value.device)]
            elif field.name == "texts" and value is not None:
                changes[field.name] = [value[row] for row in rows.tolist()]
        return dataclasses.replace(self, **changes)
