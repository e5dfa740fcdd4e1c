"""Small models and ragged rollouts for the tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    BartConfig,
    BartForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tokencredit import Rollouts

VOCABULARY = 37


def llama(dtype: torch.dtype = torch.float64, seed: int = 0, dropout: float = 0.0) -> LlamaForCausalLM:
    """Random weights, wide enough that outcomes differ clearly."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.25,
        attention_dropout=dropout,
        pad_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def gpt2(dtype: torch.dtype = torch.float64, seed: int = 0, dropout: float = 0.1) -> GPT2LMHeadModel:
    """Absolute positions and dropout in embeddings, attention and residuals."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        initializer_range=0.25,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return GPT2LMHeadModel(config).to(dtype).eval()


def bart(dtype: torch.dtype = torch.float64, seed: int = 0) -> BartForCausalLM:
    """A decoder that packing does not fit and padding disturbs: it counts positions from the first column."""
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        max_position_embeddings=128,
        init_std=0.25,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return BartForCausalLM(config).to(dtype).eval()


def ragged(seed: int = 0) -> Rollouts:
    """Seven rows: different lengths, answers of 1 to 4 tokens, tokens after the answer, a row without an answer, one
    whose answer comes first, one with a single reasoning token, one with zero advantage, and ids equal to the pad.
    Each is alone in its group."""
    random = torch.Generator().manual_seed(seed)
    #        prompt, reasoning, marker, answer, tail
    shapes = [
        (5, 9, 1, 2, 1),
        (3, 4, 2, 1, 0),
        (7, 12, 1, 4, 2),
        (4, 6, 0, 0, 0),
        (2, 0, 1, 2, 1),
        (6, 1, 1, 1, 1),
    ]
    shapes.append((5, 7, 0, 3, 1))
    prompt_length = max(shape[0] for shape in shapes)
    length = max(sum(shape[1:]) for shape in shapes)
    rows = len(shapes)
    prompt_ids = torch.zeros(rows, prompt_length, dtype=torch.long)
    prompt_mask = torch.zeros(rows, prompt_length, dtype=torch.bool)
    completion_ids = torch.zeros(rows, length, dtype=torch.long)
    completion_mask = torch.zeros(rows, length, dtype=torch.bool)
    reasoning, answer = torch.zeros_like(completion_mask), torch.zeros_like(completion_mask)
    for row, (prompt, thought, marker, said, tail) in enumerate(shapes):
        prompt_ids[row, -prompt:] = torch.randint(0, VOCABULARY, (prompt,), generator=random)
        prompt_mask[row, -prompt:] = True
        count = thought + marker + said + tail
        completion_ids[row, :count] = torch.randint(0, VOCABULARY, (count,), generator=random)
        completion_mask[row, :count] = True
        reasoning[row, :thought] = True
        answer[row, thought + marker : thought + marker + said] = True
    advantages = torch.tensor([1.0, -0.5, 0.7, 1.2, -1.0, 0.4, 0.0], dtype=torch.float64)
    return Rollouts(
        prompt_ids,
        prompt_mask,
        completion_ids,
        completion_mask,
        reasoning,
        answer,
        advantages,
        groups=torch.arange(rows),
        steps=torch.where(reasoning, torch.arange(length) // 3, -1),
        gold_ids=torch.full((rows, 1), 4),
        ask_ids=torch.full((rows, 1), 9),
        rewards=(advantages > 0).double(),
        step_verdicts=torch.where(reasoning, 1 - torch.arange(length) // 3 % 2, -1),
        grader=odd_ends,
        old_logps=-10 * torch.rand(rows, length, generator=random, dtype=torch.float64),
    )


def odd_ends(keys: Sequence[int], completions: Sequence[list[int]]) -> list[float]:
    """A grader: whether the last token's id is odd."""
    return [float(sum(ids[-1:]) % 2) for ids in completions]


def with_probe(rollouts: Rollouts, rows: list[int], probe: tuple[int, ...] = (8, 9, 10)) -> Rollouts:
    """The same rollouts with a probe after the reasoning of the given rows."""
    import dataclasses

    ids = torch.zeros(rollouts.shape[0], len(probe), dtype=torch.long)
    mask = torch.zeros(rollouts.shape[0], len(probe), dtype=torch.bool)
    ids[rows] = torch.tensor(probe)
    mask[rows] = True
    return dataclasses.replace(rollouts, probe_ids=ids, probe_mask=mask)


def rows_of(rollouts: Rollouts, rows: list[int]) -> Rollouts:
    return rollouts.select(torch.tensor(rows))


def family(seed: int = 0) -> Rollouts:
    """Nine completions of three prompts: two successes and two failures, one success and two failures, two failures.

    Rows differ in length and in the number of their steps; row 1 begins as the success of row 0 does.
    """
    random = torch.Generator().manual_seed(seed)
    groups = [0, 0, 0, 0, 1, 1, 1, 2, 2]
    #        tokens of each step, marker, answer, tail
    shapes = [
        ([3, 4, 2], 1, 1, 1),
        ([3, 2, 2], 1, 1, 0),
        ([2, 5], 1, 2, 1),
        ([4, 1, 3, 2], 1, 1, 1),
        ([2, 2], 0, 1, 0),
        ([5, 2, 3], 1, 1, 1),
        ([1], 1, 2, 0),
        ([2, 3], 1, 1, 1),
        ([3], 1, 1, 1),
    ]
    rows, width = len(shapes), max(sum(sizes) + sum(rest) for sizes, *rest in shapes)
    prompts = [torch.randint(1, VOCABULARY, (size,), generator=random) for size in (4, 6, 3)]
    prompt_ids, completion_ids = torch.zeros(rows, 6, dtype=torch.long), torch.zeros(rows, width).long()
    prompt_mask, completion_mask = prompt_ids.bool(), completion_ids.bool()
    reasoning, answer, steps = completion_mask.clone(), completion_mask.clone(), completion_ids - 1
    for row, (sizes, marker, said, tail) in enumerate(shapes):
        prompt = prompts[groups[row]]
        prompt_ids[row, -prompt.numel() :], prompt_mask[row, -prompt.numel() :] = prompt, True
        thought, count = sum(sizes), sum(sizes) + marker + said + tail
        completion_ids[row, :count] = torch.randint(1, VOCABULARY, (count,), generator=random)
        completion_mask[row, :count], reasoning[row, :thought] = True, True
        answer[row, thought + marker : thought + marker + said] = True
        steps[row, :thought] = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    completion_ids[1, :3] = completion_ids[0, :3]
    gold = torch.tensor([[5, -1], [6, 7], [8, -1]])[groups]
    return Rollouts(
        prompt_ids,
        prompt_mask,
        completion_ids,
        completion_mask,
        reasoning,
        answer,
        advantages=torch.tensor([1.0, -0.5, -1.2, 0.8, -0.6, 1.1, -0.5, 0, 0], dtype=torch.float64),
        groups=torch.tensor(groups),
        steps=steps,
        gold_ids=gold,
        ask_ids=torch.tensor([[9, 3]]).expand(rows, -1),
        rewards=torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 0], dtype=torch.float64),
        step_verdicts=torch.where(reasoning, 1 - steps % 2, -1),
        grader=odd_ends,
    )
