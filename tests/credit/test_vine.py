"""Step values by Monte Carlo: by hand on a policy that is given, and against exact values."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from models import bart, family, llama, rows_of
from tokencredit import Options, UsageError, token_weights
from tokencredit.credit.vine import step_values, vine
from tokencredit.policy import Policy
from tokencredit.sampling import Samples


class Given:
    """Writes texts that were laid down, in the order they are asked for."""

    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def sampled(self, rollouts, rows, cuts, texts, uniforms, temperature=1.0) -> Samples:
        assert uniforms.shape == self.ids.shape and texts.shape == (rows.numel(), 0)
        return Samples(self.ids, torch.zeros_like(uniforms))

    def total(self, values):
        return values


def test_by_hand():
    """Two steps of row 4, three values with two completions each."""
    ids = torch.tensor([[[10, -1], [11, 12]], [[12, -1], [13, 10]], [[12, 12], [12, -1]]])
    asked: list[list[int]] = []

    def grade(keys, completions):
        asked.extend(completions)
        assert set(keys) == {4}
        # A completion is right if its last token is 12; one that ends with 11 cannot be judged.
        return [None if ids[-1] == 11 else float(ids[-1] == 12) for ids in completions]

    rollouts = dataclasses.replace(rows_of(family(), [4]), grader=grade)
    options = Options(continuations=2, continuation_tokens=2)
    values = step_values(Given(ids), rollouts, {0: [2, 4]}, options)[0]
    assert values.tolist() == [0.5, 0.5, 1.0]
    said = rollouts.completion_ids[0].tolist()
    assert asked[0] == [10] and asked[3] == [*said[:2], 13, 10] and asked[5] == [*said[:4], 12]
    # Differences 0 and 1/2, whose root mean square is sqrt(1/8); A is -0.6.
    bonus = vine(Given(ids), rollouts, options).bonus[0]
    assert bonus[:4].tolist() == pytest.approx([0.6, 0.6, 0.5 * math.sqrt(8) + 0.6, 0.5 * math.sqrt(8) + 0.6])
    assert (bonus[4:] == 0).all()


@pytest.mark.parametrize("build", [llama, bart])
def test_values_are_means_of_what_the_policy_writes(build):
    """One token at a time: the value is the probability of the tokens that are rewarded."""
    model = build()
    right = set(range(20))
    rollouts = dataclasses.replace(
        rows_of(family(), [1]), grader=lambda keys, rows: [float(ids[-1] in right) for ids in rows]
    )
    options = Options(continuations=400, continuation_tokens=1)
    found = step_values(Policy(model), rollouts, {0: [3, 7]}, options)[0]
    prompt = rollouts.prompt_ids[0][rollouts.prompt_mask[0]]
    for value, end in zip(found.tolist(), (0, 3, 7), strict=True):
        ids = torch.cat([prompt, rollouts.completion_ids[0, :end]])[None]
        with torch.no_grad():
            exact = float(model(input_ids=ids).logits[0, -1].softmax(-1)[:20].sum())
        assert abs(value - exact) < 4.5 * math.sqrt(exact * (1 - exact) / 400)


def test_a_grader_is_needed():
    with pytest.raises(UsageError, match="vine needs a grader of other completions"):
        token_weights(llama(), dataclasses.replace(family(), grader=None), "vine")
