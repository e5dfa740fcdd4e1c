"""`tokencredit train`: GRPO with token-level credit, on a built-in task or on anybody's model and problems."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokencredit.cli import INTERRUPTED
from tokencredit.cli.libraries import prepare_libraries
from tokencredit.errors import UsageError


def run(argv: list[str], *, resumable: bool = True) -> int:
    """Train as the arguments say; returns 0, or 130 where a signal stopped the training.

    Without `resumable` a stopped run says nothing of --resume.
    """
    prepare_libraries()
    from tokencredit.cli.arguments import build_parser, parse_arguments

    if "-h" in argv or "--help" in argv:
        build_parser().print_help()
        return 0
    return train(parse_arguments(argv), resumable=resumable)


def train(arguments: Any, *, resumable: bool = True) -> int:
    """Check everything, train, and leave the run directory as `docs/cli.md` describes it."""
    from tokencredit.cli.callbacks import MetricsFile, SafeStops
    from tokencredit.cli.run_directory import check_directory, clear_run, save_model, write_info
    from tokencredit.report.records import METRICS

    run, config = arguments.run, arguments.training
    if run.task and config.use_cpu:
        _use_one_thread()
    directory = Path(config.output_dir)
    info = _info(arguments)
    if Path(info["model"]).resolve() == directory.resolve():
        # The weights may still be mapped from the very file that would be written.
        raise UsageError(
            f"output_dir {directory} is the folder of the model itself; give another --output_dir"
        )
    checkpoint = _given_checkpoint(config) or check_directory(
        directory,
        resume=run.resume,
        overwrite=run.overwrite,
        identity=info,
        max_steps=config.max_steps,
        tell=_on_main(config),
    )
    trainer = _build_trainer(arguments, directory)
    stops = SafeStops(trainer)
    trainer.add_callback(MetricsFile(directory / METRICS))
    trainer.add_callback(stops)
    accuracy = _measure(arguments, trainer, "before")
    writes = trainer.is_world_process_zero()
    trainer.accelerator.wait_for_everyone()  # no rank is to find what another has just written
    if writes:
        if checkpoint is None:
            clear_run(directory)
        write_info(directory, info)
    with _failures(trainer, directory, resumes=checkpoint is not None):
        with stops:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if not stops.stopped:
            save_model(trainer, directory)
    if not stops.stopped:
        accuracy |= _measure(arguments, trainer, "after")
    if writes:
        generate_every = config.steps_per_generation * config.num_iterations
        _conclude(
            directory, info, accuracy, config.gradient_accumulation_steps / generate_every, stops.stopped
        )
    if stops.stopped and resumable and writes:
        print(f"stopped; --resume continues from the last checkpoint in {directory}", file=sys.stderr)
    return INTERRUPTED if stops.stopped else 0


@contextmanager
def _failures(trainer: Any, directory: Path, *, resumes: bool) -> Iterator[None]:
    """What ends the training ends it in one line if the user can mend it; one that leaves nothing leaves no logs."""
    from tokencredit.checkpoints import last_checkpoint, no_room
    from tokencredit.cli.run_directory import clear_logs

    try:
        yield
    except Exception as error:
        if trainer.is_world_process_zero() and not resumes and not trainer.state.global_step:
            clear_logs(directory)  # nothing was trained that could be continued
        reason = no_room(error)
        if reason is None and not isinstance(error, ValueError):
            raise
        named = getattr(error, "filename", None)
        what = error if reason is None else f"cannot write {named or 'into ' + str(directory)}: {reason}"
        last = last_checkpoint(directory, trainer.args.max_steps)
        goes_on = f"; --resume goes on from {last.name}" if last else ""
        print(file=sys.stderr)  # ends the line of the progress bar
        raise UsageError(f"training stopped: {what}{goes_on}") from error


def _on_main(config: Any) -> Callable[[str], None]:
    """Prints a line on stderr, in one of the processes."""
    return lambda line: print(line, file=sys.stderr) if config.process_index == 0 else None


def _use_one_thread() -> None:
    """A task's policy is so small that threads only wait for one another, many times longer on a busy machine."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _info(arguments: Any) -> dict[str, Any]:
    from tokencredit.cli.arguments import settings_of
    from tokencredit.cli.run_directory import versions

    run, config = arguments.run, arguments.training
    return {
        "command": "train",
        "credit": config.credit,
        "task": run.task,
        "dataset": None if run.task else arguments.source,
        "model": arguments.model.model_name_or_path or run.task,
        "seed": config.seed,
        "processes": config.world_size,
        "versions": versions(),
        "settings": settings_of(arguments),
    }


