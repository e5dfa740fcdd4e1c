"""What a comparison shows, in words, and no more than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokencredit.compare.statistics import Interval

LEVEL = 0.05
FEW_PAIRS = 5
"""Fewer pairs than this show nothing: two differences that happen to be alike pass any t test."""

HIGHER, LOWER, NOT_SHOWN = "higher", "lower", "no difference shown"


def in_words(mean: float, p: float | None, interval: Interval | None, pairs: int) -> str:
    """Whether a difference is shown: only by enough pairs, and where t test and bootstrap interval agree that it is.

    Args:
        mean: of the differences.
        p: of the paired t test, adjusted for the number of arms; None where it cannot be made.
        interval: of the stratified bootstrap; None where a warm start has one seed, and the t test decides alone.
        pairs: how many differences there are.
    """
    if pairs < FEW_PAIRS:
        return f"{NOT_SHOWN} (too few pairs)"
    if p is None or p >= LEVEL or (interval is not None and interval[0] <= 0 <= interval[1]):
        return NOT_SHOWN
    return HIGHER if mean > 0 else LOWER


def sentence(arm: str, baseline: str, label: str, found: Mapping[str, Any]) -> str:
    """One difference of `compare.json`, said in full."""
    head = f"{arm} against {baseline}, {label}: {points(found['mean'])}"
    if found["t_interval"] is None:
        return f"{head}; {found['words']}."
    low, high = found["t_interval"]
    body = f"{head} (95% {points(low)} to {points(high)}, {found['pairs']} pairs); {found['words']}"
    if found["words"] == NOT_SHOWN and found["detectable"] is not None:
        body += (
            f"; a true difference of {found['detectable'] * 100:.1f} would show in 4 of 5 such comparisons"
        )
    return body + "."


def statements(
    compared: Mapping[str, Any],
    warm_starts: int,
    calls: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
) -> dict[str, list[str]]:
    """The "verdict" and the "reservations" of a comparison.

    Args:
        compared: what `summary.compare` returns.
        warm_starts: how many there are.
        calls: what each call on this folder asked for, in order.
        missing: names of runs that are not finished.
    """
    arms, verdict, pairs = compared["arms"], [], {}
    for name in compared["headline"]:
        measure = compared["measures"][name]
        for arm, found in measure["differences"].items():
            verdict.append(sentence(arm, arms[0], measure["label"], found))
            pairs[arm] = found["pairs"]
    for arm in arms[1:]:
        if arm not in pairs:
            verdict.append(f"{arm} against {arms[0]}: no pair of runs is finished.")
    seeds_asked = [call["seeds"] for call in calls]
    return {
        "verdict": verdict,
        "reservations": reservations(pairs, warm_starts, seeds_asked, missing, compared["noise"]),
    }


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{share * 100:+.1f}".replace("-", "−")


def reservations(
    pairs: Mapping[str, int],
    warm_starts: int,
    seeds_asked: Sequence[int],
    missing: Sequence[str],
    noise: float | None,
) -> list[str]:
    """What the reader has to keep in mind.

    Args:
        pairs: of each arm with the first.
        warm_starts: how many there are.
        seeds_asked: the numbers of seeds that the calls on this folder asked for, in their order.
        missing: names of runs that are not finished.
        noise: largest standard error of a held-out accuracy, None without held-out problems.
    """
    notes = []
    if missing:
        few = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        notes.append(f"{len(missing)} run(s) are not finished and left out, with their pairs: {few}.")
    if pairs and min(pairs.values()) < FEW_PAIRS:
        notes.append(
            f"Fewer than {FEW_PAIRS} pairs show nothing, whatever the intervals say: the t test rests on differences "
            "being normal, which so few cannot tell, and the bootstrap interval is too narrow."
        )
    if warm_starts == 1:
        notes.append("One warm start: nothing is said about others.")
    else:
        notes.append(
            f"The bootstrap speaks of new seeds from these {warm_starts} warm starts, not of new warm starts."
        )
    if len(set(seeds_asked)) > 1:
        asked = ", then ".join(map(str, dict.fromkeys(seeds_asked)))
        notes.append(
            f"Seeds were added after a first look ({asked}): whoever stops when a difference shows sees too many."
        )
    if noise is None:
        notes.append("No held-out problems: the figures are rewards on the problems that were trained on.")
    elif noise > 0.01:
        notes.append(f"Held-out accuracy has a standard error of up to {noise * 100:.1f} points of its own.")
    return notes
