"""Built-in tasks in which the truth about each token is known.

Three tasks of arithmetic mod 10, each with a tiny policy that was taught a share of its facts badly, so that
reinforcement has something to mend:

- ``query``: four independent facts, the prompt's end asks for one: the other three are distractors.
- ``serial``: a chain of four steps, the answer is the last result.
- ``parallel``: three independent facts, the answer is all three results.

Problems and truth are plain Python; transformers loads when a policy is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.errors import UsageError

from .arithmetic import HELD_OUT, MARKER, World, draw_problem
from .truth import ROLES, TokenTruth, annotate

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from .policy import accuracy

__all__ = ["HELD_OUT", "ROLES", "TASKS", "Task", "TokenTruth", "accuracy", "get_task"]


@dataclass(frozen=True)
class Task:
    """One built-in task: its problems, their reward, the truth about completions, and the packaged policy.

    Attributes:
        name: what users call it.
        world: the shape of its problems and how badly its warm start is taught.
        preset: the settings of TRL's GRPOConfig that it is trained with.
        marker: the word before the answer in a completion.
    """

    name: str
    world: World
    preset: dict[str, Any]
    marker: str = MARKER

    def problems(self, n: int, seed: int) -> list[dict[str, str]]:
        """``n`` rows with ``prompt`` and ``answer``; the same seed gives the same rows, more of them append.

        Seeds below ``HELD_OUT`` are for training; ``HELD_OUT`` and above are held out for measuring.
        """
        rows = []
        for i in range(n):
            problem = draw_problem(self.world, random.Random(f"{self.name}/{seed}/{i}"))
            rows.append({"prompt": problem.prompt, "answer": problem.answer})
        return rows

    @property
    def reward(self) -> Callable[..., list[float]]:
        """A reward function for TRL, named ``accuracy``: 1.0 for each right completion, else 0.0."""
        return _accuracy_reward

    def annotate(self, prompt: str, tokens: Sequence[str]) -> list[TokenTruth]:
        """The truth about each token of a completion; see ``truth.annotate``."""
        return annotate(prompt, tokens)

    def policy_path(self) -> Path:
        """The folder of the packaged warm start: safetensors, config, tokenizer, ``warm_start.json``."""
        return Path(str(files(__package__) / "policies" / self.name))

    def load_policy(self) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
        """The packaged warm start's model (float32, on the CPU, in evaluation mode) and its tokenizer."""
        from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

        path = self.policy_path()
        return LlamaForCausalLM.from_pretrained(path), PreTrainedTokenizerFast.from_pretrained(path)


def _accuracy_reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1.0 where all that follows the completion's last ``ans`` is the answer, else 0.0."""
    rewards = []
    for completion, gold in zip(completions, answer, strict=True):
        words = completion.split()
        last = max((i for i, word in enumerate(words) if word == MARKER), default=len(words))
        rewards.append(float(words[last + 1 :] == gold.split()))
    return rewards


_accuracy_reward.__name__ = "accuracy"

_PRESET: dict[str, Any] = {
    "per_device_train_batch_size": 128,
    "num_generations": 8,
    "gradient_accumulation_steps": 1,
    "max_steps": 60,
    "learning_rate": 2e-4,
    "lr_scheduler_type": "constant",
    "adam_beta2": 0.99,
    "temperature": 1.0,
    "epsilon": 0.2,
    "beta": 0.0,
    "loss_type": "dapo",
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 30,
}

_WORLDS = {
    "query": World(steps=4, chained=False, asked="one", mistaught=0.8, p_right=0.3, filler=(1, 3)),
    "serial": World(steps=4, chained=True, asked="last", mistaught=0.3, p_right=0.4, filler=(1, 4)),
    "parallel": World(steps=3, chained=False, asked="all", mistaught=0.4, p_right=0.3, filler=(4, 10)),
}

TASKS: dict[str, Task] = {
    name: Task(name, world, {**_PRESET, "max_completion_length": world.longest_completion + 4})
    for name, world in _WORLDS.items()
}


def get_task(name: str) -> Task:
    """The built-in task of that name.

    Raises:
        UsageError: there is none; the message lists the names.
    """
    if name not in TASKS:
        raise UsageError(f"no built-in task {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]


def __getattr__(name: str) -> Any:
    """Loads ``accuracy``, and with it transformers, when it is asked for."""
    if name == "accuracy":
        from .policy import accuracy

        return accuracy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
