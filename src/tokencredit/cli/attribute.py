"""`tokencredit attribute`: which tokens of one completion its answer rests on."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokencredit.cli import OneLineParser
from tokencredit.cli.credit_options import check_target, device, parse_options, split_names
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError
from tokencredit.tasks import HELD_OUT, TASKS


@dataclass(frozen=True)
class Sample:
    """One completion, as ids and as text, and how its answer is marked.

    Attributes:
        prompt_ids, completion_ids: as the model saw and sampled them.
        marker: the task's own answer marker; None for the usual ones.
        probe: what asks for an answer that is missing.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    marker: str | None
    probe: str


def run(argv: list[str]) -> int:
    """Print the heat maps of the strategies that were asked for, and write them where that was asked."""
    arguments = _parse(argv)
    names = _strategy_names(arguments.credit)
    _check_targets([Path(target) for target in (arguments.html, arguments.json) if target])
    prepare_libraries()
    from tokencredit.cli.models import load_model

    options = _options(arguments)
    model, tokenizer = load_model(arguments.model, dtype=arguments.dtype)
    model.to(device()).eval()
    sample = _sample(arguments, model, tokenizer)
    records = attribute(
        model, tokenizer, sample, names, {**options, "seed": arguments.seed}, arguments.probe is not None
    )
    if arguments.model in TASKS:
        from tokencredit.report.records import annotate

        records = list(annotate(records, arguments.model))
    _show(records, arguments.top)
    _write(arguments, records)
    return 0


_FLAGS: dict[str, dict[str, Any]] = {
    "model": {
        "help": f"a built-in policy ({', '.join(TASKS)}), a folder, a .gguf file or a hub id",
        "required": True,
    },
    "prompt": {
        "help": "the prompt, or @FILE to read it; a built-in policy has its own problems",
        "metavar": "TEXT|@FILE",
    },
    "completion": {
        "help": "the completion, or @FILE; without it the model writes one",
        "metavar": "TEXT|@FILE",
    },
    "credit": {
        "help": "strategies, with commas between them (default: oar-g)",
        "default": "oar-g",
        "metavar": "NAMES",
    },
    "outcome": {
        "help": "last, answer_mean, answer_joint or answer_kl (default: the strategy's published one)"
    },
    "counterfactual": {
        "help": "what takes a token's place: pad, alternative or similar (default: pad; path: similar)"
    },
    "option": {
        "help": "a further option of the strategies, such as draws=4; repeatable",
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
    },
    "marker": {
        "help": "the word before the answer (default: boxed, ####, ... are recognised)",
        "metavar": "WORD",
    },
    "probe": {
        "help": "put this text after the reasoning to ask for the answer, whether there is one or not",
        "metavar": "TEXT",
    },
    "max_new_tokens": {
        "help": "most tokens to write (default: 256, or as many as fit)",
        "type": int,
        "metavar": "N",
    },
    "temperature": {
        "help": "of the sampling; 0 takes the likeliest token each time (default: 0)",
        "type": float,
        "default": 0.0,
        "metavar": "T",
    },
    "seed": {"help": "of the sampling, the noise and the problem (default: 0)", "type": int, "default": 0},
    "chat": {
        "help": "use the tokenizer's chat template (default: if it has one)",
        "action": argparse.BooleanOptionalAction,
        "default": None,
    },
    "dtype": {
        "help": "of the weights (default: float32)",
        "default": "float32",
        "choices": ("float32", "float64", "bfloat16", "float16", "auto"),
    },
    "top": {"help": "how many top tokens to list (default: 5)", "type": int, "default": 5, "metavar": "K"},
    "html": {"help": "write the heat maps to this file", "metavar": "FILE"},
    "json": {"help": "write the numbers to this file", "metavar": "FILE"},
}


def build_parser() -> OneLineParser:
    """The parser of all flags, each spelled with underscores or hyphens."""
    parser = OneLineParser(
        prog="tokencredit attribute",
        description="Show which tokens of one completion its answer rests on.",
        allow_abbrev=False,
    )
    parser.add_flags(_FLAGS)
    return parser


def _parse(argv: list[str]) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    if arguments.top < 1 or (arguments.max_new_tokens is not None and arguments.max_new_tokens < 1):
        raise UsageError("--max_new_tokens and --top must be at least 1")
    if not 0 <= arguments.temperature < float("inf"):
        raise UsageError(f"--temperature must be 0 or more, not {arguments.temperature}")
    for name in ("prompt", "completion"):
        setattr(arguments, name, _text(getattr(arguments, name), name))
    if arguments.prompt is None and arguments.model not in TASKS:
        raise UsageError("--prompt is needed, except for a built-in policy, which has problems of its own")
    return arguments


def _text(value: str | None, name: str) -> str | None:
    """The text itself, or that of the file it names."""
    if value is not None and value.startswith("@"):
        try:
            value = Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the {name} from {value[1:]}: {error}") from error
    if value is not None and not value.strip():
        raise UsageError(f"the {name} is empty")
    return value


def _check_targets(paths: list[Path]) -> None:
    for path in paths:
        check_target(path)
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"--html and --json both name {paths[0]}; give each a file of its own")


def _strategy_names(text: str) -> list[str]:
    from tokencredit.credit import get_strategy

    names = split_names(text, "--credit")
    for name in names:
        get_strategy(name)
    return names


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The strategies' options that were given, in their types."""
    named = {"outcome": arguments.outcome, "counterfactual": arguments.counterfactual}
    pairs = [f"{name}={value}" for name, value in named.items() if value]
    return parse_options([*pairs, *arguments.option], "--option")


