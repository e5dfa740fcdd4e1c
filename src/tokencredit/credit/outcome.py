"""What the model says about the answer, and how far a change moves it (OAR, arXiv 2601.07408, section 3).

All divergences are computed in float64: over a vocabulary of 50,000 a float32 KL carries an error of about 1e-7 nats
and can come out negative, which is the size of the quantities that OAR-G differentiates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokencredit.errors import UsageError

_BLOCK = 1 << 18  # numbers, 2 MB in float64


@dataclass(frozen=True)
class Outcome:
    """Logits at the positions that predict the answer.

    Attributes:
        logits: (B, K, V) float32 or better.
        mask: (B, K) bool, the positions that count; the first of each row is always among them.
        targets: (B, K) ids of the row's own answer, -1 where there is none (a probe without an answer).
    """

    logits: Tensor
    mask: Tensor
    targets: Tensor

    def select(self, rows: Tensor) -> Outcome:
        """The given rows, repeated as often as they are named; one row named by all is kept once, to broadcast."""
        if rows.numel() and bool((rows == rows[0]).all()):
            rows = rows[:1]
        return Outcome(self.logits[rows], self.mask[rows], self.targets[rows])


def log_distribution(outcome: Outcome, mode: str) -> tuple[Tensor, Tensor]:
    """The outcome as log-probabilities and the weight of each position.

    Returns:
        log p, (B, K', V) float64 in nats, and weights (B, K') float64: K' = 1 for `last` and `answer_mean`, whose
        outcome is one distribution; K' = K for the modes that read every position of the answer.

    Raises:
        UsageError: unknown mode.
    """
    logits, weights = _logits(outcome, mode)
    return logits.log_softmax(-1), weights


def _logits(outcome: Outcome, mode: str) -> tuple[Tensor, Tensor]:
    """The logits (B, K', V) float64 of the outcome's distributions, and the weight of each (B, K')."""
    mask = outcome.mask.double()
    if mode == "last":
        return outcome.logits[:, :1].double(), mask[:, :1]
    logits = outcome.logits.double()
    if mode == "answer_mean":
        # The mean of the logits, not of the probabilities: a geometric mean of the distributions.
        counted = torch.where(outcome.mask[..., None], logits, 0.0)
        return counted.sum(1, keepdim=True) / mask.sum(1)[:, None, None], mask[:, :1]
    if mode == "answer_joint":
        return logits, mask / mask.sum(1, keepdim=True)
    if mode == "answer_kl":
        return logits, mask
    raise UsageError(f"unknown outcome {mode!r}; use last, answer_mean, answer_joint or answer_kl")


def answer_log_prob(log_p: Tensor, weights: Tensor, targets: Tensor) -> Tensor:
    """sum_k weight_k log p_k(target_k), (B,): the mean log-probability of the answer for `answer_joint` weights."""
    picked = log_p.gather(-1, targets[..., None]).squeeze(-1)
    return (weights * picked).sum(1)


def divergence(clean: Outcome, changed: Outcome, mode: str) -> Tensor:
    """D(clean, changed) of each row, (B,) float64 in nats; differentiable in `changed`. One clean row serves all.

    `last`, `answer_mean`: KL(p0 || p) of one distribution. `answer_kl`: sum over the answer's positions of
    KL(p0_k || p_k). `answer_joint`: log p0(answer) - log p(answer), mean over the answer's tokens; signed, take its
    magnitude. Where a row has no answer of its own, the policy's most probable token stands for it.
    """
    # A few rows at a time: float64 copies of more would leave the processor's cache.
    few = max(1, _BLOCK // max(1, changed.logits[:1].numel()))
    shared = _reference(clean, mode) if clean.logits.shape[0] == 1 else None
    found = []
    for part in torch.arange(changed.logits.shape[0], device=changed.logits.device).split(few):
        block = Outcome(changed.logits[part], changed.mask[part], changed.targets[part])
        found.append(_divergence(shared or _reference(clean.select(part), mode), block, mode))
    return torch.cat(found) if found else changed.logits.new_zeros(0, dtype=torch.float64)


@dataclass(frozen=True)
class _Reference:
    """The clean side: logits z0 (B, K', V) and weights, p0 = softmax z0, log sum exp z0, the answer's ids (B, K)."""

    logits: Tensor
    weights: Tensor
    p0: Tensor
    logsumexp: Tensor
    targets: Tensor


def _reference(clean: Outcome, mode: str) -> _Reference:
    logits, weights = _logits(clean, mode)
    targets = clean.targets
    if mode == "answer_joint":
        targets = torch.where(targets < 0, clean.logits.argmax(-1), targets)
    return _Reference(logits, weights, logits.softmax(-1), logits.logsumexp(-1), targets)


def _divergence(clean: _Reference, changed: Outcome, mode: str) -> Tensor:
    z, weights = _logits(changed, mode)
    logsumexp = z.logsumexp(-1)
    if mode == "answer_joint":
        before = answer_log_prob(clean.logits - clean.logsumexp[..., None], clean.weights, clean.targets)
        return before - answer_log_prob(z - logsumexp[..., None], weights, clean.targets.expand(z.shape[:2]))
    # KL(p0 || p) = lse z - lse z0 - sum p0 (z - z0): log p is never held, and equal logits give 0.
    moved = z - clean.logits
    impossible = clean.logits.isneginf()  # contributes 0, not NaN
    if impossible.any():
        moved = moved.masked_fill(impossible, 0.0)
    mean = torch.einsum("bkv,bkv->bk", clean.p0.expand_as(moved), moved)
    return (clean.weights * (logsumexp - clean.logsumexp - mean)).sum(1)
