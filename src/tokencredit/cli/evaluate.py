"""`tokencredit evaluate`: how many problems of the known tasks a model solves."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.cli import OneLineParser, package_version
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError
from tokencredit.evaluation.tasks import BENCHMARKS, Problem, fingerprint, get_benchmark, load
from tokencredit.tasks import TASKS

if TYPE_CHECKING:
    from tokencredit.evaluation.decoding import Decoding
    from tokencredit.evaluation.harness import Backend
    from tokencredit.evaluation.run import Asked

MOST_TOKENS = 2048
BATCH, BATCH_ELSEWHERE = 8, 256
_SECRETS = ("auth_token", "header", "api_key")
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_BLOCKS, _BLOCK = 64, 1 << 16


def run(argv: list[str]) -> int:
    """Write and judge what is still missing, print the tables, write evaluation.json."""
    arguments = _parse(argv)
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError("evaluate needs lm-evaluation-harness: pip install 'tokencredit[eval]'")
    # the harness's bars, for ours says more, and its warnings of what is checked here
    os.environ.setdefault("TQDM_DISABLE", "1")
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    prepare_libraries()
    from tokencredit.evaluation import run as evaluation
    from tokencredit.evaluation import store

    against = _other(arguments)
    problems, left_out = _load(arguments)
    backend = _backend(arguments)
    chat = _chat(arguments, backend)
    asked, decoding = _ask(arguments, problems, backend, chat)
    folder = Path(arguments.out or f"runs/evaluate-{Path(arguments.model).name.removesuffix('.gguf')}")
    settings = _settings(arguments, problems, decoding, chat)
    store.claim(folder, settings, overwrite=arguments.overwrite)
    with _Progress(sum(map(len, problems.values())) * decoding.samples) as progress:
        samples = evaluation.write_samples(
            folder, asked, backend, decoding, arguments.batch_size, progress.tell
        )
    results = evaluation.results(samples, arguments.k, arguments.seed)
    for task, found in results.items():
        found["left_out"] = len(left_out[task])
    content: dict[str, Any] = {"settings": settings, "versions": _versions(), "results": results}
    if against is not None:
        content["against"] = arguments.against
        differences = evaluation.compare(samples, against, arguments.seed)
        content["differences"] = {task: asdict(found) for task, found in differences.items()}
    path = store.write_summary(folder, content)
    _show(results, differences if against is not None else {}, arguments.against)
    print(f"numbers: {path}, samples: {folder / store.SAMPLES}", file=sys.stderr)
    return 0


_FLAGS: dict[str, dict[str, Any]] = {
    "model": {
        "help": f"a built-in policy ({', '.join(TASKS)}), a folder, a .gguf file or a hub id; for a server, its name",
        "required": True,
    },
    "tasks": {
        "help": f"tasks, with commas between them: {', '.join(BENCHMARKS)}",
        "required": True,
        "metavar": "NAMES",
    },
    "data_dir": {
        "help": "folder with the tasks' .jsonl files (default: the hub's data sets)",
        "metavar": "DIR",
    },
    "limit": {"help": "only the first so many problems of each task", "type": int, "metavar": "N"},
    "samples": {"help": "completions a problem (default: 1)", "type": int, "default": 1, "metavar": "N"},
    "k": {
        "help": "k of pass@k and maj@k, with commas between them (default: 1, 2, 4, ... and --samples)",
        "metavar": "NUMBERS",
    },
    "temperature": {
        "help": "of the sampling; 0 takes the likeliest token each time (default: 0; 1 with several samples)",
        "type": float,
        "metavar": "T",
    },
    "top_p": {
        "help": "share of probability to sample from (default: 1)",
        "type": float,
        "default": 1.0,
        "metavar": "P",
    },
    "seed": {"help": "of the sampling and the bootstrap (default: 0)", "type": int, "default": 0},
    "max_new_tokens": {
        "help": f"tokens at which a completion is cut off (default: {MOST_TOKENS}, or as many as fit)",
        "type": int,
        "metavar": "N",
    },
    "prompt_template": {
        "help": "the prompt, with {problem} in it (default: the problem, and to put the answer in a box)",
        "metavar": "TEXT",
    },
    "chat": {
        "help": "use the chat template (default: if there is one)",
        "action": argparse.BooleanOptionalAction,
        "default": None,
    },
    "backend": {
        "help": "hf (in this process), vllm, local-completions, local-chat-completions, or another of the harness "
        "(default: hf)",
        "default": "hf",
        "metavar": "NAME",
    },
    "backend_args": {
        "help": "settings of the back-end, such as base_url=http://localhost:8000/v1/completions,num_concurrent=8",
        "default": "",
        "metavar": "NAME=VALUE,...",
    },
    "batch_size": {
        "help": "completions that are written and kept at once (default: 8; with other back-ends than hf 256)",
        "type": int,
        "metavar": "N",
    },
    "dtype": {
        "help": "of the weights (default: as stored, on a CPU float32)",
        "choices": ("float32", "float64", "bfloat16", "float16"),
    },
    "revision": {"help": "of a hub model (default: main)"},
    "out": {"help": "folder to write to and to go on from (default: runs/evaluate-MODEL)", "metavar": "DIR"},
    "overwrite": {"help": "replace the evaluation that the folder holds", "action": "store_true"},
    "against": {"help": "folder of another evaluation to compare with, problem by problem", "metavar": "DIR"},
}


def build_parser() -> OneLineParser:
    """The parser of all flags, each spelled with underscores or hyphens."""
    parser = OneLineParser(
        prog="tokencredit evaluate",
        description="Measure how many problems a model solves, with lm-evaluation-harness and our verifier.",
        allow_abbrev=False,
    )
    parser.add_flags(_FLAGS)
    return parser


def _parse(argv: list[str]) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    arguments.tasks = list(dict.fromkeys(name.strip() for name in arguments.tasks.split(",") if name.strip()))
    if not arguments.tasks:
        raise UsageError(f"--tasks names no task; there are {', '.join(BENCHMARKS)}")
    for name in arguments.tasks:
        get_benchmark(name)
    for name in ("limit", "samples", "max_new_tokens", "batch_size"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, not {value}")
    if arguments.batch_size is None:
        arguments.batch_size = BATCH if arguments.backend == "hf" else BATCH_ELSEWHERE
    if arguments.temperature is None:
        arguments.temperature = 0.0 if arguments.samples == 1 else 1.0
    if not 0 <= arguments.temperature < float("inf"):
        raise UsageError(f"--temperature must be 0 or more, not {arguments.temperature}")
    if arguments.temperature == 0 and arguments.samples > 1:
        raise UsageError(
            f"--samples {arguments.samples} needs --temperature above 0: at 0 all samples are the same"
        )
    if arguments.seed < 0:
        raise UsageError(f"--seed must be 0 or more, not {arguments.seed}")
    if not 0 < arguments.top_p <= 1:
        raise UsageError(f"--top_p must be above 0 and at most 1, not {arguments.top_p}")
    if arguments.prompt_template is not None and "{problem}" not in arguments.prompt_template:
        raise UsageError("--prompt_template has no {problem} in it")
    if arguments.backend != "hf" and (arguments.dtype or arguments.revision):
        raise UsageError("--dtype and --revision are for --backend hf; others take them in --backend_args")
    arguments.k = _ks(arguments.k, arguments.samples)
    arguments.backend_args = _pairs(arguments.backend_args)
    return arguments


def _ks(text: str | None, samples: int) -> list[int]:
    if text is None:
        return sorted({samples, *(2**power for power in range(samples.bit_length()))})
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--k {text}: give numbers with commas between them, such as 1,8") from error
    if ks[0] < 1 or ks[-1] > samples:
        wrong = ks[0] if ks[0] < 1 else ks[-1]
        raise UsageError(f"--k {wrong}: pass@k needs 1 <= k <= samples, and --samples is {samples}")
    return ks


def _pairs(text: str) -> dict[str, Any]:
    """NAME=VALUE pairs; a value is a number, true, false or null where it reads as one, else text."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise UsageError(f"--backend_args {part}: give NAME=VALUE pairs with commas between them")
        try:
            found[name] = json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:
            found[name] = value
    if found.get("trust_remote_code"):
        raise UsageError("--backend_args trust_remote_code: code that comes with a model is not run here")
    return found