def _sample(arguments: argparse.Namespace, model: Any, tokenizer: Any) -> Sample:
    from tokencredit.grounding import PROBE

    task = TASKS.get(arguments.model)
    prompt = arguments.prompt
    if prompt is None:
        assert task is not None
        prompt = task.problems(1, HELD_OUT + arguments.seed)[0]["prompt"]
    prompt_ids = _encode_prompt(prompt, tokenizer, arguments.chat)
    if arguments.completion is None:
        completion_ids = _generate(arguments, model, tokenizer, prompt_ids)
    else:
        completion_ids = tokenizer(arguments.completion, add_special_tokens=False)["input_ids"]
    if not prompt_ids or not completion_ids:
        raise UsageError("the prompt or the completion has no tokens, so there is nothing to attribute")
    _check_length(len(prompt_ids) + len(completion_ids), model)
    probe = arguments.probe or (task.marker if task else PROBE)
    return Sample(prompt_ids, completion_ids, arguments.marker or (task.marker if task else None), probe)


def _encode_prompt(prompt: str, tokenizer: Any, chat: bool | None) -> list[int]:
    if chat and not tokenizer.chat_template:
        raise UsageError("--chat was given, but the tokenizer has no chat template")
    if chat is False or not tokenizer.chat_template:
        return list(tokenizer(prompt)["input_ids"])
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _generate(arguments: argparse.Namespace, model: Any, tokenizer: Any, prompt_ids: list[int]) -> list[int]:
    """The ids as sampled, up to and with the end of turn; the global RNG is left as it was."""
    import torch

    room = _positions(model) - len(prompt_ids)
    most = max(1, min(256, room)) if arguments.max_new_tokens is None else arguments.max_new_tokens
    _check_length(len(prompt_ids) + most, model)
    greedy = arguments.temperature == 0
    sampling = (
        {"do_sample": False}
        if greedy
        else {"do_sample": True, "temperature": arguments.temperature, "top_k": 0, "top_p": 1.0}
    )
    ids = torch.tensor([prompt_ids], device=model.device)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(arguments.seed)
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            pad_token_id=tokenizer.pad_token_id,
            **sampling,
        )
    return output[0, len(prompt_ids) :].tolist()


def _positions(model: Any) -> int:
    """How many tokens the model reads; a large number where it does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize


def _check_length(length: int, model: Any) -> None:
    if length > _positions(model):
        raise UsageError(
            f"prompt and completion would take {length} tokens, but the model reads at most {_positions(model)}; "
            "shorten them or lower --max_new_tokens"
        )


def attribute(
    model: Any,
    tokenizer: Any,
    sample: Sample,
    names: list[str],
    options: dict[str, Any],
    probe_always: bool = False,
) -> list[Any]:
    """A `Record` for each strategy: the completion's tokens with their importance and weight.

    The sequence advantage stands at 1, so that a token's advantage is its weight and bonus. Where the completion has
    no answer, the probe asks for one and the rule says "probe".
    """
    import torch

    from tokencredit.credit import Options, assign, get_strategy
    from tokencredit.grounding import ground
    from tokencredit.policy import Policy
    from tokencredit.report.token_record import token_record

    policy = Policy(model)
    prompt_ids = torch.tensor([sample.prompt_ids], device=model.device)
    completion_ids = torch.tensor([sample.completion_ids], device=model.device)
    rollouts, (spans,) = ground(
        tokenizer,
        prompt_ids,
        torch.ones_like(prompt_ids, dtype=torch.bool),
        completion_ids,
        torch.ones_like(completion_ids, dtype=torch.bool),
        marker=sample.marker,
        probe=sample.probe,
        probe_always=probe_always,
        advantages=torch.ones(1, device=model.device),
    )
    logps = policy.token_logps(rollouts)
    probed = probe_always or spans.answer is None
    records = []
    for name in names:
        credit = assign(
            get_strategy(name), policy, rollouts, Options(pad_token_id=tokenizer.pad_token_id, **options)
        )
        record = token_record(tokenizer, rollouts, 0, spans, logps, credit, 0)
        rule = "probe" if probed else record["rule"]
        records.append({**record, "step": 0, "row": 0, "reward": None, "credit": name, "rule": rule})
    return records


def _show(records: list[Any], top: int) -> None:
    from rich.console import Console
    from rich.text import Text

    from tokencredit.report import heat_map, top_table
    from tokencredit.report.text import visible

    console = Console()
    first = records[0]
    if first["answer"] is None:
        said = "no answer found; the probe asks for it"
    else:
        answer = visible("".join(first["tokens"][slice(*first["answer"])]).strip())
        start, end = first["answer"]
        said = f"answer: {answer} (token {start}" + (f" to {end - 1})" if end - start > 1 else ")")
        said += "; the probe asks for it" if first["rule"] == "probe" else f", by {first['rule']}"
    console.print(Text(f"prompt: {textwrap.shorten(visible(first['prompt']), 400)}"))
    console.print(Text(said))
    for record in records:
        console.print()
        console.print(Text(record["credit"], style="bold"))
        console.print(heat_map(record, top))
        start, end = record["reasoning"]
        console.print(
            top_table(record, top) if start < end else Text("nothing before the answer to attribute to")
        )


def _write(arguments: argparse.Namespace, records: list[Any]) -> None:
    from tokencredit.report import render_attribution, write_atomic
    from tokencredit.report.files import plain_json

    if arguments.html:
        path = render_attribution(records, arguments.html, title=f"{arguments.credit} on {arguments.model}")
        print(f"heat maps: {path}", file=sys.stderr)
    if arguments.json:
        content = {"model": arguments.model, "records": plain_json(records)}
        path = write_atomic(arguments.json, json.dumps(content, indent=1, allow_nan=False) + "\n")
        print(f"numbers: {path}", file=sys.stderr)
