"""Path credit: the propagation by hand, and all of it against whole forwards."""

from __future__ import annotations

import sys

import pytest
import torch

import plain_path
from models import VOCABULARY, bart, gpt2, llama, ragged, with_probe
from tokencredit import Options, UsageError, token_importance, token_weights
from tokencredit.credit import get_strategy
from tokencredit.credit.links import Links, focused
from tokencredit.credit.path import strongest_paths, value_gate
from tokencredit.credit.perturbation import replacement
from tokencredit.policy import Policy

ROLLOUTS = with_probe(ragged(), [3])
DEEP = {
    "kappa": 1e-3,
    "focus": 0.5,
}  # random models link everything weakly: so that paths of several links count


def links(*each: tuple[int, int, float], row: int = 0) -> Links:
    """(source, target, nats) each."""
    sources, targets, nats = zip(*each, strict=True)
    return Links(
        torch.full((len(each),), row),
        torch.tensor(sources),
        torch.tensor(targets),
        torch.tensor(nats, dtype=torch.float64),
    )


def test_a_chain_by_hand():
    """0 -> 1 -> 2 (answer), 0 -> 2 weakly. With kappa = 1 target 2 has strengths 3 and 1: shares 3/4 and 1/4; target 1
    has strength 1: share 1/2. c_1 = 3/4; c_0 = max(1/4, 1/2 * 3/4) = 3/8."""
    found = strongest_paths(
        links((0, 1, 1.0), (0, 2, 1.0), (1, 2, 3.0)), torch.tensor([[False, False, True]]), 1.0
    )
    assert found.tolist() == [[0.375, 0.75, 1.0]]


def test_a_later_link_may_be_the_weaker_way():
    """As above, but 1 hardly moves the answer: the direct link counts. Shares of 2: 2/3 and 1/3; c_0 = 2/3."""
    found = strongest_paths(
        links((0, 1, 1.0), (0, 2, 2.0), (1, 2, 1.0)), torch.tensor([[False, False, True]]), 1.0
    )
    assert found[0].tolist() == pytest.approx([2 / 3, 1 / 3, 1])


def test_what_leads_nowhere_gets_nothing():
    """0 -> 1, and nothing from 1 to the answer at 3; 2 -> 3 with kappa 0 gets all."""
    found = strongest_paths(links((0, 1, 5.0), (2, 3, 0.1)), torch.tensor([[False, False, False, True]]), 0.0)
    assert found.tolist() == [[0.0, 0.0, 1.0, 1.0]]


def test_rows_do_not_mix():
    """Row 0 without a link beside row 1 with one; the strongest source of a place is its own row's."""
    answer = torch.tensor([[False, True], [False, True]])
    assert strongest_paths(links((0, 1, 3.0), row=1), answer, 1.0).tolist() == [[0.0, 1.0], [0.75, 1.0]]