def _load(arguments: argparse.Namespace) -> tuple[dict[str, list[Problem]], dict[str, list[str]]]:
    folder = Path(arguments.data_dir) if arguments.data_dir else None
    problems, left_out = {}, {}
    for name in arguments.tasks:
        problems[name], left_out[name] = load(name, folder, arguments.limit)
        if left_out[name]:
            print(
                f"{name}: left out {len(left_out[name])} rows whose gold cannot be judged, such as "
                f"{left_out[name][0]}",
                file=sys.stderr,
            )
    return problems, left_out


def _other(arguments: argparse.Namespace) -> list[dict[str, Any]] | None:
    """The samples of the evaluation to compare with, None without one; refuses one without a task in common."""
    if arguments.against is None:
        return None
    from tokencredit.evaluation import store

    folder = Path(arguments.against)
    there = store.summary(folder)["settings"].get("tasks", {})
    if not set(there) & set(arguments.tasks):
        raise UsageError(
            f"--against {folder} has other tasks: {', '.join(there)}, not {', '.join(arguments.tasks)}"
        )
    return store.read_samples(folder)


def _backend(arguments: argparse.Namespace) -> Backend:
    from tokencredit.evaluation.harness import local_backend, named_backend

    if arguments.backend != "hf":
        return named_backend(arguments.backend, arguments.model, arguments.batch_size, arguments.backend_args)
    import torch

    from tokencredit.cli.models import load_model

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    dtype = arguments.dtype or ("auto" if accelerator else "float32")
    model, tokenizer = load_model(arguments.model, revision=arguments.revision, dtype=dtype)
    model.to(accelerator or torch.device("cpu")).eval()  # type: ignore[arg-type]
    return local_backend(model, tokenizer, arguments.batch_size, **arguments.backend_args)


