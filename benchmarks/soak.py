"""Whether a training run of hours grows: memory, processes, files, threads and hooks, sampled all along.

    python benchmarks/soak.py --minutes 120 [--credit oar-g] [--warm-up 10] [--every 10] [--json FILE]

It trains the built-in task `query` at a learning rate that hardly moves the policy, so that groups keep their
variance. Rewards come from the real answer workers: each answer is put into a formula that only algebra can compare,
a new one at every step, and every 50th step one that takes a worker beyond its limits. Records and checkpoints
are written as in any run.

The rule: of the samples after the warm-up, compare the first and the last quarter. Memory, this process's and its
children's resident sets together, is flat if its median grew by at most 2%, or 20 MB. Children, open files, threads and
hooks are flat if their medians did not grow. In the end nothing may be left: no child, and no more open files than
there were before training. The exit code is 0 if all is flat, else 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

from tokencredit.answers import extract, verify
from tokencredit.answers.worker import POOL
from tokencredit.tasks import get_task
from tokencredit.trl import OARConfig, OARTrainer

SHOWN = 25  # rows of the table
COUNTS = ("children", "files", "threads", "hooks")
GROWTH, LEAST_MB = 0.02, 20.0
SLOW = "\\int \\frac{\\sin(x^x)\\log(x)}{e^{x^3}+\\tan x+%d}dx"


@dataclass(frozen=True)
class Sample:
    """The process at the end of a step. Megabytes are resident ones."""

    minutes: float
    step: int
    megabytes: float
    megabytes_of_children: float
    children: int
    files: int
    threads: int
    hooks: int

    @property
    def memory(self) -> float:
        return self.megabytes + self.megabytes_of_children


def sample(minutes: float, step: int, model: torch.nn.Module) -> Sample:
    process = psutil.Process()
    of_children = []
    for child in process.children(recursive=True):
        try:
            of_children.append(child.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:  # a worker that is being replaced
            continue
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    return Sample(
        minutes,
        step,
        process.memory_info().rss / 1e6,
        sum(of_children),
        len(of_children),
        process.num_fds(),
        process.num_threads(),
        hooks,
    )


class Sampler(TrainerCallback):
    """Takes a sample every few seconds, and stops the training when its time is over."""

    def __init__(self, minutes: float, every: float) -> None:
        self.minutes, self.every = minutes, every
        self.started = time.monotonic()
        self.samples: list[Sample] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        passed = (time.monotonic() - self.started) / 60
        if not self.samples or passed - self.samples[-1].minutes >= self.every / 60:
            self.samples.append(sample(passed, state.global_step, model))
        control.should_training_stop = passed >= self.minutes


def judged_by_workers(completions: list[str], answer: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """Whether answers are right, asked so that only algebra can tell."""
    step = trainer_state.global_step
    if step % 50 == 49:
        verify(f"\\boxed{{{SLOW % step}}}", "x^{2}+y")
    rewards = []
    for completion, gold in zip(completions, answer, strict=True):
        found = extract(completion, marker="ans")
        text = "none" if found is None else f"\\boxed{{y+{step}x+{found.text}}}"
        rewards.append(float(verify(text, f"{step}x+{gold}+y").verdict == "right"))
    return rewards


def trainer_of(arguments: argparse.Namespace, directory: str) -> OARTrainer:
    task = get_task("query")
    model, tokenizer = task.load_policy()
    settings = {
        **task.preset,
        "learning_rate": 1e-6,
        "per_device_train_batch_size": arguments.rows,
        "max_steps": 10**7,
        "logging_steps": 20,  # transformers keeps all that was ever logged in memory, some kilobytes a time
        "save_steps": 200,
        "save_total_limit": 2,
    }
    config = OARConfig(
        **settings,
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        credit=arguments.credit,
        credit_marker=task.marker,
    )
    data = Dataset.from_list(task.problems(8192, 0))
    return OARTrainer(model, judged_by_workers, config, data, processing_class=tokenizer)


def verdict(samples: list[Sample], warm_up: float) -> dict[str, Any]:
    """Whether each figure is flat by the rule above, with its medians in the first and the last quarter."""
    after = [each for each in samples if each.minutes >= warm_up]
    quarter = max(1, len(after) // 4)
    found: dict[str, Any] = {}
    for name in ("memory", *COUNTS):
        first, last = (
            statistics.median(getattr(each, name) for each in part)
            for part in (after[:quarter], after[-quarter:])
        )
        allowed = max(GROWTH * first, LEAST_MB) if name == "memory" else 0
        found[name] = {"first": first, "last": last, "flat": last - first <= allowed}
    return found


def show(console: Console, samples: list[Sample]) -> None:
    table = Table(title="at the end of a step")
    names = [field.name for field in dataclasses.fields(Sample)]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    stride = max(1, -(-len(samples) // SHOWN))
    for each in samples[::stride]:
        table.add_row(*(f"{getattr(each, name):.4g}" for name in names))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether a training run of hours grows.")
    parser.add_argument("--minutes", type=float, default=120.0, help="how long to train")
    parser.add_argument("--warm-up", type=float, default=10.0, help="minutes that don't count")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--credit", default="oar-g", help="the strategy")
    parser.add_argument("--rows", type=int, default=64, help="completions a step")
    parser.add_argument("--json", type=Path, help="also write all samples there")
    arguments = parser.parse_args()
    if not 0 <= arguments.warm_up < arguments.minutes:
        parser.error("--warm-up must be shorter than --minutes")
    torch.set_num_threads(1)
    console, sampler = Console(width=120), Sampler(arguments.minutes, arguments.every)
    files = psutil.Process().num_fds()
    with tempfile.TemporaryDirectory() as directory:
        trainer = trainer_of(arguments, directory)
        trainer.add_callback(sampler)
        trainer.train()
    POOL.stop()
    left = sample(arguments.minutes, trainer.state.global_step, trainer.model)
    show(console, sampler.samples)
    found = verdict(sampler.samples, arguments.warm_up)
    found["left"] = {"children": left.children, "files": left.files - files, "hooks": left.hooks}
    found["left"]["flat"] = left.children == 0 and left.files <= files
    for name in ("memory", *COUNTS):
        figures = found[name]
        word = "flat" if figures["flat"] else "GREW"
        console.print(f"{name}: {word}, {figures['first']:.5g} -> {figures['last']:.5g}")
    console.print(f"left in the end: {found['left']}")
    if arguments.json:
        rows = [dataclasses.asdict(each) for each in sampler.samples]
        arguments.json.write_text(
            json.dumps({"found": found, "samples": rows}, indent=2) + "\n", encoding="utf-8"
        )
    return 0 if all(each["flat"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
