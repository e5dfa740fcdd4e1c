"""The published forms of OAR-P and OAR-G, compact; they share no code with the package but the noise's key.

OAR-P runs R full copies of a sequence, one replaced token each, in one forward pass with full float32 logits. OAR-G
runs the batch clean and noisy with full logits and calls `backward`, which computes every parameter's gradient too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokencredit import Rollouts
from tokencredit.credit.keys import keyed_generator


def oar_p(model: Any, rollouts: Rollouts, pad: int, at_once: int | None = None) -> Tensor:
    """I_t = KL(p0 || p_t) at the last position before the answer, of the only row; (T,) float64.

    All copies in one forward pass, as published, or so many `at_once`.
    """
    prompt, completion = rollouts.prompt_ids[0], rollouts.completion_ids[0]
    tokens = rollouts.reasoning_mask[0].nonzero().squeeze(1)
    read = len(prompt) + int(rollouts.answer_mask[0].long().argmax()) - 1
    ids = torch.cat([prompt, completion])
    copies = ids.repeat(len(tokens), 1)
    copies[torch.arange(len(tokens)), len(prompt) + tokens] = pad
    with torch.no_grad():
        clean = _full_logits(model, ids[None])[0, read].double().log_softmax(-1)
        parts = copies.split(at_once or len(tokens))
        changed = torch.cat([_full_logits(model, part)[:, read] for part in parts]).double().log_softmax(-1)
    importance = torch.zeros(len(completion), dtype=torch.float64)
    importance[tokens] = (clean.exp() * (clean - changed)).sum(-1)
    return importance


def oar_g(model: Any, rollouts: Rollouts, noise_std: float = 1e-3) -> Tensor:
    """|gradient of KL(p0 || noisy p) . embedding| with the mean of the answer's logits; (B, T) float32."""
    prompt = rollouts.prompt_ids.shape[1]
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)
    mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], 1).long()
    with torch.no_grad():
        clean = model(ids, attention_mask=mask, use_cache=False).logits.float()
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    noise = torch.zeros_like(embeddings)
    for row, reasoning in enumerate(rollouts.reasoning_mask):
        generator = keyed_generator(0, 0, 0, row)
        drawn = torch.randn(int(reasoning.sum()), embeddings.shape[-1], generator=generator)
        noise[row, prompt + reasoning.nonzero().squeeze(1)] = noise_std * drawn
    noisy = model(inputs_embeds=embeddings + noise, attention_mask=mask, use_cache=False).logits.float()
    total = torch.zeros((), dtype=torch.float64)
    for row, answer in enumerate(rollouts.answer_mask):
        reads = prompt + answer.nonzero().squeeze(1) - 1
        p0 = clean[row, reads].double().mean(0).log_softmax(-1)
        p = noisy[row, reads].double().mean(0).log_softmax(-1)
        total = total + (p0.exp() * (p0 - p)).sum()
    total.backward()
    model.zero_grad(set_to_none=True)
    assert embeddings.grad is not None
    return (embeddings.grad * embeddings.detach()).sum(-1).abs()[:, prompt:] * rollouts.reasoning_mask


def _full_logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids, use_cache=False).logits
    return logits if logits.dtype == torch.float64 else logits.float()
