"""Token credit in a training loop of one's own: generate, reward, weights, loss; torch and transformers, no trainer.

    python examples/loop.py [--credit oar-g] [--steps 40] [--seed 0]

It trains the packaged policy of the built-in task `query` (four small sums, one of which the prompt asks for) with GRPO
and prints the accuracy on held-out problems before and after. It takes about a minute on one core. What differs
from plain GRPO is one line: `token_weights`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokencredit import STRATEGIES, Rollouts, group_advantages, token_weights
from tokencredit.grounding import ground
from tokencredit.tasks import Task, accuracy, get_task


@dataclass(frozen=True)
class Settings:
    """Of the loop.

    Attributes:
        credit: a name from `tokencredit.STRATEGIES`; `uniform` is plain GRPO.
        prompts, generations: of a step, and completions of each.
        clip: how far the ratio of new to old probability may move from 1.
        problems: held-out ones that accuracy is measured on.
    """

    credit: str = "oar-g"
    steps: int = 40
    prompts: int = 16
    generations: int = 8
    learning_rate: float = 2e-4
    clip: float = 0.2
    seed: int = 0
    problems: int = 512


@torch.no_grad()
def generate(model: Any, tokenizer: Any, prompts: list[str], most: int) -> dict[str, Tensor]:
    """One sampled completion a prompt, as ids and masks: prompts padded on the left, completions on the right."""
    asked = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    model.eval()
    ids = model.generate(
        input_ids=asked["input_ids"],
        attention_mask=asked["attention_mask"],
        max_new_tokens=most,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    completion = ids[:, asked["input_ids"].shape[1] :]
    # A completion ends with its first end-of-sequence token, which counts; what follows is padding.
    ended = (completion == tokenizer.eos_token_id).long().cumsum(1)
    before = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], dim=1)
    return {
        "prompt_ids": asked["input_ids"],
        "prompt_mask": asked["attention_mask"].bool(),
        "completion_ids": completion,
        "completion_mask": before == 0,
    }


def log_probs(model: Any, rollouts: Rollouts) -> Tensor:
    """(B, T) log-probability of each completion token, with gradient."""
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], dim=1)
    mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], dim=1)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    count = rollouts.completion_ids.shape[1]
    logits = model(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=positions,
        use_cache=False,
        logits_to_keep=count + 1,
    ).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, rollouts.completion_ids[..., None]).squeeze(-1)


def grpo_loss(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip: float) -> Tensor:
    """Clipped policy-gradient loss, mean over all completion tokens; each tensor (B, T)."""
    ratio = (new - old).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -(gain * mask).sum() / mask.sum().clamp(min=1)


def roll_out(
    model: Any, tokenizer: Any, task: Task, problems: list[dict[str, str]], settings: Settings
) -> tuple[Rollouts, Tensor]:
    """Completions of the problems with their advantages, and the rewards (B,)."""
    asked = [problem for problem in problems for _ in range(settings.generations)]
    most = task.preset["max_completion_length"]
    ids = generate(model, tokenizer, [problem["prompt"] for problem in asked], most)
    texts = [
        tokenizer.decode(row[mask], skip_special_tokens=True)
        for row, mask in zip(ids["completion_ids"], ids["completion_mask"], strict=True)
    ]
    rewards = torch.tensor(task.reward(texts, [problem["answer"] for problem in asked]))
    advantages = group_advantages(rewards, groups=settings.generations)
    # `ground` finds where reasoning and answer are; `marker` is the task's own word before the answer.
    rollouts, _ = ground(tokenizer, **ids, marker=task.marker, advantages=advantages)
    return rollouts, rewards


def train_step(
    model: Any, optimizer: Any, rollouts: Rollouts, settings: Settings, step: int
) -> dict[str, float]:
    """Credit, loss and update; what they came to."""
    started = time.perf_counter()
    # Each token's share of its completion's advantage: mean 1 over the reasoning, 1 elsewhere.
    weights = token_weights(model, rollouts, strategy=settings.credit, seed=settings.seed, step=step)
    seconds = time.perf_counter() - started
    assert rollouts.advantages is not None
    advantages = rollouts.advantages[:, None].to(weights) * weights
    model.train()
    new = log_probs(model, rollouts)
    # One update a generation: the policy that sampled is the one that learns, so the old log-probabilities are these.
    loss = grpo_loss(new, new.detach(), advantages, rollouts.completion_mask, settings.clip)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {"loss": loss.item(), "credit_seconds": seconds}


def run(settings: Settings) -> tuple[float, float]:
    """Train; accuracy on held-out problems before and after."""
    torch.manual_seed(settings.seed)
    task = get_task("query")
    model, tokenizer = task.load_policy()
    problems = task.problems(settings.steps * settings.prompts, settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99))
    before = accuracy(model, tokenizer, task, n=settings.problems)
    print(f"accuracy before {before:.3f}")
    for step in range(settings.steps):
        chosen = problems[step * settings.prompts : (step + 1) * settings.prompts]
        rollouts, rewards = roll_out(model, tokenizer, task, chosen, settings)
        found = train_step(model, optimizer, rollouts, settings, step)
        if step % 10 == 0 or step == settings.steps - 1:
            print(
                f"step {step + 1:3}  reward {rewards.mean():.3f}  loss {found['loss']:+.4f}  "
                f"credit {found['credit_seconds']:.2f} s"
            )
    after = accuracy(model, tokenizer, task, n=settings.problems)
    print(f"accuracy after  {after:.3f}")
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO with token credit, in a loop of one's own.")
    parser.add_argument(
        "--credit", default=Settings.credit, choices=STRATEGIES, help="a strategy; uniform is plain GRPO"
    )
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the policy is so small that threads would only wait for one another
    run(Settings(credit=arguments.credit, steps=arguments.steps, seed=arguments.seed))


if __name__ == "__main__":
    main()