def _given_checkpoint(config: Any) -> Path | None:
    """TRL's own --resume_from_checkpoint PATH."""
    from tokencredit.checkpoints import flaw

    if not config.resume_from_checkpoint:
        return None
    path = Path(config.resume_from_checkpoint)
    reason = flaw(path, config.max_steps)
    if reason is not None:
        raise UsageError(f"cannot resume: {path} {reason}; --resume finds the last whole checkpoint")
    return path


def _build_trainer(arguments: Any, directory: Path) -> Any:
    """The trainer, with everything it needs loaded and checked; a failure leaves no new directory behind."""
    from tokencredit.cli.models import load_model
    from tokencredit.cli.training_data import (
        bound_rewards,
        build_dataset,
        check_enough,
        checked_lengths,
        load_rows,
        reward_functions,
    )
    from tokencredit.policy import Policy

    run, config, model_arguments = arguments.run, arguments.training, arguments.model
    rewards = reward_functions(arguments)
    rows = load_rows(arguments)
    evaluates = config.eval_strategy != "no"
    held_out = load_rows(arguments, held_out=True) if evaluates else []
    check_enough(len(rows), arguments)
    model, tokenizer = load_model(
        model_arguments.model_name_or_path or run.task,
        revision=model_arguments.model_revision,
        trust_remote_code=config.trust_remote_code,
        **_model_settings(arguments),
    )
    Policy(model)  # refuses a model without an embedding module before anything is written
    existed = directory.exists()
    try:
        return _trainer(
            arguments,
            model=model,
            processing_class=tokenizer,
            reward_funcs=bound_rewards(rewards, arguments, tokenizer),
            train_dataset=checked_lengths(
                build_dataset(rows, arguments, tokenizer), arguments, model, tokenizer
            ),
            eval_dataset=build_dataset(held_out, arguments, tokenizer) if evaluates else None,
        )
    except OSError as error:
        raise UsageError(f"cannot make the output_dir {directory}: {error.strerror or error}") from error
    except (ValueError, NotImplementedError, ImportError) as error:
        if not existed and directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
        raise error if isinstance(error, UsageError) else UsageError(str(error)) from error


def _trainer(arguments: Any, **parts: Any) -> Any:
    from transformers import PrinterCallback, ProgressCallback
    from trl import get_peft_config

    from tokencredit.cli.callbacks import Progress
    from tokencredit.trl import OARTrainer

    trainer = OARTrainer(args=arguments.training, peft_config=get_peft_config(arguments.model), **parts)
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(Progress())
    return trainer


def _model_settings(arguments: Any) -> dict[str, Any]:
    """What `from_pretrained` is told, as `trl grpo` does it."""
    from trl import get_quantization_config

    model = arguments.model
    settings = {"dtype": model.dtype}
    if model.attn_implementation:
        settings["attn_implementation"] = model.attn_implementation
    quantization = get_quantization_config(model)
    if quantization is not None:
        settings["quantization_config"] = quantization
    settings.update(arguments.training.model_init_kwargs or {})
    arguments.training.model_init_kwargs = None  # the trainer gets a model, for which it would only warn
    return settings


def _measure(arguments: Any, trainer: Any, when: str) -> dict[str, float]:
    """Accuracy on held-out problems of the task at temperature 1; nothing for a data set."""
    count = arguments.run.eval_problems
    if not arguments.run.task or not count:
        return {}
    from tokencredit.tasks import accuracy, get_task

    model = trainer.accelerator.unwrap_model(trainer.model)
    share = accuracy(model, trainer.processing_class, get_task(arguments.run.task), n=count)
    if trainer.is_world_process_zero():
        print(
            f"accuracy {when} training: {share:.3f} ({count} held-out problems, temperature 1)",
            file=sys.stderr,
        )
    return {when: share}


def _conclude(
    directory: Path,
    info: dict[str, Any],
    accuracy: dict[str, float],
    generations_per_step: float,
    stopped: bool,
) -> None:
    """The summary into run.json, and the report."""
    from tokencredit.cli.run_directory import REPORT, summarise, write_info
    from tokencredit.report import render_run

    summary = summarise(directory, accuracy, generations_per_step)
    write_info(directory, {**info, "interrupted": stopped, "summary": summary})
    render_run([directory], directory / REPORT)
    print(f"report: {directory / REPORT}", file=sys.stderr)
