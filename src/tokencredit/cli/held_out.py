"""Measures policies on held-out problems, at temperature 1 and greedily: a process that `tokencredit compare` starts.

    python -m tokencredit.cli.held_out --task query --problems 2560 --out held_out.jsonl 30=run/checkpoint-30 60=run
    python -m tokencredit.cli.held_out --data test.jsonl --problems 2560 --out held_out.jsonl 60=run -- TRAIN-FLAGS

One JSON line a policy and way of answering is appended: step, way, accuracy, problems. What is there is not repeated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokencredit.cli import USAGE, OneLineParser
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError

TASK_BATCH, DATA_BATCH = 1024, 64


@dataclass(frozen=True)
class HeldOut:
    """Problems of a data set in the form that `tasks.accuracy` asks.

    Attributes:
        rows: with "prompt", as text that is ready for the tokenizer, and "answer", which `judge` understands.
        preset: holds "max_completion_length".
        judge: a reward function of completions and answers.
    """

    rows: list[dict[str, Any]]
    preset: dict[str, Any]
    judge: Any

    def problems(self, n: int, seed: int) -> list[dict[str, Any]]:
        """`n` rows: the problems one after the other, again from the first when all have been asked."""
        return [self.rows[index % len(self.rows)] for index in range(n)]

    def reward(self, texts: Sequence[str], answers: Sequence[Any]) -> list[float]:
        columns = {name: [answer.get(name) for answer in answers] for name in ("answer", "tolerance")}
        judged = self.judge(prompts=[answer["prompt"] for answer in answers], completions=texts, **columns)
        return [float(value or 0.0) for value in judged]


def load_rows(path: str) -> list[dict[str, Any]]:
    """The held-out problems of a file; see `load_problems` for what is refused."""
    from tokencredit.tasks.data import load_problems

    return load_problems(path, "test")


def held_out_data(path: str, train_flags: Sequence[str], tokenizer: Any) -> HeldOut:
    """The file's problems, asked and judged as training would."""
    from tokencredit.cli.arguments import parse_arguments
    from tokencredit.cli.training_data import bound_rewards, build_dataset

    arguments = parse_arguments(list(train_flags))
    dataset = build_dataset(load_rows(path), arguments, tokenizer)
    settings: Any = arguments.training.chat_template_kwargs or {}
    rows = []
    for row in dataset:
        row = cast(dict[str, Any], row)
        rows.append({"prompt": _as_text(row["prompt"], tokenizer, settings), "answer": row})
    return HeldOut(
        rows,
        {"max_completion_length": arguments.training.max_completion_length},
        bound_rewards(["accuracy"], arguments, tokenizer)[0],
    )


def _as_text(prompt: Any, tokenizer: Any, settings: dict[str, Any]) -> str:
    """The prompt's text, without the special token that the tokenizer puts before it anyway."""
    if isinstance(prompt, str):
        return prompt
    text = str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **settings))
    begins = tokenizer.bos_token if tokenizer("")["input_ids"] else None
    return text.removeprefix(begins) if begins else text


def load_policy(path: str, base: str | None) -> tuple[Any, Any]:
    """The model and tokenizer of a folder or name; an adapter is merged into `base`, where that is given."""
    from tokencredit.cli.models import load_model

    folder = Path(path)
    if base is None or not (folder / "adapter_config.json").is_file() or (folder / "config.json").exists():
        return load_model(path)
    from peft import PeftModel

    model, tokenizer = load_model(base)
    return PeftModel.from_pretrained(model, path).merge_and_unload(), tokenizer


def measure(arguments: Any, train_flags: Sequence[str]) -> None:
    """Measures every policy named, those and the ways of answering that the file already has left out."""
    import torch

    from tokencredit.compare.runs import TEMPERATURES, measured
    from tokencredit.report.files import append_line
    from tokencredit.tasks import accuracy, get_task

    has_accelerator = torch.accelerator.is_available() and not arguments.use_cpu
    device = torch.accelerator.current_accelerator() if has_accelerator else torch.device("cpu")
    done = measured(Path(arguments.out))
    task: Any = get_task(arguments.task) if arguments.task else None
    for named in arguments.policies:
        step, _, path = named.partition("=")
        model, tokenizer = load_policy(path, arguments.base)
        model.to(device)
        task = task or held_out_data(arguments.data, train_flags, tokenizer)
        for way, temperature in TEMPERATURES.items():
            if (int(step), way) in done:
                continue
            count = arguments.problems
            if isinstance(task, HeldOut):
                # The same sample of every problem; a second greedy answer would be the first again.
                count = len(task.rows) * (math.ceil(count / len(task.rows)) if temperature else 1)
            share = accuracy(
                model,
                tokenizer,
                task,
                n=count,
                temperature=temperature,
                batch_size=DATA_BATCH if arguments.data else TASK_BATCH,
            )
            line = {"step": int(step), "way": way, "accuracy": share, "problems": count}
            append_line(arguments.out, line)


def build_parser() -> OneLineParser:
    """The parser of the flags before a lone --."""
    parser = OneLineParser(prog="python -m tokencredit.cli.held_out", allow_abbrev=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--task", help="built-in task whose held-out problems are asked")
    source.add_argument("--data", help="file of problems with answers")
    parser.add_argument(
        "--problems", type=int, required=True, help="completions a policy and way of answering"
    )
    parser.add_argument("--out", required=True, help="file to append to")
    parser.add_argument("--base", help="model that adapters belong to")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("policies", nargs="+", metavar="STEP=POLICY")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    cut = argv.index("--") if "--" in argv else len(argv)
    prepare_libraries()
    try:
        arguments = build_parser().parse_args(argv[:cut])
        measure(arguments, argv[cut + 1 :])
    except UsageError as error:
        print(f"held-out accuracy: {error}", file=sys.stderr)
        return USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
