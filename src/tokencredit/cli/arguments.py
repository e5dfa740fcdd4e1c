"""The arguments of `tokencredit train`: flag over YAML over task preset over TRL's default."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from trl import DatasetMixtureConfig, ModelConfig, TrlParser
from trl.scripts.grpo import GRPOScriptArguments

from tokencredit.cli import OneLineParser
from tokencredit.cli.reporting import check_reports
from tokencredit.configs import CONFIGS, find_config
from tokencredit.errors import UsageError
from tokencredit.tasks import TASKS, get_task
from tokencredit.trl import OARConfig


@dataclass
class RunArguments(GRPOScriptArguments):
    """What `tokencredit train` adds to the flags of `trl grpo`."""

    task: str | None = field(
        default=None, metadata={"help": f"Train on a built-in task: {', '.join(TASKS)}."}
    )
    dataset_name: str | None = field(
        default=None,
        metadata={
            "aliases": ["--dataset"],
            "help": "Train on problems with answers: a .jsonl, .json, .csv or .parquet file, a folder, or a hub id.",
        },
    )
    dataset_train_split: str = field(
        default="train", metadata={"aliases": ["--split"], "help": "Split of a folder or hub data set."}
    )
    prompt_template: str | None = field(
        default=None,
        metadata={
            "help": "The prompt, with {problem} in it. Default: the problem, and to put the answer in a box."
        },
    )
    skip_unjudged: bool = field(
        default=False, metadata={"help": "Leave out rows whose gold no answer can be compared with."}
    )
    no_answer: str = field(
        default="zero",
        metadata={
            "choices": ["zero", "none"],
            "help": "What the reward `accuracy` gives for no answer: zero, or none (left out of its group).",
        },
    )
    eval_problems: int = field(
        default=512,
        metadata={"help": "Held-out problems of a task to measure accuracy on, before and after; 0: none."},
    )
    resume: bool = field(
        default=False, metadata={"help": "Continue the run in output_dir from its last checkpoint."}
    )
    overwrite: bool = field(
        default=False, metadata={"help": "Replace the run that output_dir already holds."}
    )


OWN_FLAGS = (
    "--config",
    *(f"--{f.name}" for f in dataclasses.fields(RunArguments) if f.name in RunArguments.__annotations__),
)


@dataclass(frozen=True)
class TrainArguments:
    """Everything `tokencredit train` was told."""

    run: RunArguments
    training: OARConfig
    model: ModelConfig
    mixture: DatasetMixtureConfig

    @property
    def source(self) -> str:
        """The task or data set, as the user named it."""
        return self.run.task or self.run.dataset_name or "the data set mixture"


class TrainParser(OneLineParser, TrlParser):
    """TrlParser whose complaints are `UsageError`s."""


def build_parser() -> TrainParser:
    """The parser of all flags: ours, those of `trl grpo`, and the credit options."""
    return TrainParser(
        [RunArguments, OARConfig, ModelConfig, DatasetMixtureConfig],  # type: ignore[list-item]
        prog="tokencredit train",
        usage="tokencredit train (--task NAME | --dataset SOURCE) [--config FILE.yaml] [flags]",
        description=(
            "Train with GRPO and token-level credit. A flag wins over the file, the file over the task's preset, the "
            f"preset over TRL's default. Beyond the flags of `trl grpo` there are {', '.join(OWN_FLAGS)}, and those "
            "that begin with --credit."
        ),
        allow_abbrev=False,
    )


def parse_arguments(argv: list[str]) -> TrainArguments:
    """The arguments of a training run, checked as far as can be done without loading anything.

    Raises:
        UsageError: a flag or key that does not exist, a value out of range, a batch that does not divide by the number
            of generations, or neither or both of task and data set.
    """
    parser = build_parser()

    def lesser(first: argparse.Namespace) -> dict[str, Any]:
        _check_source(first)
        return {**_machine_defaults(first), **_source_defaults(first)}

    chosen, flags = read_settings(argv, parser, lesser)
    _check_ranges(chosen)
    _check_batch(chosen)
    try:
        run, training, model, mixture = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
    except UsageError:
        raise
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise UsageError(str(error)) from error
    check_reports(training.report_to)
    return TrainArguments(run, training, model, mixture)


def read_settings(
    argv: list[str], parser: TrainParser, lesser: Callable[[argparse.Namespace], dict[str, Any]]
) -> tuple[argparse.Namespace, list[str]]:
    """Flag over YAML file over lesser defaults over the parser's own.

    Args:
        argv: flags, with --config among them or not.
        parser: what `build_parser` gave; its defaults are changed.
        lesser: what flags and file say -> the lesser defaults.

    Returns:
        all settings, and the flags without --config.

    Raises:
        UsageError: a flag or key that does not exist, or a file that cannot be read.
    """
    config_path, flags = _take_config(argv)
    settings = _read_config(config_path, parser) if config_path else {}
    parser.set_defaults_with_config(**settings)
    first, unknown = parser.parse_known_args(flags)
    if unknown:
        raise UsageError(_unknown(unknown[0], parser))
    # The first pass told which task and machine the lesser defaults are for; the file goes over them once more.
    parser.set_defaults_with_config(**{**lesser(first), **settings})
    return parser.parse_args(flags), flags


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    parser = OneLineParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    known, rest = parser.parse_known_args(argv)
    return known.config, rest


def _read_config(path: str, parser: TrainParser) -> dict[str, Any]:
    """The YAML file, ours of that name where there is none, as {destination: value}; its `env` goes into the
    environment."""
    try:
        settings = yaml.safe_load(find_config(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no config file {path}; ready ones are {', '.join(CONFIGS)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"the config file {path} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise UsageError(f"the config file {path} must be a mapping of settings, such as `credit: oar-g`")
    environment = settings.pop("env", {})
    if not isinstance(environment, dict):
        raise UsageError(f"`env` in the config file {path} must be a mapping of variables")
    os.environ.update({str(name): str(value) for name, value in environment.items()})
    found = {}
    for key, value in settings.items():
        action = parser._option_string_actions.get(f"--{key}")
        if action is None or action.dest == "help" or isinstance(action, argparse._StoreFalseAction):
            raise UsageError(f"config file {path}: {_unknown(f'--{key}', parser)}")
        takes_list = action.nargs == "+" and value is not None and not isinstance(value, list)
        found[action.dest] = [value] if takes_list else value
    return found


def _unknown(flag: str, parser: TrainParser) -> str:
    known = list(parser._option_string_actions)
    near = difflib.get_close_matches(flag.split("=")[0], known, n=1)
    return f"unknown setting {flag}" + (
        f"; did you mean {near[0]}?" if near else "; see tokencredit train --help"
    )


def _check_source(chosen: argparse.Namespace) -> None:
    has_data = bool(chosen.dataset_name or chosen.datasets)
    if chosen.task and has_data:
        raise UsageError("give --task or --dataset, not both")
    if not chosen.task and not has_data:
        raise UsageError(
            f"nothing to train on: give --task ({', '.join(TASKS)}) or --dataset FILE.jsonl|HUB-ID"
        )
    if chosen.task:
        get_task(chosen.task)
    if has_data and not chosen.model_name_or_path:
        raise UsageError("--dataset needs a model: give --model_name_or_path DIRECTORY, FILE.gguf or HUB-ID")
    if chosen.dataset_streaming or chosen.streaming:
        raise UsageError(
            "streaming is not supported: the data set is read whole, so that bad rows are found first"
        )
    if chosen.prompt_template is not None and "{problem}" not in chosen.prompt_template:
        raise UsageError("--prompt_template must have {problem} in it")
    if chosen.eval_problems < 0:
        raise UsageError(f"--eval_problems must not be negative, but is {chosen.eval_problems}")
    if chosen.resume and chosen.overwrite:
        raise UsageError("give --resume or --overwrite, not both")


def _machine_defaults(chosen: argparse.Namespace) -> dict[str, Any]:
    # Libraries that are told to be quiet would do without the progress bar; and a short run is to log something too.
    defaults: dict[str, Any] = {"disable_tqdm": False, "logging_steps": 1}
    if chosen.use_cpu or not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "bf16": False}
    return defaults


def _source_defaults(chosen: argparse.Namespace) -> dict[str, Any]:
    """The task's preset, and where the run goes."""
    name = chosen.task or Path(str(chosen.dataset_name or "mixture").rstrip("/")).stem
    defaults: dict[str, Any] = {"output_dir": str(Path("runs", f"{name}-{chosen.credit}"))}
    if chosen.task:
        task = get_task(chosen.task)
        # bf16 would drown the small policy's credit in rounding.
        defaults |= {"bf16": False, "credit_marker": task.marker, "credit_probe": task.marker}
        defaults |= {"credit_verifier": "task", **task.preset}
    return defaults


