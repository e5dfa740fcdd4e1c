"""A row whose logits are NaN or infinite keeps weight 1 and leaves the others alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from credit.test_strategies import FORMS
from models import VOCABULARY, bart, llama, ragged
from tokencredit import STRATEGIES, Options
from tokencredit.credit import Credit, Strategy, assign
from tokencredit.policy import Policy

BROKEN, ROW = VOCABULARY - 1, 2
READS_LOGITS = [
    (name, options)
    for name, options in FORMS
    if name in ("oar-p", "oar-g", "path", "entropy", "inverted") and "pad_token_id" not in options
]


def rollouts():
    """The broken token stands in one row alone, among its reasoning."""
    given = ragged()
    ids, prompts = (x.masked_fill(x == BROKEN, BROKEN - 1) for x in (given.completion_ids, given.prompt_ids))
    ids[ROW, 3] = BROKEN
    return dataclasses.replace(given, completion_ids=ids, prompt_ids=prompts)


@pytest.mark.parametrize("make", [llama, bart])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(("name", "options"), READS_LOGITS)
def test_the_row_keeps_weight_one(make, value, name, options):
    def credit(model):
        return assign(STRATEGIES[name], Policy(model), rollouts(), Options(pad_token_id=2, **options))

    model = make()
    expected = credit(model)
    model.get_input_embeddings().register_forward_hook(
        lambda _module, args, output: output.masked_fill((args[0] == BROKEN)[..., None], value)
    )
    with pytest.warns(UserWarning, match="NaN or infinite"):
        found = credit(model)
    assert found.lost.nonzero().tolist() == [[ROW]] and not found.rows[ROW] and expected.rows[ROW]
    assert (found.weights[ROW] == 1).all() and (found.importance[ROW] == 0).all()
    others = torch.arange(found.rows.numel()) != ROW
    for field in dataclasses.fields(found):
        values = getattr(found, field.name)[others]
        torch.testing.assert_close(values, getattr(expected, field.name)[others], rtol=1e-9, atol=1e-12)


def test_a_lost_bonus_moves_no_other():
    """The mean that a bonus is centred by is that of the rows that have one."""
    given = rollouts()
    bonus = given.reasoning_mask * torch.arange(1.0, 8.0, dtype=torch.float64)[:, None]
    without = bonus.clone()
    without[ROW] = 0.0
    with_nan = bonus.clone()
    with_nan[ROW, 3] = torch.nan
    found, expected = (
        assign(
            Strategy(lambda policy, asked, options, b=b: Credit(bonus=b[asked.row_keys]), "", additive=True),
            Policy(llama()),
            given,
            Options(),
            warns=False,
        )
        for b in (with_nan, without)
    )
    assert torch.equal(found.bonus, expected.bonus) and found.lost[ROW]
