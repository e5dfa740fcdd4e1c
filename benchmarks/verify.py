"""How fast answers are verified, and how often right: `tokencredit.answers` against math-verify called one by one.

    python benchmarks/verify.py                       10,000 pairs of the kinds that models are graded on
    python benchmarks/verify.py --golds rows.jsonl    golds from the column `answer`, in place of made ones

Half of the completions give the gold in another spelling, half give another gold's value; so the true verdict is known.
The pairs are cut into parts; on each part both run, in alternating order, and the ratio of their times is taken. Both
start without anything remembered from other parts. Prints the median ratio with its range, and counts of agreement.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tokencredit.answers import verify_all

Pair = tuple[str, str, bool]
"""A completion, its gold, and whether it is right."""


def made_gold(draw: random.Random) -> str:
    """A gold of the shapes that occur in school and competition mathematics, mostly numbers."""
    a, b, c = (draw.randint(2, 99) for _ in range(3))
    shapes: list[tuple[int, Callable[[], str]]] = [
        (50, lambda: str(draw.randint(-50, 20_000))),
        (8, lambda: f"{a}.{b}"),
        (14, lambda: f"\\frac{{{a}}}{{{a + b}}}"),
        (6, lambda: f"{a}\\sqrt{{{b}}}"),
        (5, lambda: f"({a}, {-b})"),
        (4, lambda: f"{a}, {a + b}, {a + b + c}"),
        (3, lambda: f"\\left(-\\infty, {a}\\right]"),
        (5, lambda: f"{a}x^2 + {b}x - {c}"),
        (3, lambda: f"{a} + {b}i"),
        (2, lambda: f"\\frac{{{a}\\pi}}{{{b}}}"),
    ]
    weights = [weight for weight, _ in shapes]
    return draw.choices([shape for _, shape in shapes], weights)[0]()


def respelled(gold: str, draw: random.Random) -> str:
    """The same answer as a model might write it."""
    if gold.lstrip("-").isdigit():
        number = int(gold)
        return draw.choice([gold, gold, f"{number:,}", f"{gold}.0", f"x = {gold}", f"{gold} \\text{{ cm}}"])
    changed = gold.replace("\\frac", draw.choice(["\\frac", "\\dfrac", "\\tfrac"]))
    if draw.random() < 0.5:
        changed = changed.replace(" ", "") if not changed.count("\\text") else changed
    return changed


def make_pairs(count: int, golds: list[str] | None, draw: random.Random) -> list[Pair]:
    golds = golds or [made_gold(draw) for _ in range(count)]
    pairs = []
    for _ in range(count):
        gold, other = draw.choice(golds), draw.choice(golds)
        right = draw.random() < 0.5 or other == gold
        answer = respelled(gold if right else other, draw)
        text = "Adding up what is given, and checking each case once more, we find"
        pairs.append((f"{text} $\\boxed{{{answer}}}$.", gold, right))
    return pairs


def ours(pairs: list[Pair]) -> list[bool]:
    return [verdict.verdict == "right" for verdict in verify_all([pair[:2] for pair in pairs])]


def theirs(pairs: list[Pair]) -> list[bool]:
    from math_verify import parse, verify

    return [bool(verify(parse(f"${gold}$"), parse(completion))) for completion, gold, _ in pairs]


def timed(judge: Callable[[list[Pair]], list[bool]], pairs: list[Pair]) -> tuple[float, list[bool]]:
    began = time.perf_counter()
    verdicts = judge(pairs)
    return time.perf_counter() - began, verdicts


def measure(pairs: list[Pair], parts: int) -> None:
    warm = make_pairs(20, None, random.Random(99))
    ours(warm)  # starts the workers
    theirs(warm)
    size = len(pairs) // parts
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    counts: Counter[tuple[bool, bool, bool]] = Counter()
    differing = []
    for part in range(parts):
        chosen = pairs[part * size : (part + 1) * size]
        found = {}
        for name, judge in [("ours", ours), ("theirs", theirs)][:: 1 if part % 2 else -1]:
            duration, found[name] = timed(judge, chosen)
            seconds[name].append(duration)
        print(f"part {part + 1} of {parts}", file=sys.stderr, end="\r")
        for pair, mine, other in zip(chosen, found["ours"], found["theirs"], strict=True):
            counts[pair[2], mine, other] += 1
            if mine != other:
                differing.append((pair, mine))
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    total = sum(counts.values())
    print(f"{total} pairs, {parts} parts; seconds: tokencredit {sum(seconds['ours']):.1f}, ", end="")
    print(f"math-verify one by one {sum(seconds['theirs']):.1f}")
    print(
        f"math-verify takes {statistics.median(ratios):.1f} times as long ({min(ratios):.1f} to {max(ratios):.1f})"
    )
    print(f"they agree on {sum(n for (_, a, b), n in counts.items() if a == b)} of {total}")
    for name, index in (("tokencredit", 1), ("math-verify", 2)):
        paid = sum(n for key, n in counts.items() if key[index] and not key[0])
        missed = sum(n for key, n in counts.items() if not key[index] and key[0])
        print(f"{name}: {paid} wrong answers called right, {missed} right answers called wrong")
    for (completion, gold, right), mine in differing[:10]:
        box = completion[completion.index("\\boxed") :]
        print(f"  {box} against {gold}: truly {right}, tokencredit {mine}, math-verify {not mine}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--golds", type=Path, nargs="*", default=[], help="JSON lines with a column `answer`")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    lines = [
        line for path in arguments.golds for line in path.read_text(encoding="utf-8").split("\n") if line
    ]
    golds = [str(json.loads(line)["answer"]) for line in lines]
    measure(make_pairs(arguments.pairs, golds, draw), arguments.parts)


if __name__ == "__main__":
    main()
