"""What attribution costs and how near its approximations come, against the published form.

    python benchmarks/attribution.py [--model smollm2|tiny|DIR] [--reasoning 64 128] [--repeats 3] [--pad ID]
        [--parts memory oar_p sparse oar_g agreement] [--json FILE]

Everything runs in turn in this one process, on one thread; processor seconds are medians, peak memory is the growth of
the process's resident set. The published forms stand in `published.py`.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import published
from common import QUESTIONS, alternate, load, machine, peak_memory, sample, show
from tokencredit import Options, Rollouts, token_importance
from tokencredit.credit import TokenCredit, assign, get_strategy
from tokencredit.fidelity import agreement
from tokencredit.policy import Policy

APPROXIMATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sparse oar-p, m = 4": ("oar-p", {"outcome": "last", "m": 4}),
    "sparse oar-p, m = 8": ("oar-p", {"outcome": "last", "m": 8}),
    "sparse oar-p, m = 16": ("oar-p", {"outcome": "last", "m": 16}),
    "oar-g, 1 draw": ("oar-g", {"outcome": "last", "gradient": "noise"}),
    "oar-g, 4 draws": ("oar-g", {"outcome": "last", "gradient": "noise", "draws": 4}),
    "oar-g, 1 label": ("oar-g", {"outcome": "last", "gradient": "labels", "labels": 1}),
    "oar-g, 8 labels": ("oar-g", {"outcome": "last", "gradient": "labels", "labels": 8}),
    "position": ("position", {}),
    "entropy": ("entropy", {}),
    "random": ("random", {}),
}
FIDELITY_TOKENS = 256
GROUP = [64, 96, 128, 160]
FLAT = (64, 512)
BUDGETS = (None, 2048)


def exact(model: Any, rollouts: Rollouts, pad: int, m: int = 0) -> Tensor:
    return token_importance(model, rollouts, "oar-p", outcome="last", pad_token_id=pad, m=m)


def perturbation_cost(model: Any, tokenizer: Any, pad: int, reasoning: int, repeats: int) -> dict[str, Any]:
    """Exact OAR-P against the published form and against plain prefill of as many tokens."""
    rollouts = sample(model, tokenizer, [reasoning])
    read = int(rollouts.answer_mask[0].long().argmax())
    length = rollouts.prompt_ids.shape[1] + read
    computed = length + sum(read - token for token in range(reasoning))
    sequence = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)[:, :length]
    copies = max(1, 1024 // length)
    batch = sequence.repeat(copies, 1)

    def prefill() -> None:
        with torch.no_grad():
            model(batch, use_cache=False, logits_to_keep=1)

    def plain() -> Tensor:
        return published.oar_p(model, rollouts, pad)

    reference, found = plain(), exact(model, rollouts, pad)[0].double()
    ours = peak_memory(lambda: exact(model, rollouts, pad))
    theirs = peak_memory(plain)
    seconds = alternate(
        {"prefill": prefill, "exact": lambda: exact(model, rollouts, pad), "published": plain}, repeats
    )
    true = published.oar_p(copy.deepcopy(model).double(), rollouts, pad, at_once=8)
    speed = copies * length / seconds["prefill"]
    return {
        "R": reasoning,
        "tokens_before": rollouts.prompt_ids.shape[1],
        "prefill_tokens_per_s": speed,
        "of_prefill_speed": computed / seconds["exact"] / speed,
        "exact_s": seconds["exact"],
        "published_s": seconds["published"],
        "times_faster": seconds["published"] / seconds["exact"],
        "exact_MB": ours,
        "published_MB": theirs,
        "memory_ratio": theirs / ours if ours and theirs else None,
        "largest_difference": _largest(found - reference, true),
        "ours_from_float64": _largest(found - true, true),
        "published_from_float64": _largest(reference - true, true),
    }


def _largest(difference: Tensor, of: Tensor) -> float:
    return float(difference.abs().max() / of.max())


def sparse_cost(model: Any, tokenizer: Any, pad: int, reasoning: int, repeats: int) -> dict[str, Any]:
    """Sparse OAR-P against exact OAR-P."""
    rollouts = sample(model, tokenizer, [reasoning])
    runs = {f"m = {m}": lambda m=m: exact(model, rollouts, pad, m) for m in (0, 4, 8, 16)}
    seconds = alternate(runs, repeats)
    share = {
        f"{name}_of_exact": value / seconds["m = 0"] for name, value in seconds.items() if name != "m = 0"
    }
    return {"R": reasoning, "exact_s": seconds["m = 0"], **share}


def gradient_cost(model: Any, tokenizer: Any, repeats: int) -> dict[str, Any]:
    """OAR-G of a group of completions against the published form under the same noise."""
    rollouts = sample(model, tokenizer, GROUP)
    labels = {"gradient": "labels", "labels_from": "sample", "labels": 1}
    runs = {
        "published": lambda: published.oar_g(model, rollouts),
        "noise": lambda: token_importance(model, rollouts, "oar-g", gradient="noise"),
        "1 label": lambda: token_importance(model, rollouts, "oar-g", **labels),
        "8 labels": lambda: token_importance(model, rollouts, "oar-g", gradient="labels"),
    }
    reference, found = runs["published"](), runs["noise"]()
    worst = ((found - reference).abs().amax(1) / reference.amax(1)).max()
    memory = {name: peak_memory(runs[name]) for name in ("published", "noise")}
    seconds = alternate(runs, repeats)
    return {
        "R": " ".join(map(str, GROUP)),
        "published_s": seconds["published"],
        **{
            f"{n}_of_published": value / seconds["published"]
            for n, value in seconds.items()
            if n != "published"
        },
        "published_MB": memory["published"],
        "noise_MB": memory["noise"],
        "largest_difference": float(worst),
    }


def memory_growth(model: Any, tokenizer: Any, pad: int, budget: int | None) -> dict[str, Any]:
    """Peak memory of exact OAR-P at few and at many reasoning tokens, with one token budget."""
    policy = Policy(model, budget)
    options = Options(outcome="last", pad_token_id=pad)
    peaks = {}
    for reasoning in (FLAT[0], *FLAT):  # the first as a trial: what is allocated once a model doesn't count
        rollouts = sample(model, tokenizer, [reasoning])
        peaks[reasoning] = peak_memory(
            lambda rollouts=rollouts: assign(get_strategy("oar-p"), policy, rollouts, options)
        )
    few, many = peaks.values()
    return (
        {"budget": str(budget or "found")}
        | {f"R = {n}, MB": value for n, value in peaks.items()}
        | {"growth": many / few if few and many else None}
    )


def near(model: Any, tokenizer: Any, pad: int, reasoning: int) -> list[dict[str, Any]]:
    """How near each approximation and baseline comes to exact OAR-P, before and after the gate: means over prompts."""
    count = 1 if tokenizer is None else len(QUESTIONS)
    found: dict[str, list[dict[str, float | None]]] = {name: [] for name in APPROXIMATIONS}
    policy = Policy(model)

    def credit(rollouts: Rollouts, strategy: str, options: dict[str, Any]) -> TokenCredit:
        return assign(get_strategy(strategy), policy, rollouts, Options(**options, pad_token_id=pad))

    for question in range(count):
        rollouts = sample(model, tokenizer, [reasoning], question)
        truth = credit(rollouts, "oar-p", {"outcome": "last"})
        for name, (strategy, options) in APPROXIMATIONS.items():
            found[name] += agreement(credit(rollouts, strategy, options), truth, rollouts.reasoning_mask)
    return [
        {"approximation": name} | {key: sum(row[key] or 0.0 for row in rows) / count for key in rows[0]}
        for name, rows in found.items()
    ]


PARTS: dict[str, tuple[str, Callable[[Any, Any, argparse.Namespace], list[dict[str, Any]]]]] = {
    "memory": (  # first, as what later parts leave in the heap would count
        "peak memory of exact OAR-P",
        lambda model, tokenizer, a: [memory_growth(model, tokenizer, a.pad, budget) for budget in BUDGETS],
    ),
    "oar_p": (
        "exact OAR-P, one completion",
        lambda model, tokenizer, a: [
            perturbation_cost(model, tokenizer, a.pad, r, a.repeats) for r in a.reasoning
        ],
    ),
    "sparse": (
        "time of sparse OAR-P, one completion",
        lambda model, tokenizer, a: [sparse_cost(model, tokenizer, a.pad, FIDELITY_TOKENS, a.repeats)],
    ),
    "oar_g": (
        "OAR-G, a group of completions of one prompt",
        lambda model, tokenizer, a: [gradient_cost(model, tokenizer, a.repeats)],
    ),
    "agreement": (
        f"agreement with exact OAR-P at R = {FIDELITY_TOKENS}",
        lambda model, tokenizer, a: near(model, tokenizer, a.pad, FIDELITY_TOKENS),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What attribution costs, against the published form.")
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny (random) or a model's directory")
    parser.add_argument(
        "--reasoning", type=int, nargs="+", default=[64, 128], help="numbers of reasoning tokens"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, medians are reported")
    parser.add_argument(
        "--pad", type=int, help="token that OAR-P puts in (default: the model's own pad token)"
    )
    parser.add_argument(
        "--parts", nargs="+", default=list(PARTS), choices=list(PARTS), help="what to measure (default: all)"
    )
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    model, tokenizer = load(arguments.model)
    if arguments.pad is None:
        arguments.pad = 0 if tokenizer is None else tokenizer.pad_token_id
    figures: dict[str, Any] = machine(model, arguments.model) | {"pad": arguments.pad}
    console.print(figures)
    for part in arguments.parts:
        title, measure = PARTS[part]
        figures[part] = measure(model, tokenizer, arguments)
        show(console, figures[part], title)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