def _chat(arguments: argparse.Namespace, backend: Backend) -> bool:
    """Whether prompts are chat messages: as asked; else if the model has a template, or is behind a chat interface."""
    if "chat-completions" in backend.name:
        if arguments.chat is False:
            raise UsageError(f"the back-end {backend.name} takes chat messages alone; leave out --no-chat")
        return True
    if arguments.chat and not backend.has_chat_template:
        raise UsageError("--chat was given, but the back-end's tokenizer has no chat template")
    return backend.has_chat_template if arguments.chat is None else arguments.chat


def _ask(
    arguments: argparse.Namespace, problems: Mapping[str, Sequence[Problem]], backend: Backend, chat: bool
) -> tuple[dict[str, list[Asked]], Decoding]:
    """The prompts of all problems, and the decoding with as many tokens as were asked for or fit.

    Raises:
        UsageError: the model cannot read the longest prompt and write that much.
    """
    from tokencredit.cli.training_data import INSTRUCTION
    from tokencredit.evaluation.decoding import Decoding
    from tokencredit.evaluation.harness import build_task, prompts
    from tokencredit.evaluation.run import Asked

    template = arguments.prompt_template or INSTRUCTION
    chosen = {name: getattr(arguments, name) for name in ("samples", "temperature", "top_p", "seed")}
    asked = {}
    for name, each in problems.items():
        texts = prompts(build_task(name, each, template, Decoding(**chosen)), backend, chat)
        asked[name] = [Asked(problem, prompt) for problem, prompt in zip(each, texts, strict=True)]
    room = backend.room([each.prompt for task in asked.values() for each in task])
    most = arguments.max_new_tokens or min(MOST_TOKENS, room or MOST_TOKENS)
    if room is not None and most > room:
        raise UsageError(
            f"the model has room for {max(room, 0)} tokens after the longest prompt, not for --max_new_tokens {most}"
        )
    return asked, Decoding(**chosen, max_new_tokens=most)


def _settings(
    arguments: argparse.Namespace, problems: Mapping[str, Sequence[Problem]], decoding: Decoding, chat: bool
) -> dict[str, Any]:
    """All that the samples depend on."""
    from tokencredit.cli.training_data import INSTRUCTION

    given = arguments.backend_args.items()
    return {
        "model": arguments.model,
        "revision": arguments.revision,
        "weights": _weights(arguments.model),
        "dtype": arguments.dtype,
        "backend": arguments.backend,
        "backend_args": {name: value for name, value in given if name not in _SECRETS},
        "batch_size": arguments.batch_size,
        "tasks": {name: fingerprint(each) for name, each in problems.items()},
        "limit": arguments.limit,
        **asdict(decoding),
        "prompt_template": arguments.prompt_template or INSTRUCTION,
        "chat": chat,
    }


def _weights(model: str) -> str | None:
    """A short name of a local model's weights, from blocks spread over its files; None for a name."""
    path = Path(model).expanduser()
    files = [path] if path.is_file() else sorted(path.glob("*")) if path.is_dir() else []
    digest, found = hashlib.sha256(), False
    for file in files:
        if file.suffix in _WEIGHTS:
            found = True
            size = file.stat().st_size
            digest.update(f"{file.name}/{size}".encode())
            with open(file, "rb") as content:
                for block in range(_BLOCKS):
                    content.seek(size * block // _BLOCKS)
                    digest.update(content.read(_BLOCK))
    return digest.hexdigest()[:16] if found else None


class _Progress:
    """A bar on stderr: samples, the share of right ones, and the task at work."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        # not a terminal: a line now and then instead of a moving bar
        seconds = 0.5 if sys.stderr.isatty() else 30.0
        self.bar = tqdm(total=total, unit="sample", mininterval=seconds, disable=False, file=sys.stderr)
        self.counts: dict[str, list[int]] = {}

    def tell(self, samples: Sequence[Mapping[str, Any]]) -> None:
        for sample in samples:
            count = self.counts.setdefault(sample["task"], [0, 0])
            count[0] += sample["verdict"] == "right"
            count[1] += 1
            self.bar.set_description(sample["task"], refresh=False)
            self.bar.set_postfix(right=f"{count[0]}/{count[1]}", refresh=False)
        self.bar.update(len(samples))

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.close()
        if kind is not None and self.bar.n:
            print("what is finished is kept: the same command goes on from there", file=sys.stderr)


def _versions() -> dict[str, str]:
    found = {"tokencredit": package_version()}
    for name in ("lm_eval", "transformers", "torch", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _show(results: Mapping[str, Any], differences: Mapping[str, Any], other: str | None) -> None:
    from rich.console import Console

    from tokencredit.evaluation.tables import differences_table, in_words, results_table

    console = Console()
    console.print(results_table(results))
    if differences:
        console.print(f"against {other}, difference in points:", markup=False, highlight=False)
        console.print(differences_table(differences))
        for task, found in differences.items():
            console.print(in_words(task, found), markup=False, highlight=False)
