"""Where steps end, in text and in tokens, and what grounding gives strategies beyond masks."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tokencredit import UsageError
from tokencredit.grounding import ground
from tokencredit.steps import step_ends, step_numbers
from tokencredit.tasks.policy import build_tokenizer


@pytest.mark.parametrize(
    "steps",
    [
        ["S1 hmm 7 + 5 = 2 ;", " S2 so 3 * 4 = 4 ;", " ans 2"],
        ["First, x is 3.5 and y.", " So 2?\n\n", "Yes!", " Then"],
        ["3 + 4 = 7\n", "7 * 2 = 14\n", "Done"],
        ["1. Add them.\n", "2. Multiply.\n\n\n", "So 14"],  # the number of an item is no step
        ["Wait...", " no;", " it is.", ""],
        ["nothing to split: f(x)=2,y"],
        [""],
    ],
)
def test_steps_of_a_text(steps):
    ends = [0, *step_ends("".join(steps)), len("".join(steps))]
    assert ["".join(steps)[start:end] for start, end in pairwise(ends)] == steps


def rows(*texts: str) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = [build_tokenizer()(text)["input_ids"] for text in texts]
    width = max(map(len, encoded))
    ids = torch.tensor([own + [0] * (width - len(own)) for own in encoded])
    return ids, torch.tensor([[True] * len(own) + [False] * (width - len(own)) for own in encoded])


def test_steps_of_tokens():
    """Padding, the answer and what a tool wrote belong to no step, and steps without tokens are not counted."""
    ids, mask = rows("S1 7 + 5 = 2 ; S2 3 ; ans 2", "7 + 5")
    reasoning = mask.clone()
    reasoning[0, -2:] = False
    found = step_numbers(build_tokenizer(), ids, mask, reasoning)
    assert found[0].tolist() == [0] * 7 + [1] * 3 + [-1] * 2
    assert found[1].tolist() == [0] * 3 + [-1] * 9
    reasoning[0, :7] = False
    assert step_numbers(build_tokenizer(), ids, mask, reasoning)[0].tolist() == [-1] * 7 + [0] * 3 + [-1] * 2


def test_grounding_gives_what_is_needed():
    ids, mask = rows("S1 7 + 5 = 2 ; S2 3 ; ans 2", "S1 7 ; ans 1")
    prompt, prompt_mask = rows("S1 7 + 5 ; ? S1", "S1 7 + 5 ; ? S1")
    tokenizer = build_tokenizer()
    given = (tokenizer, prompt, prompt_mask, ids, mask)
    rollouts, _ = ground(
        *given, marker="ans", needs=("steps", "ask_ids", "gold_ids"), ask="so ans", golds=["2", "1 3"]
    )
    words = tokenizer.convert_ids_to_tokens
    assert [words(own.tolist()) for own in rollouts.ask_ids] == [["so", "ans"]] * 2
    assert words(rollouts.gold_ids[1].tolist()) == ["1", "3"]
    assert words(rollouts.gold_ids[0, :1].tolist()) == ["2"] and rollouts.gold_ids[0, 1] == -1
    assert rollouts.steps[1].tolist() == [0] * 3 + [-1] * 9
    bare, _ = ground(*given, marker="ans")
    assert bare.steps is None and bare.ask_ids is None and bare.gold_ids is None
    with pytest.raises(UsageError, match="the probe '' has no tokens"):
        ground(*given, needs=("ask_ids",), ask="")
