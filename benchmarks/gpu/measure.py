"""What only GPUs show: attribution in bfloat16, a training step with and without vLLM, FSDP2 over all of them.

    python benchmarks/gpu/measure.py --model FOLDER|HUB-ID [--parts attribution step vllm fsdp] [--json FILE]
    python benchmarks/gpu/measure.py --device cpu      # a tiny random model: whether the script runs, no figures

Completions are random ids for attribution, and sampled ones for training, where a probe asks each for its answer. Each
training run is a process of its own, so that none finds the memory of another; its first step doesn't count. Peaks are
the allocator's: over what was held before for attribution, in all for training, vLLM's share included.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import ASK, QUESTIONS, peak_memory, show, side_by_side
from tokencredit import Options
from tokencredit.credit import assign, get_strategy
from tokencredit.policy import Policy
from tokencredit.tasks import get_task
from tokencredit.tasks.policy import build_model, build_tokenizer
from tokencredit.trl import OARConfig, OARTrainer

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "oar-g, 1 sampled label": ("oar-g", {"gradient": "labels", "labels": 1, "labels_from": "sample"}),
    "oar-g, 8 top labels": ("oar-g", {"gradient": "labels"}),
    "oar-g, noise": ("oar-g", {"gradient": "noise"}),
    "oar-p, m = 8": ("oar-p", {"m": 8}),
    "oar-p, exact": ("oar-p", {}),
}
CREDITS = ("uniform", "oar-g", "oar-p")
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}
STEPS = 3
FIGURES = ("ranks", "shared_by", "step_seconds", "credit_seconds", "peak_gb", "failed")


def machine(device: str, model: str) -> dict[str, Any]:
    """What this runs on."""
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if device == "cuda" else []
    )
    versions = {
        name: importlib.metadata.version(name) if importlib.util.find_spec(name) else "not installed"
        for name in ("torch", "transformers", "trl", "accelerate", "vllm", "tokencredit")
    }
    return {"device": device, "gpus": gpus, "cuda": torch.version.cuda, "model": model, **versions}


def timed(device: str, function: Callable[[], Any], repeats: int) -> tuple[float, float | None]:
    """Median seconds, and gigabytes at the peak over what was held before."""

    def settled() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    function()  # compiles, and finds out what the model allows
    seconds = []
    for _ in range(repeats):
        started = settled()
        function()
        seconds.append(settled() - started)
    if device != "cuda":
        peak = peak_memory(function)
        return statistics.median(seconds), None if peak is None else peak / 1e3
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    settled()
    return statistics.median(seconds), (torch.cuda.max_memory_allocated() - held) / 1e9


def attribution(arguments: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """Seconds, reasoning tokens a second and memory of each form, beside a forward pass over the same rows."""
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(arguments.device).eval()
    torch.manual_seed(0)
    vocabulary, count = model.config.vocab_size, arguments.reasoning
    prompt = torch.randint(0, vocabulary, (1, arguments.prompt))
    completions = [torch.randint(0, vocabulary, (count + 8,)) for _ in range(arguments.rows)]
    rollouts = side_by_side(prompt, completions, [count] * arguments.rows, [8] * arguments.rows)
    rollouts = rollouts.to(torch.device(arguments.device))
    policy = Policy(model, arguments.token_budget)
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)

    def forward() -> None:
        with torch.no_grad():
            for row in ids:
                model(row[None], logits_to_keep=1)

    runs: dict[str, Callable[[], Any]] = {"one forward pass a row": forward}
    for name, (strategy, options) in FORMS.items():
        chosen, settings = get_strategy(strategy), Options(**options)
        runs[name] = lambda chosen=chosen, settings=settings: assign(chosen, policy, rollouts, settings)
    measured = {name: timed(arguments.device, run, arguments.repeats) for name, run in runs.items()}
    names = ("attribution", "seconds", "reasoning_tokens_per_s", "peak_gb")
    rows = [(name, s, arguments.rows * count / s, peak) for name, (s, peak) in measured.items()]
    return [dict(zip(names, row, strict=True)) for row in rows]


def train(settings: dict[str, Any]) -> None:
    """A few training steps in a process of their own; rank 0 writes what the last ones took."""
    tiny, folder = settings["tiny"], settings["folder"]
    tokenizer = build_tokenizer() if tiny else AutoTokenizer.from_pretrained(folder)
    chat = [{"prompt": [{"role": "user", "content": question + ASK}]} for question in QUESTIONS]
    prompts = get_task("query").problems(8, 0) if tiny else chat
    cuda = settings["device"] == "cuda"
    config = OARConfig(
        output_dir=settings["directory"],
        per_device_train_batch_size=settings["rows"],
        num_generations=settings["rows"],
        max_completion_length=settings["tokens"],
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not cuda,
        bf16=cuda,
        disable_tqdm=True,
        gradient_checkpointing=not tiny,
        credit=settings["credit"],
        credit_probe_always=True,
        credit_records=0,
        **({"credit_probe": "ans"} if tiny else {}),
        **({"use_vllm": True, "vllm_mode": "colocate"} if settings["vllm"] else {}),
    )
    trainer = OARTrainer(
        settings["folder"],
        odd_ids,
        config,
        Dataset.from_list(prompts * 8),
        None,
        tokenizer,
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "step_time" in entry][1:]
    peak = torch.tensor(
        torch.cuda.max_memory_allocated() / 1e9 if cuda else 0.0, device=trainer.accelerator.device
    )
    result = {
        "ranks": trainer.accelerator.num_processes,
        "shared_by": trainer.accelerator.distributed_type.value,
        "step_seconds": statistics.median(entry["step_time"] for entry in logged),
        "credit_seconds": statistics.median(entry["credit/seconds"] for entry in logged),
        "peak_gb": float(trainer.accelerator.gather(peak[None]).max()) if cuda else None,
    }
    if trainer.accelerator.is_main_process:
        Path(settings["out"]).write_text(json.dumps(result), encoding="utf-8")


def odd_ids(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within every group."""
    return [sum(token % 2 for token in ids) / max(1, len(ids)) for ids in completion_ids]