def test_focus_by_hand():
    """3 of 4 nats: 3 (3/4)^2; 1 of 4: 1/16; an edit that moves nothing has no links."""
    moved = torch.tensor([[1.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    found = focused(moved, moved.sum(1, keepdim=True), 2.0)
    assert found.tolist() == [[0.0625, 1.6875], [0.0, 0.0]]
    assert torch.equal(focused(moved, moved.sum(1, keepdim=True), 0.0), moved)


def test_the_value_gate_by_hand():
    """0.1 + 0.9 c / (c + 0.1) at 0, 0.1 and 0.9 is 0.1, 0.55 and 0.91; mean 0.52."""
    importance = torch.tensor([[0.0, 0.1, 0.9, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    assert value_gate(importance, mask, 0.1, mass=False)[0].tolist() == pytest.approx([0.1, 0.55, 0.91, 1.0])
    found = value_gate(importance, mask, 0.1, mass=True)[0].tolist()
    assert found == pytest.approx([0.1 / 0.52, 0.55 / 0.52, 0.91 / 0.52, 1.0])
    assert value_gate(0 * importance, mask, 0.0, mass=True).tolist() == [[1.0] * 4]


@pytest.mark.parametrize("options", [{}, DEEP, {"kappa": 0.0, "focus": 0.0}])
@pytest.mark.parametrize("make", [llama, gpt2, bart])
def test_against_whole_forwards(make, options):
    """Packed rows and, with BART, whole rows."""
    model = make()
    found = token_importance(model, ROLLOUTS, "path", **options)
    expected = plain_path.path(model, ROLLOUTS, **options)
    assert (expected > 0).sum() > 20
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, DEEP])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_asked_from_the_answer(make, m, options):
    """Against dictionaries and forwards in which all but a few positions keep their clean states."""
    model = make()
    found = token_importance(model, ROLLOUTS, "path", m=m, **options)
    expected = plain_path.path(model, ROLLOUTS, m=m, **options)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found, token_importance(model, ROLLOUTS, "path", **options))


def test_rows_that_cannot_be_packed_are_exact():
    model = bart()
    found = token_importance(model, ROLLOUTS, "path", m=3)
    assert torch.equal(found, token_importance(model, ROLLOUTS, "path"))


@pytest.mark.parametrize("m", [0, 2])
def test_passes_and_budgets_do_not_matter(m):
    model = llama()
    expected = token_importance(model, ROLLOUTS, "path", m=m, **DEEP)
    for limits in ({"token_budget": 30}, {"max_rows": 1}, {"max_rows": 3, "token_budget": 70}):
        found = token_importance(model, ROLLOUTS, "path", m=m, **limits, **DEEP)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_pad_and_other_options():
    model = llama()
    found = token_importance(model, ROLLOUTS, "path", counterfactual="pad", pad_token_id=4)
    torch.testing.assert_close(found, plain_path.path(model, ROLLOUTS, pad=4), rtol=1e-9, atol=1e-12)
    assert not torch.equal(found, token_importance(model, ROLLOUTS, "path"))
    for name in ("kappa", "focus"):
        with pytest.raises(UsageError, match=f"{name} must not be negative"):
            Options(**{name: -0.1})
    free = token_weights(model, ROLLOUTS, "path", mass=False, floor=0.3)
    assert free[0][ROLLOUTS.reasoning_mask[0]].min() >= 0.3


def test_the_strongest_targets_of_a_source_are_kept(monkeypatch):
    """One is too few, the strongest four tell all there is to tell here."""
    model = llama()
    expected = token_importance(model, ROLLOUTS, "path", **DEEP)
    for kept, enough in ((1, False), (4, True)):
        monkeypatch.setattr(sys.modules[Links.__module__], "_TARGETS", kept)
        found = token_importance(model, ROLLOUTS, "path", **DEEP)
        assert torch.allclose(found, expected, rtol=1e-9) == enough


def test_similar_tokens():
    """Against loops; the token itself is never taken, nor one that is no candidate."""
    model = llama()
    policy = Policy(model)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, VOCABULARY, generator=generator, dtype=torch.float64)
    ids = logits.argmax(-1)
    found = replacement(policy, "similar", logits, ids)
    expected = [plain_path.similar(model, row, own) for row, own in zip(logits, ids.tolist(), strict=True)]
    assert found.tolist() == expected and (found != ids).all()
    importance = token_importance(model, ROLLOUTS, "oar-p", counterfactual="similar", outcome="answer_kl")
    assert not torch.equal(importance, token_importance(model, ROLLOUTS, "oar-p", outcome="answer_kl"))


def test_an_embedding_without_numbers_is_refused():
    model = llama()
    table = model.get_input_embeddings()
    packed = torch.nn.Parameter(table.weight.detach().to(torch.int8), requires_grad=False)
    policy = Policy(model)
    table.weight = packed
    with pytest.raises(UsageError, match="use counterfactual=alternative"):
        policy.most_similar(torch.tensor([1]), torch.tensor([[2, 3]]))


def test_without_a_path_all_weigh_the_same():

    class Deaf(torch.nn.Module):
        """Predicts the same whatever it reads."""

        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(VOCABULARY, 4, dtype=torch.float64)

        def get_input_embeddings(self):
            return self.table

        def forward(self, input_ids, attention_mask, use_cache=False):
            logits = torch.zeros(*input_ids.shape, VOCABULARY, dtype=torch.float64) + self.table.weight[0, 0]
            return type("Output", (), {"logits": logits})

    credit = get_strategy("path").function(Policy(Deaf()), ragged(), Options())
    assert credit.importance.max() < 1e-12  # rounding
    torch.testing.assert_close(credit.weights, torch.ones_like(credit.weights))
