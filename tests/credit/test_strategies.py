"""The contract that every strategy keeps."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models import bart, family, gpt2, llama, ragged, rows_of, with_probe
from tokencredit import (
    STRATEGIES,
    Options,
    Rollouts,
    UsageError,
    token_advantages,
    token_importance,
    token_weights,
)
from tokencredit.credit import Credit, Strategy, assign, get_strategy
from tokencredit.credit.base import NEEDED
from tokencredit.policy import Policy

NAMES = list(STRATEGIES)
GROUPWISE = [name for name in NAMES if "groups" in STRATEGIES[name].needs]
WEIGHTS_ONLY = [name for name in NAMES if not STRATEGIES[name].additive]
SHORTER = {"vine": {"continuations": 2, "continuation_tokens": 3}}
FORMS = [(name, SHORTER.get(name, {})) for name in NAMES] + [
    ("oar-p", {"counterfactual": "alternative"}),
    ("oar-g", {"gradient": "labels"}),
    ("oar-g", {"gradient": "labels", "labels_from": "sample", "labels": 2}),
    ("oar-g", {"draws": 2, "saliency": "norm"}),
    ("path", {"m": 2}),
    ("path", {"counterfactual": "pad", "pad_token_id": 4}),
]
every_form = pytest.mark.parametrize(("name", "options"), FORMS)


@pytest.fixture(scope="module")
def model():
    return llama()


@every_form
def test_shape_mask_finite_and_mass(model, name, options):
    rollouts = with_probe(ragged(), [3])
    weights = token_weights(model, rollouts, name, **options)
    importance = token_importance(model, rollouts, name, **options)
    mask = rollouts.reasoning_mask
    for tensor in (weights, importance):
        assert tensor.shape == rollouts.shape and tensor.dtype == torch.float64
        assert tensor.isfinite().all() and (tensor >= 0).all()
    assert (importance[~mask] == 0).all()
    assert (weights[~mask] == 1).all()
    torch.testing.assert_close((weights * mask).sum(1), mask.sum(1).double(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", WEIGHTS_ONLY)
def test_no_sign_flips_and_zero_stays_zero(model, name):
    rollouts = ragged()
    found = token_advantages(model, rollouts, name)
    assert torch.equal(found.sign(), rollouts.advantages.sign()[:, None].expand(rollouts.shape))


def test_the_gate_gives_contrast(model):
    """All weights of every strategy but uniform differ within a row: the invariants above are not met by ones."""
    rollouts = ragged()
    for name in WEIGHTS_ONLY:
        spread = token_weights(model, rollouts, name).std(dim=1).max()
        assert (spread == 0) == (name == "uniform"), name


@every_form
def test_batch_composition(model, name, options):
    """Each row alone, and the rows in another order, give what they give together."""
    rollouts = with_probe(ragged(), [3])
    together = token_importance(model, rollouts, name, **options)
    order = [4, 2, 6, 0, 5, 1, 3]
    shuffled = token_importance(model, rows_of(rollouts, order), name, **options)
    torch.testing.assert_close(shuffled, together[order], rtol=1e-7, atol=1e-13)
    for row in range(rollouts.shape[0]):
        alone = token_importance(model, rows_of(rollouts, [row]), name, **options)
        torch.testing.assert_close(alone[0], together[row], rtol=1e-7, atol=1e-13)


@every_form
@pytest.mark.parametrize("build", [llama, gpt2])
def test_padding(build, name, options):
    """More padding, on either side of the prompt and after the completion, changes nothing; nor does what it holds."""
    subject, rollouts = build(), ragged()
    expected = token_importance(subject, rollouts, name, **options)
    rows = rollouts.shape[0]
    junk = torch.full((rows, 3), 5)
    off = torch.zeros(rows, 3, dtype=torch.bool)
    for prompt_ids, prompt_mask in (
        (torch.cat([junk, rollouts.prompt_ids], 1), torch.cat([off, rollouts.prompt_mask], 1)),
        (torch.cat([rollouts.prompt_ids, junk], 1), torch.cat([rollouts.prompt_mask, off], 1)),
    ):
        padded = dataclasses.replace(
            rollouts,
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            **{
                field: torch.cat([getattr(rollouts, field), off], 1)
                for field in ("completion_mask", "reasoning_mask", "answer_mask")
            },
            completion_ids=torch.cat([rollouts.completion_ids, junk], 1),
            steps=torch.cat([rollouts.steps, junk * 0 - 1], 1),
            step_verdicts=torch.cat([rollouts.step_verdicts, junk], 1),
            old_logps=torch.cat([rollouts.old_logps, junk.double()], 1),
        )
        found = token_importance(subject, padded, name, **options)
        torch.testing.assert_close(found[:, :-3], expected, rtol=1e-7, atol=1e-13)
        assert (found[:, -3:] == 0).all()


@every_form
def test_chunk_size(model, name, options):
    rollouts = with_probe(ragged(), [3])
    expected = token_importance(model, rollouts, name, **options)
    for rows in (1, 2, 3):
        found = token_importance(model, rollouts, name, max_rows=rows, **options)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-13)


@every_form
def test_leaves_the_model_and_the_random_state_alone(name, options):
    """Dropout is on, one module is not in train mode, a parameter has a gradient, the random state is in use."""
    subject, rollouts = gpt2(dropout=0.5), ragged()
    subject.train()
    subject.transformer.h[1].eval()
    modes = [module.training for module in subject.modules()]
    for parameter in subject.parameters():
        parameter.grad = torch.ones_like(parameter)
    hooks = len(subject.get_input_embeddings()._forward_hooks)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = token_weights(subject, rollouts, name, **options)
    second = token_weights(subject, rollouts, name, **options)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in subject.modules()] == modes
    assert all(torch.equal(p.grad, torch.ones_like(p)) and p.requires_grad for p in subject.parameters())
    assert len(subject.get_input_embeddings()._forward_hooks) == hooks


every_groupwise = pytest.mark.parametrize("name", GROUPWISE)


def some_family(name: str) -> Rollouts:
    """One in which the strategy finds something to tell apart."""
    return family(seed=2 if "sibling" in name else 0)


def groupwise(model, rollouts: Rollouts, name: str, max_rows: int | None = None, **options):
    """Importance, weights and bonus, before the last is centred."""
    found = STRATEGIES[name].function(Policy(model, max_rows=max_rows), rollouts, Options(**options))
    given = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    assert all(values is None or values.isfinite().all() for values in given.values())
    return {field: values.double() for field, values in given.items() if values is not None}


@every_groupwise
@pytest.mark.parametrize("build", [llama, gpt2, bart])
def test_groups_in_any_order(build, name):
    """Rows in another order, more padding, smaller passes, and rows of other groups left out: a group gets the same
    whatever surrounds it, but for what is measured over the batch."""
    model, rollouts = build(), some_family(name)
    expected = groupwise(model, rollouts, name)
    assert any((values[[1, 2, 4, 6]] != 0).any() for values in expected.values())
    order = [8, 2, 6, 0, 5, 7, 1, 3, 4]
    for field, values in groupwise(model, rows_of(rollouts, order), name).items():
        torch.testing.assert_close(values, expected[field][order], rtol=1e-7, atol=1e-12)
    for rows in (1, 2, 3):
        for field, values in groupwise(model, rollouts, name, max_rows=rows).items():
            torch.testing.assert_close(values, expected[field], rtol=1e-7, atol=1e-12)
    unmixed = rows_of(rollouts, [0, 1, 2, 3, 4, 5, 6])
    for field, values in groupwise(model, unmixed, name).items():
        torch.testing.assert_close(values, expected[field][:7], rtol=1e-7, atol=1e-12)


@every_groupwise
def test_group_credit_lies_on_the_reasoning(model, name):
    rollouts = family()
    for field, values in groupwise(model, rollouts, name).items():
        assert values.shape == rollouts.shape
        assert (values[~rollouts.reasoning_mask] == (1 if field == "weights" else 0)).all()


@pytest.mark.parametrize(
    "name", [name for name in GROUPWISE if STRATEGIES[name].additive and STRATEGIES[name].centred]
)
def test_a_group_of_equals_has_no_bonus(model, name):
    rollouts = some_family(name)
    credit = assign(STRATEGIES[name], Policy(model), rollouts, Options())
    assert (credit.bonus[7:] == 0).all() and not credit.rows[7:].any() and credit.rows[[1, 2]].all()
    assert abs(float(credit.bonus.sum())) < 1e-12
    nothing = dataclasses.replace(rollouts, advantages=torch.zeros(9))
    assert (assign(STRATEGIES[name], Policy(model), nothing, Options()).bonus == 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if STRATEGIES[name].needs])
def test_what_a_strategy_needs_is_named(model, name):
    """By its own name, whatever way it is asked."""
    bare = dataclasses.replace(family(), **dict.fromkeys(STRATEGIES[name].needs))
    for ask in (token_importance, token_weights):
        with pytest.raises(
            UsageError, match=f"credit strategy {name} needs {NEEDED[STRATEGIES[name].needs[0]]}"
        ):
            ask(model, bare, name)


@pytest.mark.parametrize("name", ["random", "oar-g"])
def test_draws_are_keyed(model, name):
    rollouts = ragged()

    def draw(**options):
        return token_importance(model, rollouts, name, **options)

    assert torch.equal(draw(seed=1, step=2), draw(seed=1, step=2))
    assert not torch.equal(draw(seed=1, step=2), draw(seed=2, step=2))
    assert not torch.equal(draw(seed=1, step=2), draw(seed=1, step=3))


def test_rows_without_use_cost_nothing(model):
    """Zero advantage, no answer, one reasoning token: the strategy never sees them, their weights are 1."""
    rollouts = ragged()
    seen: list[Rollouts] = []

    def spy(policy: Policy, asked: Rollouts, options: Options) -> Credit:
        seen.append(asked)
        return Credit(importance=asked.reasoning_mask.cumsum(1).double())

    credit = assign(Strategy(spy, ""), Policy(model), rollouts, Options())
    assert credit.rows.tolist() == [True, True, True, False, False, False, False]
    assert seen[0].row_keys.tolist() == [0, 1, 2]
    assert (credit.weights[3:] == 1).all() and (credit.importance[3:] == 0).all()
    nothing = dataclasses.replace(rollouts, advantages=torch.zeros(7))
    assign(Strategy(spy, ""), Policy(model), nothing, Options())
    assert len(seen) == 1


def test_half_precision_takes_labels():
    """In bfloat16 the default is the labels form, near its float32 result where noise is far from it."""
    rollouts = ragged()
    model = llama(torch.bfloat16)
    exact = token_importance(llama(torch.float32), rollouts, "oar-g", gradient="labels")
    found = token_importance(model, rollouts, "oar-g")
    assert torch.equal(found, token_importance(model, rollouts, "oar-g", gradient="labels"))
    assert not torch.equal(found, token_importance(model, rollouts, "oar-g", gradient="noise"))
    largest = exact.max(dim=1).values
    assert ((found - exact).abs().max(dim=1).values <= 0.1 * largest).all()


def test_the_pad_counterfactual_is_the_models_own():
    model = llama()
    model.config.pad_token_id = 5
    rollouts = ragged()
    found = token_importance(model, rollouts, "oar-p")
    assert torch.equal(found, token_importance(model, rollouts, "oar-p", pad_token_id=5))
    assert not torch.equal(found, token_importance(model, rollouts, "oar-p", pad_token_id=0))
    model.config.pad_token_id = None
    found = token_importance(model, rollouts, "oar-p")
    assert torch.equal(found, token_importance(model, rollouts, "oar-p", pad_token_id=0))


def test_no_noise_is_refused_where_noise_is_all_there_is(model):
    with pytest.raises(UsageError, match="noise_std is 0"):
        token_importance(model, ragged(), "oar-g", noise_std=0.0)


def test_bias_reaches_every_row(model):
    rollouts = dataclasses.replace(ragged(), advantages=torch.zeros(7, dtype=torch.float64))
    found = token_advantages(model, rollouts, "bias", bias=0.25)
    assert torch.equal(found, 0.25 * rollouts.reasoning_mask)


def test_other_bonuses_are_centred(model):
    """Over the reasoning tokens of the rows that carry one."""

    def bonus(policy: Policy, asked: Rollouts, options: Options) -> Credit:
        added = torch.zeros(asked.shape, dtype=torch.float64)
        added[0], added[1] = 1.0, 3.0
        return Credit(bonus=added)

    rollouts = ragged()
    found = assign(Strategy(bonus, "", additive=True), Policy(model), rollouts, Options())
    # Row 0 has 9 reasoning tokens, row 1 has 4: the mean is (9 * 1 + 4 * 3) / 13 = 21 / 13.
    assert found.bonus[0, :9].tolist() == pytest.approx([1 - 21 / 13] * 9)
    assert found.bonus[1, :4].tolist() == pytest.approx([3 - 21 / 13] * 4)
    assert found.bonus[0, 9:].abs().sum() == 0 and found.bonus[2:].abs().sum() == 0
    assert found.bonus.sum().abs() < 1e-12


def test_positions_by_hand(model):
    assert token_importance(model, ragged(), "position")[1].tolist()[:5] == [0, 1, 2, 3, 0]


def test_inverted_is_the_reverse_of_oar_g(model):
    rollouts = ragged()
    straight, reverse = (token_importance(model, rollouts, name) for name in ("oar-g", "inverted"))
    tokens = rollouts.reasoning_mask[2]
    torch.testing.assert_close(reverse[2][tokens], straight[2].max() - straight[2][tokens], rtol=0, atol=0)


def test_entropy_against_a_plain_forward(model):
    rollouts = ragged()
    found = token_importance(model, rollouts, "entropy")
    ids = torch.cat([rollouts.prompt_ids[:1, -5:], rollouts.completion_ids[:1]], 1)
    with torch.no_grad():
        p = model(ids).logits[0, 4:13].softmax(-1)
    torch.testing.assert_close(found[0, :9], -(p * p.log()).sum(-1), rtol=1e-9, atol=1e-12)


def test_unknown_names_are_listed(model):
    with pytest.raises(UsageError, match=r"'oar-x'.*oar-p, oar-g"):
        get_strategy("oar-x")
    with pytest.raises(UsageError, match=r"'quantile'.*outcome"):
        token_weights(model, ragged(), quantile=0.1)
    with pytest.raises(UsageError, match="q must lie in"):
        token_weights(model, ragged(), q=1.5)
    for value in (float("inf"), float("nan")):
        with pytest.raises(UsageError, match="beta must be a finite number"):
            token_weights(model, ragged(), beta=value)
    for name in ("m", "draws", "labels", "siblings", "most_steps", "seed", "step"):
        for bad in (2.5, "8", True, None):
            with pytest.raises(UsageError, match=f"{name} must be a whole number"):
                Options(**{name: bad})
    with pytest.raises(UsageError, match="outcome must be one of last"):
        token_weights(model, ragged(), outcome="first")


def test_advantages_are_needed(model):
    with pytest.raises(UsageError, match=r"rollouts\.advantages"):
        token_advantages(model, dataclasses.replace(ragged(), advantages=None))


def test_other_packages_add_strategies(monkeypatch):
    mine = Strategy(lambda policy, rollouts, options: Credit(), "mine")

    class Entry:
        name = "mine"

        def load(self):
            return mine

    class Broken(Entry):
        name = "broken"

        def load(self):
            raise ImportError("no module named gone")

    class Bare(Entry):
        name = "bare"

        def load(self):
            return mine.function

    entries = [Entry(), Broken(), Bare()]
    monkeypatch.setattr("tokencredit.credit.entry_points", lambda group: entries)
    assert get_strategy("mine") is mine
    with pytest.raises(UsageError, match="'broken' of another package does not load: no module named gone"):
        get_strategy("broken")
    with pytest.raises(UsageError, match=r"'bare' of another package is no tokencredit\.Strategy"):
        get_strategy("bare")
    with pytest.raises(UsageError, match="bias, mine, broken, bare"):
        get_strategy("yours")
