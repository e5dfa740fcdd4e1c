"""The rewards for TRL: is the answer right, is it given in the form that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokencredit.answers.extraction import extract, opens_thinking
from tokencredit.answers.verdicts import check_gold, parse_tolerance, verify
from tokencredit.answers.worker import spread

__all__ = [
    "accuracy_reward",
    "accuracy_reward_for",
    "content_of",
    "format_reward",
    "format_reward_for",
    "template_opens_thinking",
]

Reward = Callable[..., list[float | None]]


def accuracy_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """A reward function for TRL: 1.0 for a right answer, 0.0 for a wrong one or none, None without a gold.

    `completions` are strings or chat messages (the last assistant message counts); `answer` is the data set's
    column of golds, `tolerance` that of largest differences where it has one. Plain prompts that end in an open think
    block are taken into account; for chat messages, or another value without an answer, see `accuracy_reward_for`.
    """
    return accuracy_reward_for()(completions, answer, **kwargs)


def accuracy_reward_for(
    thinking: bool = False, no_answer: float | None = 0.0, marker: str | None = None
) -> Reward:
    """`accuracy_reward` as configured.

    Args:
        thinking: whether the chat template's generation prompt opens a think block (`template_opens_thinking`).
            Prompts of chat messages do not show what the template puts after them; plain prompts speak for themselves.
        no_answer: what a completion without an answer gets; None leaves it out of the group, as TRL does with None.
        marker: the word or sign before the answer; by default boxes, #### and the like are recognised.
    """
    return _named(
        "accuracy_reward", lambda *args, **kwargs: _accuracy(thinking, no_answer, marker, *args, **kwargs)
    )


def _accuracy(
    by_template: bool,
    no_answer: float | None,
    marker: str | None,
    completions: Sequence[Any],
    answer: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    tolerance: Sequence[Any] | None = None,
    **_: Any,
) -> list[float | None]:
    def reward(prompt: Any, completion: Any, gold: Any, allowed: Any) -> float | None:
        if gold is None or check_gold(str(gold)) is not None:
            return None
        thinking = opens_thinking(prompt) if isinstance(prompt, str) else by_template
        text = content_of(completion)
        found = verify(text, str(gold), marker=marker, thinking=thinking, tolerance=allowed).verdict
        return no_answer if found == "no-answer" else float(found == "right")

    count = len(completions)
    tolerances = [parse_tolerance(value) and value for value in tolerance or [None] * count]
    rows = list(zip(prompts or [None] * count, completions, answer, tolerances, strict=True))
    return list(spread(lambda row: reward(*row), rows))


def format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    r"""A reward function for TRL: 1.0 where the answer stands in a `\boxed{}` or `<answer></answer>`, else 0.0.

    Reasoning in a think block must be closed, and a block may be opened and closed once.
    """
    return format_reward_for()(completions, **kwargs)


def format_reward_for(thinking: bool = False) -> Reward:
    """`format_reward` for a chat template that opens a think block (`thinking`) or does not."""
    return _named("format_reward", lambda *args, **kwargs: _format(thinking, *args, **kwargs))


def _format(
    by_template: bool, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **_: Any
) -> list[float | None]:
    rewards: list[float | None] = []
    for prompt, completion in zip(prompts or [None] * len(completions), completions, strict=True):
        text = content_of(completion)
        opened = opens_thinking(prompt) if isinstance(prompt, str) else by_template
        blocks = text.count("<think>") + opened
        found = extract(text, thinking=opened)
        tidy = blocks == text.count("</think>") and blocks <= 1
        rewards.append(float(tidy and found is not None and found.rule in ("boxed", "<answer>")))
    return rewards


def _named(name: str, function: Reward) -> Reward:
    """The function under the name that TRL logs it by."""
    function.__name__ = name
    return function


def template_opens_thinking(tokenizer: Any, **settings: Any) -> bool:
    """Whether the tokenizer's chat template opens a think block that the completion has to close.

    False without a chat template, and where a response template takes the thinking out before a completion is rewarded.
    `settings` are the template's own, as `chat_template_kwargs` gives them.
    """
    parsed = any(getattr(tokenizer, f"response_{kind}", None) for kind in ("template", "schema"))
    if parsed or not tokenizer.chat_template:
        return False
    begun = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False, **settings
    )
    return opens_thinking(begun)


def content_of(completion: Any) -> str:
    """The text of a completion: itself, or the content of its last assistant message ("" without one)."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") or "" for message in completion if message.get("role") == "assistant"]
    last = said[-1] if said else ""
    return last if isinstance(last, str) else "".join(part.get("text", "") for part in last)