def launched(arguments: argparse.Namespace, folder: str, ranks: int, **settings: Any) -> dict[str, Any]:
    """What `train` wrote, run on that many ranks; on more than one, as accelerate is told to by FSDP2's settings."""
    with tempfile.TemporaryDirectory() as directory:
        given = {name: getattr(arguments, name) for name in ("device", "rows", "tokens")}
        given |= {"folder": folder, "tiny": arguments.model == "tiny", "vllm": False, **settings}
        given |= {"directory": directory, "out": f"{directory}/result.json"}
        script = [str(Path(__file__).resolve()), json.dumps(given)]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        command = [sys.executable, *(launcher if ranks > 1 else []), *script]
        environment = {**os.environ, **(FSDP if ranks > 1 else {})}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        found: dict[str, Any] = dict.fromkeys(FIGURES)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return {**found, "failed": reason[0]}
        return {**found, **json.loads(Path(given["out"]).read_text(encoding="utf-8"))}


def steps(arguments: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """A training step: on one device, with vLLM, and over all devices."""
    ranks = torch.cuda.device_count() if arguments.device == "cuda" else 2
    runs: list[tuple[str, int, dict[str, Any]]] = []
    if "step" in arguments.parts:
        runs += [("one device", 1, {"credit": credit}) for credit in CREDITS]
    if "vllm" in arguments.parts and importlib.util.find_spec("vllm") is not None:
        runs += [("one device, vLLM", 1, {"credit": credit, "vllm": True}) for credit in CREDITS]
    if "fsdp" in arguments.parts and ranks > 1:
        runs += [("all devices", ranks, {"credit": credit}) for credit in CREDITS]
    return [
        {"step": name, "credit": settings["credit"], **launched(arguments, folder, count, **settings)}
        for name, count, settings in runs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What only GPUs show of token credit.")
    parser.add_argument("run", nargs="?", help=argparse.SUPPRESS)  # the settings of one training run
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--model", default="tiny", help="a folder or a hub id; tiny: random weights")
    parser.add_argument("--parts", nargs="+", default=["attribution", "step", "vllm", "fsdp"])
    parser.add_argument("--rows", type=int, default=8, help="completions, of one prompt")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt, for attribution")
    parser.add_argument("--reasoning", type=int, default=64, help="tokens of each reasoning, for attribution")
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of a completion, in training")
    parser.add_argument("--token-budget", type=int, help="tokens in one pass of attribution")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, medians are reported")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    if arguments.run:
        return train(json.loads(arguments.run))
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here; --device cpu shows whether the script runs")
    console, folder = Console(width=140), arguments.model
    figures: dict[str, Any] = {"machine": machine(arguments.device, arguments.model)}
    console.print(figures["machine"])
    with tempfile.TemporaryDirectory() as directory:
        if arguments.model == "tiny":
            folder = directory
            build_model(0).save_pretrained(folder)
            build_tokenizer().save_pretrained(folder)
        if "attribution" in arguments.parts:
            figures["attribution"] = attribution(arguments, folder)
            show(console, figures["attribution"], "attribution")
        figures["steps"] = steps(arguments, folder)
    if figures["steps"]:
        show(console, figures["steps"], "training steps")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
