"""What holds of every strategy, whatever the rows of a batch look like."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from models import VOCABULARY, gpt2, llama, odd_ends, rows_of
from tokencredit import STRATEGIES, Options, Rollouts, group_advantages
from tokencredit.credit import TokenCredit, assign
from tokencredit.policy import Policy

PAD = 2
LLAMA, GPT2 = llama(), gpt2(dropout=0.0)


@dataclass(frozen=True)
class Row:
    """Tokens of each part of a row, in their order, and whether its answer is right."""

    prompt: int
    reasoning: int
    marker: int
    answer: int
    tail: int
    right: bool

    @property
    def completion(self) -> int:
        return self.reasoning + self.marker + self.answer + self.tail


EMPTY = Row(3, 0, 0, 0, 0, True)  # nothing was said
ALL_PADS = Row(0, 0, 0, 0, 0, False)
ONE_TOKEN = Row(2, 1, 0, 0, 0, False)
ONE_TOKEN_ANSWER = Row(2, 0, 0, 1, 0, True)
ANSWER_FIRST = Row(4, 0, 0, 2, 3, False)
ALL_ANSWER = Row(1, 0, 0, 5, 0, True)
ONE_THOUGHT = Row(5, 1, 1, 1, 1, False)
ORDINARY = [Row(4, 7, 1, 2, 1, True), Row(6, 5, 2, 1, 0, False)]
LONGER = Row(1, 8, 0, 1, 2, True)
EDGES = [
    EMPTY,
    ALL_PADS,
    *ORDINARY,
    ONE_TOKEN,
    ONE_TOKEN_ANSWER,
    ANSWER_FIRST,
    ALL_ANSWER,
    ONE_THOUGHT,
    LONGER,
]
"""Groups of two, one right and one wrong each."""

sizes = st.integers(0, 5)
rows = st.builds(
    Row,
    st.integers(1, 5),
    st.integers(0, 8),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(0, 2),
    st.booleans(),
) | st.just(ALL_PADS)
batches = st.lists(rows, min_size=1, max_size=3).map(lambda some: some + some[::-1])
seeds = st.integers(0, 9)
bounded = settings(
    max_examples=20, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
every_strategy = pytest.mark.parametrize("name", list(STRATEGIES))


def rollouts(batch: list[Row], seed: int) -> Rollouts:
    """Groups of two neighbours; steps of two tokens; what is padding holds junk."""
    random = torch.Generator().manual_seed(seed)

    def ids(length: int) -> torch.Tensor:
        return torch.randint(3, VOCABULARY, (len(batch), length), generator=random)

    def places(length: int) -> torch.Tensor:
        return torch.arange(length).expand(len(batch), -1)

    def sizes_of(part: str) -> torch.Tensor:
        return torch.tensor([getattr(row, part) for row in batch])[:, None]

    prompt, completion = places(max(r.prompt for r in batch)), places(max(r.completion for r in batch))
    reasoning = completion < sizes_of("reasoning")
    said = completion - sizes_of("reasoning") - sizes_of("marker")
    rewards = torch.tensor([float(row.right) for row in batch], dtype=torch.float64)
    groups = torch.arange(len(batch)) // 2
    return Rollouts(
        ids(prompt.shape[1]),
        prompt >= prompt.shape[1] - sizes_of("prompt"),
        ids(completion.shape[1]),
        completion < sizes_of("completion"),
        reasoning,
        (said >= 0) & (said < sizes_of("answer")),
        advantages=group_advantages(rewards, groups),
        rewards=rewards,
        groups=groups,
        gold_ids=ids(2),
        ask_ids=ids(3),
        steps=torch.where(reasoning, completion // 2, -1),
        step_verdicts=torch.where(reasoning, 1 - completion // 2 % 2, -1),
        grader=odd_ends,
        old_logps=-2.5
        - 4 * torch.rand(len(batch), completion.shape[1], generator=random, dtype=torch.float64),
    )


def credit(model: torch.nn.Module, given_rows: Rollouts, name: str) -> TokenCredit:
    options = Options(pad_token_id=PAD, sample_tokens=3, continuations=3, continuation_tokens=3)
    return assign(STRATEGIES[name], Policy(model), given_rows, options)


def check_same(found: TokenCredit, expected: TokenCredit, width: int) -> None:
    """As far as completions reach."""
    for field in ("importance", "weights", "bonus"):
        one, other = getattr(found, field)[:, :width], getattr(expected, field)[:, :width]
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-11)


@every_strategy
@example(batch=EDGES, seed=1)
@example(batch=[ALL_PADS, ALL_PADS], seed=0)
@example(batch=[EMPTY, EMPTY], seed=0)
@example(batch=[ONE_TOKEN, ONE_TOKEN_ANSWER], seed=0)
@example(batch=[ANSWER_FIRST, ALL_ANSWER], seed=1)
@given(batch=batches, seed=seeds)
@bounded
def test_mass_mask_finite_and_sign(name, batch, seed):
    asked = rollouts(batch, seed)
    found = credit(LLAMA, asked, name)
    mask, advantages = asked.reasoning_mask, asked.advantages
    for values in (found.importance, found.weights, found.bonus):
        assert values.shape == asked.shape and values.isfinite().all()
    assert (found.importance >= 0).all() and (found.weights >= 0).all() and not found.lost.any()
    assert (found.importance[~mask] == 0).all() and (found.weights[~mask] == 1).all()
    assert (found.bonus[~mask] == 0).all()
    torch.testing.assert_close((found.weights * mask).sum(1), mask.sum(1).double(), rtol=1e-12, atol=1e-12)
    per_token = found.token_advantages(advantages)
    if not STRATEGIES[name].additive:
        assert torch.equal(per_token.sign(), advantages.sign()[:, None].expand(asked.shape))
    elif STRATEGIES[name].centred:
        assert found.bonus.sum().abs() <= 1e-9 * max(
            1.0, float(found.bonus.abs().max()) if mask.any() else 1.0
        )
    idle = (advantages == 0) & ~found.rows
    assert (per_token[idle] == 0).all()
    assert batch is not EDGES or found.rows.any()


@every_strategy
@example(batch=EDGES, seed=1, order_seed=1)
@given(batch=batches, seed=seeds, order_seed=seeds)
@bounded
def test_batch_composition(name, batch, seed, order_seed):
    """Rows in another order; where credit is a row's own, also a part of them."""
    asked = rollouts(batch, seed)
    together = credit(LLAMA, asked, name)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(order_seed)).tolist()
    strategy = STRATEGIES[name]
    if not (strategy.additive and strategy.needs):
        order = order[: 1 + len(order) // 2]
    found = credit(LLAMA, rows_of(asked, order), name)
    for field in ("importance", "weights", "bonus"):
        torch.testing.assert_close(
            getattr(found, field), getattr(together, field)[order], rtol=1e-6, atol=1e-11
        )


@every_strategy
@example(batch=EDGES, seed=1, left=3, between=1, right=2)
@given(batch=batches, seed=seeds, left=sizes, between=sizes, right=sizes)
@bounded
def test_padding(name, batch, seed, left, between, right):
    """On either side of prompts, and after completions, of a model that counts positions in a table."""
    asked = rollouts(batch, seed)
    width = asked.shape[1]
    shapes = {"left": left, "between": between, "right": right}
    junk = {side: torch.full((len(batch), count), 5) for side, count in shapes.items()}
    off = {side: torch.zeros_like(ids).bool() for side, ids in junk.items()}

    def after(values: torch.Tensor, filler: torch.Tensor) -> torch.Tensor:
        return torch.cat([values, filler], 1)

    padded = dataclasses.replace(
        asked,
        prompt_ids=torch.cat([junk["left"], asked.prompt_ids, junk["between"]], 1),
        prompt_mask=torch.cat([off["left"], asked.prompt_mask, off["between"]], 1),
        completion_ids=after(asked.completion_ids, junk["right"]),
        completion_mask=after(asked.completion_mask, off["right"]),
        reasoning_mask=after(asked.reasoning_mask, off["right"]),
        answer_mask=after(asked.answer_mask, off["right"]),
        steps=after(asked.steps, torch.full_like(junk["right"], -1)),
        step_verdicts=after(asked.step_verdicts, junk["right"]),
        old_logps=after(asked.old_logps, junk["right"].double()),
    )
    found = credit(GPT2, padded, name)
    check_same(found, credit(GPT2, asked, name), width)
    assert (found.weights[:, width:] == 1).all() and (found.bonus[:, width:] == 0).all()


@every_strategy
def test_long_completions(name):
    """4,096 tokens beside a short one and an empty one."""
    long = Row(8, 4088, 3, 4, 1, False)
    batch = [long, ORDINARY[0], EMPTY, ONE_TOKEN]
    asked = rollouts(batch, 0)
    options = Options(pad_token_id=PAD, m=4)
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, initializer_range=0.25)).eval()
    if name == "oar-p":  # one pass a token: the first and the last ones will do
        kept = torch.arange(asked.shape[1])
        asked = dataclasses.replace(asked, reasoning_mask=asked.reasoning_mask & ((kept < 4) | (kept > 4080)))
    found = assign(STRATEGIES[name], Policy(model), asked, options)
    mask = asked.reasoning_mask
    assert all(values.isfinite().all() for values in (found.importance, found.weights, found.bonus))
    torch.testing.assert_close((found.weights * mask).sum(1), mask.sum(1).float(), rtol=1e-4, atol=1e-3)
    if name != "uniform" and not STRATEGIES[name].additive:
        assert (found.weights[0] != 1).any()
