"""The log-probability of given texts after given prefixes, against plain forwards of one sequence each."""

from __future__ import annotations

import pytest
import torch

from models import bart, gpt2, llama, ragged
from tokencredit import UsageError
from tokencredit.policy import Policy

# (row, how many completion tokens come before, text); the fourth after no completion token at all, the last two alike.
ASKED = [
    (0, 9, [4, 5, 6]),
    (2, 3, [7]),
    (2, 12, [1, 1, 2, 3, 5, 8]),
    (1, 0, [9, 2]),
    (3, 6, [30, 31, 0]),
    (0, 4, [4, 5, 6]),
    (0, 4, [4, 5, 6]),
]
ROWS, CUTS = (torch.tensor([asked[part] for asked in ASKED]) for part in (0, 1))


def texts() -> torch.Tensor:
    ids = torch.full((len(ASKED), 6), -1)
    for place, (_, _, text) in enumerate(ASKED):
        ids[place, : len(text)] = torch.tensor(text)
    return ids


def plain(model: torch.nn.Module, rollouts) -> torch.Tensor:
    """One sequence at a time, full logits, no padding."""
    found = torch.zeros(len(ASKED), 6, dtype=torch.float64)
    for place, (row, cut, text) in enumerate(ASKED):
        prompt = [
            int(i) for i, m in zip(rollouts.prompt_ids[row], rollouts.prompt_mask[row], strict=True) if m
        ]
        before = prompt + rollouts.completion_ids[row, :cut].tolist()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([before + text])).logits[0]
        for k, token in enumerate(text):
            found[place, k] = torch.log_softmax(logits[len(before) + k - 1], -1)[token]
    return found


@pytest.mark.parametrize("build", [llama, gpt2, bart])
@pytest.mark.parametrize("limits", [{}, {"max_rows": 1}, {"max_rows": 2}, {"token_budget": 9}])
def test_against_plain_forwards(build, limits):
    """Packed (llama, gpt2) and whole rows (bart), in one pass or in many."""
    model, rollouts = build(), ragged()
    found = Policy(model, **limits).continued(rollouts, ROWS, CUTS, texts())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, plain(model, rollouts), rtol=1e-9, atol=1e-11)


def test_the_same_text_after_the_same_tokens_runs_once():
    """Also where two rows begin alike: 12 + 1 tokens of the clean pass, then each text's tokens once."""
    model, rollouts, sizes = llama(), ragged(), []
    model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: sizes.append(args[0].numel()))
    policy = Policy(model)
    policy.continued(rollouts, ROWS[:1], CUTS[:1], texts()[:1])  # what is found out once a model
    sizes.clear()
    again = rollouts.select(torch.tensor([0, 0]))
    policy.continued(again, torch.tensor([0, 1, 0]), torch.tensor([4, 4, 4]), texts()[[0, 0, 1]])
    assert sizes == [5 + 4, 3 + 1]


def test_nothing_asked():
    found = Policy(llama()).continued(ragged(), ROWS[:0], CUTS[:0], texts()[:0])
    assert found.shape == (0, 6)


def test_bad_ids_and_long_rows_are_refused():
    with pytest.raises(UsageError, match="token id 99"):
        Policy(llama()).continued(ragged(), ROWS[:1], CUTS[:1], torch.tensor([[99]]))
    with pytest.raises(UsageError, match="table of positions ends at 128"):
        Policy(gpt2()).continued(ragged(), ROWS[:1], CUTS[:1], torch.ones(1, 150, dtype=torch.long))
