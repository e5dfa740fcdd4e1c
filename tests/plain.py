"""The published form, plain and slow: one row at a time, full logits, no padding, no position or mask arguments.

It shares nothing with the package but the keys of its random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tokencredit import Rollouts
from tokencredit.credit.keys import keyed_generator


def row_parts(rollouts: Rollouts, row: int) -> tuple[list[int], int, list[int], list[int]]:
    """(ids, where the completion starts, positions that predict the answer, the answer's ids)."""
    prompt = [int(i) for i, m in zip(rollouts.prompt_ids[row], rollouts.prompt_mask[row], strict=True) if m]
    completion = [
        int(i) for i, m in zip(rollouts.completion_ids[row], rollouts.completion_mask[row], strict=True) if m
    ]
    answer = [t for t in range(len(completion)) if rollouts.answer_mask[row, t]]
    probe = []
    if rollouts.probe_ids is not None:
        probe = [int(i) for i, m in zip(rollouts.probe_ids[row], rollouts.probe_mask[row], strict=True) if m]
    if probe:
        reasoning = [t for t in range(len(completion)) if rollouts.reasoning_mask[row, t]]
        ids = prompt + completion[: reasoning[-1] + 1] + probe
        said = [completion[t] for t in answer]
        where = [len(ids) - 1 + k for k in range(max(1, len(said)))]
        return ids + said, len(prompt), where, said
    return (
        prompt + completion,
        len(prompt),
        [len(prompt) + t - 1 for t in answer],
        [completion[t] for t in answer],
    )


def representation(logits: Tensor, where: list[int], said: list[int], mode: str) -> Tensor:
    """Log-probabilities of the outcome from full logits (L, V): (K, V), or (K, 1) of the answer's own tokens."""
    read = logits[where]
    if mode == "last":
        return torch.log_softmax(read[:1], -1)
    if mode == "answer_mean":
        return torch.log_softmax(read.mean(0, keepdim=True), -1)
    if mode == "answer_kl":
        return torch.log_softmax(read, -1)
    said = said or [int(logits[where[0]].argmax())]
    return torch.stack([torch.log_softmax(read[k], -1)[token] for k, token in enumerate(said)])[:, None]


def distance(clean: Tensor, changed: Tensor, mode: str) -> Tensor:
    if mode == "answer_joint":
        return (clean - changed).mean()
    return (clean.exp() * (clean - changed)).sum()


def full_logits(model: nn.Module, **inputs: Tensor) -> Tensor:
    return model(**inputs).logits[0].double()


def float32_head_logits(model: nn.Module, **inputs: Tensor) -> Tensor:
    """As `full_logits`, with the head in float32 on the hidden states of a half-precision body."""
    hidden = model(**inputs, output_hidden_states=True).hidden_states[-1][0]
    head = model.get_output_embeddings()
    bias = None if head.bias is None else head.bias.float()
    logits = nn.functional.linear(hidden.float(), head.weight.float(), bias)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return (logits if cap is None else cap * torch.tanh(logits / cap)).double()


def oar_p(
    model: nn.Module,
    rollouts: Rollouts,
    mode: str,
    counterfactual: str,
    pad: int,
    read: Callable[..., Tensor] = full_logits,
) -> Tensor:
    importance = torch.zeros(rollouts.shape, dtype=torch.float64)
    for row in range(rollouts.shape[0]):
        ids, start, where, said = row_parts(rollouts, row)
        if not where:
            continue
        with torch.no_grad():
            logits = read(model, input_ids=torch.tensor([ids]))
            if not said and mode == "answer_joint":
                said = [int(logits[where[0]].argmax())]
            clean = representation(logits, where, said, mode)
            for token in range(rollouts.shape[1]):
                if not rollouts.reasoning_mask[row, token]:
                    continue
                changed = list(ids)
                said_here = ids[start + token]
                ranked = logits[start + token - 1].argsort(descending=True).tolist()
                others = [i for i in ranked if i != said_here]
                if counterfactual == "pad":
                    changed[start + token] = pad
                elif counterfactual == "alternative":
                    changed[start + token] = others[0]
                else:
                    table = model.get_input_embeddings().weight.double()
                    angles = {i: torch.cosine_similarity(table[said_here], table[i], 0) for i in others[:5]}
                    changed[start + token] = max(angles, key=lambda i: float(angles[i]))
                moved = representation(read(model, input_ids=torch.tensor([changed])), where, said, mode)
                importance[row, token] = distance(clean, moved, mode).abs()
    return importance


def oar_g(
    model: nn.Module,
    rollouts: Rollouts,
    mode: str,
    noise_std: float = 1e-3,
    draws: int = 1,
    seed: int = 0,
    step: int = 0,
    read: Callable[..., Tensor] = full_logits,
) -> Tensor:
    importance = torch.zeros(rollouts.shape, dtype=torch.float64)
    table = model.get_input_embeddings()
    for row in range(rollouts.shape[0]):
        ids, start, where, said = row_parts(rollouts, row)
        tokens = rollouts.reasoning_mask[row].nonzero().squeeze(1)
        if not where or tokens.numel() == 0:
            continue
        logits = read(model, input_ids=torch.tensor([ids])).detach()
        if not said and mode == "answer_joint":
            said = [int(logits[where[0]].argmax())]
        clean = representation(logits, where, said, mode)
        for draw in range(draws):
            embeddings = table(torch.tensor([ids])).detach().requires_grad_(True)
            generator = keyed_generator(seed, step, draw, row)
            noise = torch.zeros_like(embeddings)
            drawn = torch.randn(tokens.numel(), embeddings.shape[-1], generator=generator)
            wide = torch.promote_types(noise.dtype, torch.float32)
            noise[0, start + tokens] = (noise_std * drawn.to(wide)).to(noise.dtype)
            noisy = read(model, inputs_embeds=embeddings + noise)
            distance(clean, representation(noisy, where, said, mode), mode).backward()
            product = (embeddings.grad[0].double() * embeddings[0].double()).sum(-1).detach().abs()
            importance[row, tokens] += product[start + tokens] / draws
    model.zero_grad(set_to_none=True)
    return importance


def oar_g_labels(
    model: nn.Module,
    rollouts: Rollouts,
    mode: str,
    labels: int = 8,
    read: Callable[..., Tensor] = full_logits,
) -> Tensor:
    """The form without noise: one backward for each rank of label, weighted by its probability."""
    importance = torch.zeros(rollouts.shape, dtype=torch.float64)
    table = model.get_input_embeddings()
    for row in range(rollouts.shape[0]):
        ids, start, where, said = row_parts(rollouts, row)
        tokens = rollouts.reasoning_mask[row].nonzero().squeeze(1)
        if not where or tokens.numel() == 0:
            continue
        for rank in range(labels):
            embeddings = table(torch.tensor([ids])).detach().requires_grad_(True)
            objective = torch.zeros((), dtype=torch.float64)
            for position in representation(read(model, inputs_embeds=embeddings), where, said, mode):
                label = int(position.detach().argsort(descending=True)[rank])
                objective = objective + position[label].detach().exp() * position[label]
            objective.backward()
            product = (embeddings.grad[0].double() * embeddings[0].double()).sum(-1).detach().abs()
            importance[row, tokens] += product[start + tokens]
    model.zero_grad(set_to_none=True)
    return importance


def gate(
    importance: list[float], q: float, floor: float, beta: float, absolute: bool = False, mass: bool = True
) -> list:
    """The gate in plain Python over one row's reasoning tokens."""
    import math

    scores = [math.log1p(value) for value in importance]
    low, high = min(scores), max(scores)
    if len(scores) < 2 or high - low <= 2.3e-16 * abs(high):
        return [1.0] * len(scores)
    normal = [(score - low) / (high - low) for score in scores]
    ordered = sorted(normal)
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    tau = q if absolute else ordered[below] + (place - below) * (ordered[above] - ordered[below])
    weights = []
    for n in normal:
        if n < tau:
            weights.append(max(n / tau, floor))
        else:
            weights.append(1 + (beta * (n - tau) / (1 - tau) if tau < 1 else 0.0))
    scale = len(weights) / sum(weights) if mass else 1.0
    return [weight * scale for weight in weights]
