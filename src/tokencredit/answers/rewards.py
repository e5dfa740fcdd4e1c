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
    "reading_tags",
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
    thinking: bool = False,
    no_answer: float | None = 0.0,
    marker: str | None = None,
    tokenizer: Any = None,
) -> Reward:
    """`accuracy_reward` as configured.

    Args:
        thinking: whether the chat template's generation prompt opens a think block (`template_opens_thinking`).
            Prompts of chat messages do not show what the template puts after them; plain prompts speak for themselves.
        no_answer: what a completion without an answer gets; None leaves it out of the group, as TRL does with None.
        marker: the word or sign before the answer; by default boxes, #### and the like are recognised.
        tokenizer: the policy's, where its think tags may be special tokens: TRL takes those out of the text, so that
            completions are then read from their ids.
    """
    read = _reader(tokenizer)
    return _named(
        "accuracy_reward",
        lambda completions, answer, **kwargs: _accuracy(
            thinking, no_answer, marker, read(completions, **kwargs), answer, **kwargs
        ),
    )


def _accuracy(
    by_template: bool,
    no_answer: float | None,
    marker: str | None,
    texts: Sequence[str],
    answer: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    tolerance: Sequence[Any] | None = None,
    **_: Any,
) -> list[float | None]:
    def reward(prompt: Any, text: str, gold: Any, allowed: Any) -> float | None:
        if gold is None or check_gold(str(gold)) is not None:
            return None
        thinking = opens_thinking(prompt) if isinstance(prompt, str) else by_template
        found = verify(text, str(gold), marker=marker, thinking=thinking, tolerance=allowed).verdict
        return no_answer if found == "no-answer" else float(found == "right")

    count = len(texts)
    tolerances = [parse_tolerance(value) and value for value in tolerance or [None] * count]
    rows = list(zip(prompts or [None] * count, texts, answer, tolerances, strict=True))
    return list(spread(lambda row: reward(*row), rows))


def format_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    r"""A reward function for TRL: 1.0 where the answer stands in a `\boxed{}` or `<answer></answer>`, else 0.0.

    Reasoning in a think block must be closed, and a block may be opened and closed once.
    """
    return format_reward_for()(completions, **kwargs)


def format_reward_for(thinking: bool = False, tokenizer: Any = None) -> Reward:
    """`format_reward` as configured; arguments as those of `accuracy_reward_for`."""
    read = _reader(tokenizer)
    return _named(
        "format_reward",
        lambda completions, **kwargs: _format(thinking, read(completions, **kwargs), **kwargs),
    )


def _format(
    by_template: bool, texts: Sequence[str], prompts: Sequence[Any] | None = None, **_: Any
) -> list[float | None]:
    rewards: list[float | None] = []
    for prompt, text in zip(prompts or [None] * len(texts), texts, strict=True):
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


def _reader(tokenizer: Any) -> Callable[..., list[str]]:
    """How the completions that TRL hands to a reward are read: their texts, or their ids for the think tags' sake."""
    with_tags = None if tokenizer is None else reading_tags(tokenizer)

    def read(
        completions: Sequence[Any], completion_ids: Sequence[list[int]] | None = None, **_: Any
    ) -> list[str]:
        texts = [content_of(completion) for completion in completions]
        if with_tags is not None and completion_ids is not None:
            for row, ids in enumerate(completion_ids):
                # In a longer conversation what tools said is among the ids.
                if isinstance(completions[row], str) or len(completions[row]) == 1:
                    texts[row] = with_tags(ids)
        return texts

    return read


def reading_tags(tokenizer: Any) -> Callable[[Sequence[int]], str] | None:
    """Decodes ids without special tokens but with think tags; None where these are no special tokens.

    None also where a response template takes the thinking out.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    tags = {i for i, token in added.items() if i in special and token.content in ("<think>", "</think>")}
    if not tags or _parses_responses(tokenizer):
        return None
    others = special - tags
    return lambda ids: tokenizer.decode([i for i in ids if i not in others], skip_special_tokens=False)


def _parses_responses(tokenizer: Any) -> bool:
    return any(getattr(tokenizer, f"response_{kind}", None) for kind in ("template", "schema"))


def template_opens_thinking(tokenizer: Any, **settings: Any) -> bool:
    """Whether the tokenizer's chat template opens a think block that the completion has to close.

    False without a chat template, and where a response template takes the thinking out before a completion is rewarded.
    `settings` are the template's own, as `chat_template_kwargs` gives them.
    """
    if _parses_responses(tokenizer) or not tokenizer.chat_template:
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
