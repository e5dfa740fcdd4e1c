"""Commands in processes of their own, with a fault put in; what a run left, without its clocks."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM

from processes import PRELOADED
from tokencredit.tasks import get_task
from tokencredit.tasks.policy import build_tokenizer
from tokencredit.trl import OARConfig, OARTrainer

STEPS = ("--max_steps", 6, "--save_steps", 2)
Fault = Callable[..., None]


def in_child(folder: Path, arguments: tuple[Any, ...], fault: Fault | None = None, *given: Any) -> int:
    """The exit code of `tokencredit ARGUMENTS`, run in the folder after fault(*given); negative for a signal.

    What it prints is added to log.txt there.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = multiprocessing.get_context("forkserver")
    words = [str(argument) for argument in arguments]
    process = context.Process(target=_run, args=(folder, words, fault, given))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(folder: Path, words: list[str], fault: Fault | None, given: tuple[Any, ...]) -> None:
    import torch

    from tokencredit.cli import main

    torch.set_num_threads(1)
    os.chdir(folder)
    sys.stdout = sys.stderr = open("log.txt", "a", buffering=1)  # noqa: SIM115 (it takes a traceback too)
    if fault is not None:
        fault(*given)
    sys.exit(main(words))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def last_line(folder: Path) -> str:
    return (folder / "log.txt").read_text().strip().splitlines()[-1]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def left(run: Path) -> dict[str, Any]:
    """The trained weights, byte by byte, and all metrics and records but for times."""
    metrics = [
        {name: value for name, value in line.items() if not _is_clock(name)}
        for line in lines(run / "metrics.jsonl")
    ]
    (weights,) = (path.read_bytes() for path in run.glob("*model.safetensors"))
    return {"weights": weights, "metrics": metrics, "records": lines(run / "records.jsonl")}


def _is_clock(name: str) -> bool:
    return any(part in name for part in ("time", "second", "share_of_step"))


def trainer(folder: Path, **settings: object) -> OARTrainer:
    """Of four steps, two on each generation; three prompts are an epoch."""
    options: dict[str, object] = dict(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=40,
        max_steps=4,
        save_steps=1,
        num_iterations=2,
        logging_steps=1,
        lr_scheduler_type="constant",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        credit="oar-g",
        credit_marker="ans",
        seed=7,
    )
    task = get_task("query")
    return OARTrainer(
        model=AutoModelForCausalLM.from_pretrained(task.policy_path()),
        reward_funcs=lambda completions, **kwargs: [float(len(text) % 7) for text in completions],
        args=OARConfig(**{**options, **settings}),  # type: ignore[arg-type]
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in task.problems(3, seed=0)]),
        processing_class=build_tokenizer(),
    )
