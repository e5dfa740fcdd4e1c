"""What a training run learns from: prompts, golds and rewards, of a task or a data set."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from tokencredit.cli.arguments import RunArguments, TrainArguments
from tokencredit.errors import UsageError
from tokencredit.tasks import HELD_OUT, get_task
from tokencredit.tasks.data import check_problems, load_problems

if TYPE_CHECKING:
    from datasets import Dataset

INSTRUCTION = "{problem}\n\nPut your final answer in \\boxed{}."
# Always as many, so that a run's order of problems does not depend on its length.
TASK_PROBLEMS = 8192
OWN_REWARDS = ("accuracy", "format")


def reward_functions(arguments: TrainArguments) -> list[Any]:
    """The rewards that were asked for, as TRL takes them; none for the default. See `bound_rewards`.

    Raises:
        UsageError: a reward function that cannot be found.
    """
    run = arguments.run
    rewards: list[Any] = [run.reward_model_name_or_path] if run.reward_model_name_or_path else []
    rewards += [name if name in OWN_REWARDS else _reward_function(name) for name in run.reward_funcs or []]
    return rewards


def bound_rewards(rewards: list[Any], arguments: TrainArguments, tokenizer: Any) -> list[Any]:
    """The rewards with our own in place of their names; by default whether the answer is right.

    By the task's rules or by ours: the answer comes after `credit_marker`, where that is set, and text in an
    unfinished think block is no answer, also where the chat template opened the block.
    """
    from tokencredit.answers import accuracy_reward_for, format_reward_for, template_opens_thinking

    task, settings = arguments.run.task, arguments.training.chat_template_kwargs or {}
    thinking = template_opens_thinking(tokenizer, **settings)  # type: ignore[arg-type]
    without = None if arguments.run.no_answer == "none" else 0.0
    own = {
        "accuracy": get_task(task).reward
        if task
        else accuracy_reward_for(thinking, without, arguments.training.credit_marker, tokenizer),
        "format": format_reward_for(thinking, tokenizer),
    }
    return [
        own.get(reward, reward) if isinstance(reward, str) else reward for reward in rewards or ["accuracy"]
    ]


def _needs(run: RunArguments) -> tuple[bool, bool]:
    """Whether rewards need golds, and whether others than ours want the rows as they are."""
    names = [
        *(run.reward_funcs or []),
        *([run.reward_model_name_or_path] if run.reward_model_name_or_path else []),
    ]
    return not names or "accuracy" in names, any(name not in OWN_REWARDS for name in names)


def _reward_function(name: str) -> Any:
    from trl import rewards

    known = {
        "accuracy_reward": rewards.accuracy_reward,
        "reasoning_accuracy_reward": rewards.reasoning_accuracy_reward,
        "think_format_reward": rewards.think_format_reward,
        "get_soft_overlong_punishment": rewards.get_soft_overlong_punishment(
            max_completion_len=1280, soft_punish_cache=256
        ),
    }
    if name in known:
        return known[name]
    module, _, function = name.rpartition(".")
    if not module:
        raise UsageError(
            f"no reward function {name!r}; use {', '.join([*OWN_REWARDS, *known])} "
            "or a dotted path such as my.rewards.f"
        )
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import the reward function {name!r}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise UsageError(f"the reward function {name!r} is a {type(found).__name__}, which cannot be called")
    return found


def load_rows(arguments: TrainArguments, *, held_out: bool = False) -> list[dict[str, Any]]:
    """The problems to train on, or those to evaluate on; see `load_problems` for what is refused."""
    run = arguments.run
    if run.task:
        seed = arguments.training.seed
        task = get_task(run.task)
        return (
            task.problems(max(1, run.eval_problems), HELD_OUT + seed)
            if held_out
            else task.problems(TASK_PROBLEMS, seed)
        )
    skipped: list[str] = []
    checks: dict[str, Any] = {
        "golds": _needs(run)[0],
        "on_unjudged": skipped.append if run.skip_unjudged else None,
    }
    try:
        rows = _mixture_rows(arguments, held_out, checks) or load_problems(
            str(run.dataset_name),
            run.dataset_test_split if held_out else run.dataset_train_split,
            config=run.dataset_config,
            **checks,
        )
    except UsageError as error:
        hint = "; --skip_unjudged leaves such rows out" if "cannot be judged" in str(error) else ""
        raise UsageError(f"{error}{hint}") from error
    if skipped:
        print(
            f"left out {len(skipped)} rows whose gold cannot be judged, such as {skipped[0]}", file=sys.stderr
        )
    return rows


def _mixture_rows(arguments: TrainArguments, held_out: bool, checks: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the YAML file's `datasets`, none if there are no such."""
    if not arguments.mixture.datasets:
        return []
    from trl import get_dataset

    try:
        mixture = get_dataset(arguments.mixture)
    except Exception as error:  # whatever one of the loaders raises
        raise UsageError(f"cannot load the data sets of the mixture: {error}") from error
    split = "test" if held_out else "train"
    if split not in mixture:
        raise UsageError("the mixture has no test split; set test_split_size to evaluate")
    return check_problems(
        ((f"row {number}", row) for number, row in enumerate(mixture[split], 1)), "mixture", **checks
    )