# Least values of settings that TRL itself takes without a look and fails on later, or makes something else of.
_LEAST = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_generations": 2,
    "num_iterations": 1,
    "max_completion_length": 1,
    "learning_rate": 0,
    "epsilon": 0,
    "beta": 0,
}


def _check_ranges(chosen: argparse.Namespace) -> None:
    for name, least in _LEAST.items():
        value = getattr(chosen, name)
        if value is not None and not value >= least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    if not chosen.temperature > 0:
        raise UsageError(
            f"temperature must be above 0, not {chosen.temperature}: a group needs different samples"
        )
    if chosen.max_steps != -1 and chosen.max_steps < 1:
        raise UsageError(
            f"max_steps must be at least 1, or -1 to go by num_train_epochs, not {chosen.max_steps}"
        )
    if chosen.save_strategy == "steps" and not chosen.save_steps > 0:
        raise UsageError(
            f"save_steps must be above 0, not {chosen.save_steps}; --save_strategy no saves nothing"
        )


def _check_batch(chosen: argparse.Namespace) -> None:
    """The completions of one generation must be whole groups; said in the names that users set."""
    if chosen.generation_batch_size is not None or not chosen.num_generations:
        return
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    batches = chosen.steps_per_generation or chosen.gradient_accumulation_steps
    which = "steps_per_generation" if chosen.steps_per_generation else "gradient_accumulation_steps"
    count = chosen.per_device_train_batch_size * batches * processes
    if count % chosen.num_generations:
        raise UsageError(
            f"per_device_train_batch_size {chosen.per_device_train_batch_size} x {which} {batches} x {processes} "
            f"process(es) = {count} completions, which is not a multiple of num_generations "
            f"{chosen.num_generations}; change one of them"
        )


def settings_of(arguments: TrainArguments) -> dict[str, Any]:
    """All settings as plain values, by where they belong."""
    return {
        "run": dataclasses.asdict(arguments.run),
        "training": arguments.training.to_dict(),
        "model": dataclasses.asdict(arguments.model),
        "mixture": dataclasses.asdict(arguments.mixture),
    }
