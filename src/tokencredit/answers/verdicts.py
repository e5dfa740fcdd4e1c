"""Whether a completion is right: the verdict on its answer, the check of a gold, and the reward for TRL."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from tokencredit.answers.equality import NAMED, clean, judge, number, parts, with_unit
from tokencredit.answers.extraction import extract, opens_thinking
from tokencredit.answers.worker import WORKER, UnjudgedError

__all__ = ["Verdict", "accuracy_reward", "accuracy_reward_for", "check_gold", "verify"]

LENGTH_LIMIT = 10_000  # characters of an answer that are still worth parsing


@dataclass(frozen=True)
class Verdict:
    """What `verify` found: the verdict, the answer that was judged (None without one), and why."""

    verdict: Literal["right", "wrong", "no-answer"]
    answer: str | None
    reason: str


def verify(completion: str, gold: str, *, marker: str | None = None, thinking: bool = False) -> Verdict:
    """Judges a completion's answer (see `extract`) against the gold.

    Right at once where the texts agree or both are plain numbers of equal value; a unit on one side only is
    ignored, two different units are wrong; lists without brackets and sets have no order, and their lengths
    must agree. There is no tolerance: 0.333 is not 1/3. What cannot be parsed or compared within the limits
    is wrong, with a reason that says so.
    """
    found = extract(completion, marker=marker, thinking=thinking)
    if found is None:
        return Verdict("no-answer", None, "no answer found")
    if found.text.strip() == gold.strip():
        return Verdict("right", found.text, "same text")
    if max(len(found.text), len(gold)) > LENGTH_LIMIT:
        return Verdict("wrong", found.text, f"longer than {LENGTH_LIMIT} characters")
    try:
        same = judge(clean(gold), clean(found.text))
    except UnjudgedError as reason:
        return Verdict("wrong", found.text, str(reason))
    except RecursionError:
        return Verdict("wrong", found.text, "nested too deeply")
    return Verdict("right", found.text, "equal") if same else Verdict("wrong", found.text, f"not {gold[:80]}")


@lru_cache(maxsize=4096)
def check_gold(gold: str) -> str | None:
    """None if answers can be judged against this gold, else the reason why not."""
    if not isinstance(gold, str) or not clean(gold):
        return "the gold is empty"
    if len(gold) > LENGTH_LIMIT:
        return f"the gold is longer than {LENGTH_LIMIT} characters"
    text = clean(gold)
    if number(text) is not None or re.fullmatch(r"[\w\s().,:-]+", text):
        return None
    units = with_unit(text)
    items = parts((units[1] or units[4]) if units else text)[1]
    bodies = [(match[2] if (match := NAMED.fullmatch(item)) else item) for item in items]
    replies = [WORKER.ask([body]) for body in bodies if number(body) is None]
    return next((reply for reply in replies if reply not in ("same", "different")), None)


def accuracy_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """A reward function for TRL: 1.0 for a right answer, 0.0 for a wrong one or none, None without a gold.

    `completions` are strings or chat messages (the last assistant message counts); `answer` is the data set's
    column of golds. Plain prompts that end in an open think block are taken into account; for chat messages see
    `accuracy_reward_for`.
    """
    return _rewards(completions, answer, kwargs.get("prompts"), False)


def accuracy_reward_for(thinking: bool) -> Callable[..., list[float | None]]:
    """`accuracy_reward` for a chat template whose generation prompt opens a think block (`thinking`) or does not.

    Prompts of chat messages do not show what the template puts after them; plain prompts speak for themselves.
    """

    def accuracy_reward(
        completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any
    ) -> list[float | None]:
        return _rewards(completions, answer, kwargs.get("prompts"), thinking)

    return accuracy_reward


def _rewards(
    completions: Sequence[Any], answer: Sequence[Any], prompts: Sequence[Any] | None, by_template: bool
) -> list[float | None]:
    rewards: list[float | None] = []
    prompts = prompts or [None] * len(completions)
    for prompt, completion, gold in zip(prompts, completions, answer, strict=True):
        if gold is None or check_gold(str(gold)) is not None:
            rewards.append(None)
            continue
        thinking = opens_thinking(prompt) if isinstance(prompt, str) else by_template
        rewards.append(float(verify(_content(completion), str(gold), thinking=thinking).verdict == "right"))
    return rewards


def _content(completion: Any) -> str:
    """The text of a completion: itself, or the content of its last assistant message ("" without one)."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") or "" for message in completion if message.get("role") == "assistant"]
    last = said[-1] if said else ""
    return last if isinstance(last, str) else "".join(part.get("text", "") for part in last)
