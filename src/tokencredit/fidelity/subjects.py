"""What is measured: completions that a policy writes for the problems of a task or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokencredit.errors import UsageError
from tokencredit.evaluation.decoding import Decoding
from tokencredit.grounding import PROBE, ground
from tokencredit.rollouts import Grader, Rollouts
from tokencredit.spans import Spans
from tokencredit.tasks import Task
from tokencredit.tasks.step_verdicts import task_verdicts


@dataclass(frozen=True)
class Subject:
    """A policy and the problems that it writes completions for.

    Attributes:
        source: the task's name, or the data's.
        policy: what the user calls the policy.
        model, tokenizer: the policy.
        prompts: token ids of each problem's prompt.
        golds: the right answers, one a problem; empty without a task.
        task: knows the truth about each token; None without.
        decoding: how completions are written; `samples` is their number a problem.
        marker, probe: the answer's marker (None: the usual ones), and the text that asks for an answer that is missing
            (None: such completions are left out).
    """

    source: str
    policy: str
    model: Any
    tokenizer: Any
    prompts: Sequence[list[int]]
    golds: Sequence[str]
    task: Task | None
    decoding: Decoding
    marker: str | None = None
    probe: str | None = None

    @property
    def completions(self) -> int:
        return len(self.prompts) * self.decoding.samples


@dataclass(frozen=True)
class Sampled:
    """Completions in which there is something to attribute.

    Attributes:
        rollouts: rewards and advantages are 1 and 1, or 0 and -1 in failed completions; groups are problems.
        spans: of each row.
        written, failed: how many completions were written, and how many of them failed; those left out count too.
    """

    rollouts: Rollouts
    spans: list[Spans]
    written: int
    failed: int


def encode_prompt(tokenizer: Any, problem: str | list[Any], template: str | None, chat: bool) -> list[int]:
    """The ids of a problem's prompt.

    Args:
        problem: text, or chat messages, which need a chat template.
        template: text with {problem} in it; None for the problem alone.
        chat: send it as a chat message.
    """
    if isinstance(problem, str):
        text = problem if template is None else template.replace("{problem}", problem)
        if not chat:
            return list(tokenizer(text)["input_ids"])
        problem = [{"role": "user", "content": text}]
    if not tokenizer.chat_template:
        raise UsageError("the data's prompts are chat messages, but the tokenizer has no chat template")
    rendered = tokenizer.apply_chat_template(problem, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def batches(subject: Subject, batch_size: int) -> list[list[int]]:
    """The number of the problem that each completion is written for, in batches of whole problems.

    A batch has `batch_size` completions at most, or as many as one problem has.
    """
    samples, problems = subject.decoding.samples, range(len(subject.prompts))
    size = max(1, batch_size // samples)
    return [
        [problem for problem in problems[start : start + size] for _ in range(samples)]
        for start in range(0, len(problems), size)
    ]


def write(subject: Subject, problems: list[int]) -> Sampled:
    """The completions of one of the `batches`, sampled from a seed of its own; the global random state is left as it
    was."""
    prompt_ids, prompt_mask = _padded([subject.prompts[problem] for problem in problems], left=True)
    completions = _generate(subject, prompt_ids, prompt_mask, problems[0])
    return _grounded(subject, problems, prompt_ids, prompt_mask, completions)


def _generate(subject: Subject, prompt_ids: Tensor, prompt_mask: Tensor, start: int) -> list[list[int]]:
    """The ids as sampled, up to and with the end of the turn."""
    decoding, model, tokenizer = subject.decoding, subject.model, subject.tokenizer
    sampling: dict[str, Any] = {"do_sample": False}
    if decoding.temperature > 0:
        sampling = {
            "do_sample": True,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": 0,
        }
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(decoding.seed * 1_000_003 + start)
        output = model.generate(
            input_ids=prompt_ids.to(model.device),
            attention_mask=prompt_mask.long().to(model.device),
            max_new_tokens=decoding.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
            **sampling,
        )
    ends = {tokenizer.eos_token_id}
    more = getattr(model.generation_config, "eos_token_id", None)
    ends |= set(more if isinstance(more, list) else [more])
    return [_up_to(row, ends) for row in output[:, prompt_ids.shape[1] :].tolist()]


def _up_to(ids: list[int], ends: set[int | None]) -> list[int]:
    last = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: last + 1]


def _padded(rows: Sequence[list[int]], *, left: bool = False) -> tuple[Tensor, Tensor]:
    """The rows side by side and which entries are theirs."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, own in enumerate(rows):
        place = slice(width - len(own), width) if left else slice(0, len(own))
        ids[row, place] = torch.tensor(own, dtype=torch.long)
        mask[row, place] = True
    return ids, mask


def _grader(subject: Subject, problems: list[int], first: int) -> Grader:
    """The task's reward of other completions for the batch's problems; `first` is the key of its first row."""

    def grade(keys: Sequence[int], completions: Sequence[list[int]]) -> list[float]:
        assert subject.task is not None
        texts = subject.tokenizer.batch_decode(completions, skip_special_tokens=True)
        return subject.task.reward(texts, [subject.golds[problems[key - first]] for key in keys])

    return grade


def _verdicts(prompts: Sequence[str], steps: Sequence[Sequence[str]]) -> list[list[bool | None]]:
    """The task's, and none where the policy's tokens are not its words, which the measurement says by itself."""
    try:
        return task_verdicts(prompts, steps)
    except UsageError:
        return [[None] * len(row) for row in steps]


def _grounded(
    subject: Subject,
    problems: list[int],
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completions: list[list[int]],
) -> Sampled:
    device = subject.model.device
    ids, mask = _padded(completions)
    texts = subject.tokenizer.batch_decode(completions, skip_special_tokens=True)
    rewards, golds, needs = torch.ones(len(texts), dtype=torch.float64), [], ["steps"]
    if subject.task is not None:
        golds = [subject.golds[problem] for problem in problems]
        needs = ["steps", "ask_ids", "gold_ids", "step_verdicts"]
        rewards = torch.tensor(subject.task.reward(texts, golds), dtype=torch.float64)
    first = problems[0] * subject.decoding.samples
    rollouts, spans = ground(
        subject.tokenizer,
        prompt_ids.to(device),
        prompt_mask.to(device),
        ids.to(device),
        mask.to(device),
        marker=subject.marker,
        probe=subject.probe,
        needs=needs,
        ask=subject.task.marker if subject.task else PROBE,
        golds=golds,
        verifier=_verdicts,
        texts=texts,
        rewards=rewards.to(device),
        advantages=torch.where(rewards > 0, 1.0, -1.0).to(device),
        groups=torch.tensor(problems, device=device),
        grader=_grader(subject, problems, first) if subject.task else None,
        row_keys=torch.arange(first, first + len(texts), device=device),
    )
    kept = rollouts.readable & (rollouts.reasoning_mask.sum(dim=1) > 1)
    rows = kept.nonzero().squeeze(1)
    return Sampled(
        rollouts.select(rows), [spans[row] for row in rows.tolist()], len(texts), int((rewards <= 0).sum())
    )
