"""What the page's script shows of completions: those of different strategies come together, side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokencredit.report.text import are_words, visible, visible_tokens

MOST_COMPLETIONS = 200
MOST_TOKENS = 400_000


@dataclass(frozen=True)
class Shown:
    """A record to show.

    Attributes:
        strategy: the name that its credit goes by.
        record: in the form of `records.Record`.
        source: where the completion comes from, such as a task and a policy, on a page with several; else "".
    """

    strategy: str
    record: Mapping[str, Any]
    source: str = ""


def together(shown: Iterable[Shown]) -> list[list[Shown]]:
    """Return the records of each completion, in the order of their first appearance.

    Records are of one completion if all but the credit is equal: source, step, prompt, tokens, reward and spans. A
    completion that was sampled twice is there twice.
    """
    groups: dict[tuple[Any, ...], list[Shown]] = {}
    times: Counter[tuple[Any, ...]] = Counter()
    for each in shown:
        record = each.record
        spans = (tuple(record["reasoning"]), tuple(record["answer"] or ()))
        what = (each.source, record["step"], record["reward"], spans, record["prompt"], *record["tokens"])
        turn = times[each.strategy, what]
        times[each.strategy, what] += 1
        groups.setdefault((turn, *what), []).append(each)
    return list(groups.values())


def sample_evenly(
    groups: Sequence[list[Shown]], most: int = MOST_COMPLETIONS, most_tokens: int = MOST_TOKENS
) -> list[list[Shown]]:
    """Return at most `most` completions, evenly spaced, about `most_tokens` tokens in all; at least one.

    A completion's tokens count once for each strategy.
    """
    if not groups:
        return []
    tokens = sum(len(each.record["tokens"]) for group in groups for each in group)
    count = max(1, min(most, len(groups), int(most_tokens * len(groups) / max(tokens, 1))))
    return [groups[index * len(groups) // count] for index in range(count)]


def payload(group: Sequence[Shown]) -> dict[str, Any]:
    """Return one completion as the page's script takes it; `raw` has what is not shown as it was written."""
    first = group[0].record
    tokens, probability = first["tokens"], _probability(first)
    shown = visible_tokens(tokens)
    raw = {place: token for place, token in enumerate(tokens) if token != shown[place]}
    prompt = visible(first["prompt"])
    return {
        "source": visible(group[0].source),
        "step": first["step"],
        "prompt": prompt,
        **({"raw_prompt": first["prompt"]} if prompt != first["prompt"] else {}),
        "tokens": shown,
        **({"raw": raw} if raw else {}),
        "words": are_words(tokens),
        "probability": probability,
        "reward": _rounded(first["reward"]),
        "reasoning": first["reasoning"],
        "answer": first["answer"],
        "rule": visible(first["rule"]),
        "views": [_view(each, probability) for each in group],
        **_truth(first),
    }


def _view(shown: Shown, probability: list[float | None]) -> dict[str, Any]:
    record = shown.record
    own = _probability(record)
    return {
        "strategy": visible(shown.strategy),
        "row": record["row"],
        "advantage": _rounded(record["advantage"]),
        **{name: _rounded_all(record[name]) for name in ("importance", "weights", "advantages")},
        **({"probability": own} if own != probability else {}),
    }


def _truth(record: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: record[name] for name in ("roles", "on_path", "right") if name in record}
    if "roles" in known:
        known["roles"] = [visible(role) for role in known["roles"]]
    return known


def _probability(record: Mapping[str, Any]) -> list[float | None]:
    return _rounded_all(record["probability"] or [None] * len(record["tokens"]))


def _rounded(value: float | None) -> float | None:
    """Four digits are what the page can show, and make the file half as long."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _rounded_all(values: Sequence[float | None]) -> list[float | None]:
    return [_rounded(value) for value in values]
