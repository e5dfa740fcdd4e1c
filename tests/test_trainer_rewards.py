"""A reward function that fails ends training in one line with its name and the row."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import tokencredit.trainer_rewards as subject
from test_trl import losses, prompts, train
from tokencredit import UsageError
from tokencredit.answers import accuracy_reward
from tokencredit.tasks.policy import build_model, build_tokenizer
from tokencredit.trainer_rewards import checked_rewards

PROMPTS = [
    "1 + 1 ?",
    [{"role": "system", "content": "add"}, {"role": "user", "content": "2 +\n2 ?"}],
    "x" * 200,
]


def call(function: Any, answer: Any = ("2", "4", "6"), **columns: Any) -> list[Any]:
    """As TRL calls a reward function, with three rows."""
    (checked,) = checked_rewards([function], ["exactness"])
    given = dict(prompts=PROMPTS, completions=["2", "4", "5"], completion_ids=[[1], [2], [3]])
    found = checked(**given, answer=list(answer), trainer_state="state", **columns)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def exact(completions, answer, trainer_state, **kwargs):
    assert trainer_state == "state"
    return [float(int(c) == int(a)) for c, a in zip(completions, answer, strict=True)]


async def exact_later(completions, answer, **kwargs):
    await asyncio.sleep(0)
    return exact(completions, answer, **kwargs)


class Exact:
    def __call__(self, completions, answer, **kwargs):
        return exact(completions, answer, **kwargs)


forms = pytest.mark.parametrize("function", [exact, exact_later, Exact(), functools.partial(exact)])


@forms
def test_what_works_is_handed_on(function):
    assert call(function) == [1.0, 1.0, 0.0]
    (checked,) = checked_rewards([function], ["exactness"])
    assert inspect.iscoroutinefunction(checked) == (function is exact_later)
    model = torch.nn.Linear(1, 1)
    assert checked_rewards([model], ["model"]) == [model]


@forms
def test_the_row_that_raises_is_found(function):
    with pytest.raises(UsageError) as caught:
        call(function, answer=("2", "four", "6"))
    text = str(caught.value)
    line = inspect.getsourcelines(exact)[1] + 2
    assert text.startswith(
        "the reward function exactness raised ValueError: invalid literal for int() with base 10: 'four' "
    )
    assert text.endswith("at row 2 of 3, whose prompt is '2 + 2 ?'") and "\n" not in text
    assert function is not exact or f"(test_trainer_rewards.py, line {line})" in text
    assert isinstance(caught.value.__cause__, ValueError)


def test_several_rows_all_rows_and_none():
    with pytest.raises(UsageError, match=r"at row 1 of 3, whose prompt is '1 \+ 1 \?', and at 1 more$"):
        call(exact, answer=("two", "4", "six"))
    with pytest.raises(UsageError, match=r"at every row$"):
        call(exact, answer=("two", "four", "six"))

    def whole(completions, **kwargs):
        raise RuntimeError("three at once") if len(completions) == 3 else KeyError("another error")

    with pytest.raises(UsageError, match=r"three at once .*given 3 rows; none of the 3 tried alone does it$"):
        call(whole)
    with pytest.raises(UsageError, match=r"row 3 of 3, whose prompt is 'x{80}\.\.\.'$"):
        call(exact, answer=("2", "4", "six"))


def test_the_search_ends(monkeypatch):
    """No second call begins after the limit."""
    monkeypatch.setattr(subject, "SEARCH_LIMIT", -1.0)
    with pytest.raises(UsageError, match="none of the 0 tried alone"):
        call(exact, answer=("2", "four", "6"))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([1.0, 0.0], "returned 2 rewards for 3 completions; it must return one for each"),
        ([1.0], "returned 1 rewards for 3 completions"),
        (None, "returned a NoneType, not a list of 3 rewards"),
        (1.0, "returned a float, not a list"),
        ([1.0, float("nan"), 0.0], "returned nan at row 2 of 3, whose prompt is '2 [+] 2 [?]'"),
        ([1.0, 0.0, float("inf")], "returned inf at row 3 of 3"),
        (torch.tensor([1.0, torch.nan, 0.0]), r"returned tensor\(nan\) at row 2 of 3"),
        (["1.0", 0.0, 0.0], "returned '1.0' at row 1 of 3"),
        ([[1.0], [0.0], [0.0]], r"returned \[1.0\] at row 1 of 3"),
    ],
)
def test_what_is_no_reward_for_each_row(returned, says):
    with pytest.raises(UsageError, match=f"^the reward function exactness {says}"):
        call(lambda **given: returned)


def test_what_may_be_returned():
    for returned in ([None, 1, True], torch.tensor([1.0, 0.0, 0.5]), (0.5, None, 1)):
        assert call(lambda returned=returned, **given: returned) == list(returned)


@pytest.mark.parametrize("later", [False, True])
def test_in_training(tmp_path, later):
    """Eight rows, four a prompt; the second prompt's gold is no number."""
    dataset = prompts(2).map(lambda row: {"gold": row["answer"].replace("1", "none")})

    def reward(gold, **kwargs):
        return [float(text) for text in gold]

    async def reward_later(gold, **kwargs):
        return reward(gold)

    place = r"at row [15] of 8, whose prompt is 'S1 1 \+ 1 ;', and at 3 more"
    with pytest.raises(UsageError, match=rf"raised ValueError: could not .*'none' .*{place}"):
        train(tmp_path, dataset=dataset, reward=reward_later if later else reward, credit="uniform")


def test_our_own_reward(tmp_path):
    """A tolerance that is no number, in a dataset that nobody has checked."""
    dataset = prompts().add_column("tolerance", ["0.1"] * 7 + ["small"])
    with pytest.raises(
        UsageError,
        match=r"accuracy_reward raised UsageError: the tolerance 'small'.*whose prompt is 'S1 7 \+ 7 ;'",
    ):
        train(tmp_path, dataset=dataset, reward=accuracy_reward, steps=8, credit="uniform")


def test_a_finished_run_sees_no_difference(tmp_path):
    """A function's rewards reach the loss as they are, None among them."""

    def some(completions, **kwargs):
        return [None if row % 4 == 3 else float(row) for row in range(len(completions))]

    model = build_model(0)
    run = train(tmp_path, reward=some, model=model, tokenizer=build_tokenizer(), credit="position", steps=1)
    assert isinstance(model, LlamaForCausalLM) and losses(run)[0] == losses(run)[0]
    assert run.state.log_history[0]["rewards/some/mean"] == pytest.approx((0 + 1 + 2 + 4 + 5 + 6) / 6)