def check_enough(count: int, arguments: TrainArguments) -> None:
    """There are problems enough for one generation batch; how many each epoch leaves out is said.

    Raises:
        UsageError: there are not.
    """
    config = arguments.training
    size, micro_steps = config.generation_batch_size or 0, config.steps_per_generation or 1
    asked = size // (config.num_generations or 1)
    if count < asked:
        raise UsageError(
            f"{arguments.source} has {count} problems, but one generation batch asks {asked} ({size} completions, "
            f"{config.num_generations} a problem); give more problems or lower per_device_train_batch_size"
        )
    batches = config.max_steps * config.gradient_accumulation_steps / (micro_steps * config.num_iterations)
    ends_before = 0 < batches <= count // asked - 1
    # A task's problems are drawn at random, as many as one likes.
    if count % asked and not ends_before and not arguments.run.task and os.environ.get("RANK", "0") == "0":
        print(
            f"each epoch leaves out {count % asked} of {count} problems: a generation batch asks {asked} at once; "
            "batches of a size that divides their number would use all",
            file=sys.stderr,
        )


def build_dataset(rows: list[dict[str, Any]], arguments: TrainArguments, tokenizer: Any) -> Dataset:
    """The rows as TRL takes them: with `prompt`, as text or chat messages, and what rewards need.

    Raises:
        UsageError: chat messages without a chat template, or columns whose values have no common type.
    """
    from datasets import Dataset

    run = arguments.run
    if run.task:
        return Dataset.from_list(rows)
    has_chat = bool(tokenizer.chat_template)
    golds, others = _needs(run)
    built = []
    for row in rows:
        kept = {name: value for name, value in row.items() if name != "problem"} if others else {}
        kept |= {name: row[name] for name in ("answer", "tolerance") if name in row}
        built.append({**kept, "prompt": _prompt(row, run, has_chat, ready=others and not golds)})
    try:
        return Dataset.from_list(built)
    except (ValueError, TypeError) as error:  # pyarrow's errors are among them
        raise UsageError(f"the columns of {arguments.source} have no common type: {error}") from error


def checked_lengths(dataset: Dataset, arguments: TrainArguments, model: Any, tokenizer: Any) -> Dataset:
    """The dataset as it is, once every prompt with its longest completion is known to fit the model's positions.

    Raises:
        UsageError: the first row that does not fit.
    """
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not most:
        return dataset
    longest = arguments.training.max_completion_length or 0
    room = most - longest
    settings: Any = arguments.training.chat_template_kwargs or {}
    for number, prompt in enumerate(dataset["prompt"], start=1):
        text = prompt if isinstance(prompt, str) else " ".join(str(message["content"]) for message in prompt)
        # A token has a byte at least; a chat template adds some of its own.
        if len(text.encode()) + (0 if isinstance(prompt, str) else 512) <= room:
            continue
        if isinstance(prompt, str):
            count = len(tokenizer(prompt)["input_ids"])
        else:
            rendered = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=False, **settings
            )
            count = len(tokenizer(rendered, add_special_tokens=False)["input_ids"])
        if count > room:
            raise UsageError(
                f"row {number} of {arguments.source} has a prompt of {count} tokens, but the model reads {most} at "
                f"most and max_completion_length takes {longest} of them; leave the row out or lower "
                "max_completion_length"
            )
    return dataset


def _prompt(row: dict[str, Any], run: RunArguments, has_chat: bool, ready: bool) -> str | list[Any]:
    problem = row["problem"]
    if isinstance(problem, list):
        if not has_chat:
            raise UsageError(
                "the data set's prompts are chat messages, but the tokenizer has no chat template"
            )
        return problem
    if ready and run.prompt_template is None and "prompt" in row:
        return str(row["prompt"])  # as in `trl grpo`: prompts that come with their own rewards are ready
    text = (run.prompt_template or INSTRUCTION).replace("{problem}", problem)
    return [{"role": "user", "content": text}] if has_chat else text
