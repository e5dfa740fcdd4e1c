"""OARTrainer on several ranks against OARTrainer in one process, with the same rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from processes import run_ranks
from tokencredit import STRATEGIES, UsageError
from tokencredit.tasks.policy import build_model, build_tokenizer
from tokencredit.trainer_checks import check_sharding
from tokencredit.trl import OARConfig, OARTrainer

# Eight completions a generation, two prompts of four, as two ranks have four each and four ranks two each.
# The first generation is an ordinary one; in the others, the first half of the rows has little or nothing to attribute.
GOOD = [
    "1 + 2 = 3 ; L1 3 + 4 = 7 ; ans 7 <eos>",
    "2 ; ans 4 <eos>",
    "3 + 3 = 6 ; 6 + 6 = 2 ; 2 + 2 = 4 ; ans 4 <eos>",
    "5 + 1 = 6 ; ans 1 6 <eos>",
]
FIRST = {
    "ordinary": [GOOD[2], GOOD[0], "1 + 1 = 2 ; ans 2 <eos>", GOOD[1]],
    "all alike": [GOOD[0]] * 4,
    "truncated": ["1 + 2 = 3 ; 3 + 3", "2 + 2 = 4 ; ans", "4 + 4 =", "1 + 1 = 2 ; ans 2"],
    "no answers": ["1 + 2 = 3 <eos>", "4 + 4 = 8 ; 8 <eos>", "6 <eos>", "3 + 3 ; <eos>"],
    "one token": ["1 ans 1 <eos>", "ans 2 <eos>", "3 ans 3 <eos>", "<eos>"],
}
REWARDS = [1.0, 0.0, 0.5, 0.25]
CASES = list(FIRST)
ROWS = 8


def completions(case: str) -> list[str]:
    return [*FIRST[case], *GOOD]


class GivenRollouts:
    """In place of sampling: the completions of each case in turn, each rank its own part."""

    def __init__(self) -> None:
        self.generation = 0

    def __call__(self, trainer: Any, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        texts = completions(CASES[self.generation % len(CASES)])
        self.generation += 1
        first = trainer.accelerator.process_index * len(prompt_ids)
        return trainer._tokenizer(texts[first : first + len(prompt_ids)])["input_ids"], None

    def reward(self, completions: list[str], **kwargs: Any) -> list[float | None]:
        """By the place among all rows; the same in the whole group where it is all alike."""
        case = CASES[(self.generation - 1) % len(CASES)]
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        places = range(rank * len(completions), (rank + 1) * len(completions))
        return [0.5 if case == "all alike" and place < 4 else REWARDS[place % 4] for place in places]


def policy(tied: bool = True) -> Any:
    """In float64, so that what differs between one process and many is not rounding."""
    model = build_model(0).double()
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() + 0.01)
    return model


def train(folder: Path, ranks: int, credit: str, tied: bool = True, **settings: Any) -> dict[str, Any]:
    """A run over all cases; what its credit was, generation by generation, and the gradients of each step."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    given, calls = GivenRollouts(), []
    options = dict(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS // ranks,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        num_generations=4,
        max_completion_length=24,
        max_steps=3,
        learning_rate=0.0,  # or rounding would move the policies apart; their gradients are compared
        optim="sgd",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        mask_truncated_completions=True,
        lr_scheduler_type="constant",
        credit=credit,
        credit_marker="ans",
        seed=7,
    )
    trainer = OARTrainer(
        model=policy(tied),
        reward_funcs=given.reward,
        args=OARConfig(**{**options, **settings}),
        train_dataset=Dataset.from_list([{"prompt": f"S1 {i} + {i} ;", "answer": str(i)} for i in range(8)]),
        processing_class=build_tokenizer(),
    )
    seen, gradients = watch(trainer, calls), Gradients()
    trainer.add_callback(gradients)
    original, GRPOTrainer._generate_single_turn = GRPOTrainer._generate_single_turn, given.__call__
    try:
        GRPOTrainer._generate_single_turn = lambda self, *args, **kwargs: given(self, *args, **kwargs)
        trainer.train()
    finally:
        GRPOTrainer._generate_single_turn = original
    return {
        "generations": seen,
        "calls": calls,
        # DDP has no need to be in step in the loss, nor where texts are written.
        "in step": trainer.args.credit_stage == "rollout" and not trainer.strategy.samples,
        "gradients": gradients.found,
        "log": [entry for entry in trainer.state.log_history if "loss" in entry],
    }


class Gradients(TrainerCallback):
    """The whole gradient of every parameter before each optimizer step."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        for parameter in model.parameters():
            gradient = parameter.grad
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            self.found.append(whole.clone())


def watch(trainer: Any, calls: list[bool]) -> list[dict[str, torch.Tensor]]:
    """What each generation's credit comes to, and which passes the ranks make; gradients must stay what they were."""
    seen: list[dict[str, torch.Tensor]] = []
    finish, scored = trainer._finish, trainer._generate_and_score_completions
    trainer.model.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))

    def finished(generation: Any) -> None:
        rows = torch.arange(generation.rollouts.shape[0])
        seen.append(
            {
                "importance": generation.credit.importance,
                "weights": generation.credit.weights,
                "advantages": generation.token_advantages(rows),
                "mask": generation.rollouts.completion_mask,
            }
        )
        finish(generation)

    def generated(inputs: Any) -> Any:
        before = [None if p.grad is None else p.grad.clone() for p in trainer.model.parameters()]
        output = scored(inputs)
        # FSDP moves what micro-batches have left from whole parameters to their shards; `Gradients` sees it there.
        if not trainer.accelerator.is_fsdp2:
            for parameter, gradient in zip(trainer.model.parameters(), before, strict=True):
                assert (parameter.grad is None) == (gradient is None)
                assert gradient is None or torch.equal(parameter.grad, gradient)
        return output

    trainer._finish, trainer._generate_and_score_completions = finished, generated
    return seen


FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
}


def use_fsdp() -> None:
    """accelerate reads these settings on accelerators alone, although all that it does with them runs on a CPU too."""
    os.environ |= FSDP
    original = AcceleratorState.__init__

    def with_fsdp(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp  # type: ignore[method-assign]


def on_rank(rank: int, folder: Path, ranks: int, runs: list[dict[str, Any]], fsdp: bool) -> None:
    if fsdp:
        use_fsdp()
    torch.save([train(folder / "run", ranks, **run) for run in runs], folder / f"{rank}.pt")


def check_same(ranks: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Rank by rank the same credit as in one process, the same passes on each, and the same policy in the end."""
    if whole["in step"]:
        assert all(run["calls"] == ranks[0]["calls"] for run in ranks)
    rows = ROWS // len(ranks)
    for number, expected in enumerate(whole["generations"]):
        for rank, run in enumerate(ranks):
            found = run["generations"][number]
            mask = found["mask"]
            part = {name: values[rank * rows :][:rows, : mask.shape[1]] for name, values in expected.items()}
            assert torch.equal(mask, part["mask"])
            for name in ("importance", "weights", "advantages"):
                largest = part[name].abs().amax(1, keepdim=True).clamp(min=1e-30)
                away = ((found[name] - part[name]) / largest)[mask].abs()
                assert not (away > 1e-5).any(), (number, rank, name)
    for run in ranks:
        for one, other in zip(run["gradients"], whole["gradients"], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
        for one, other in zip(run["log"], whole["log"], strict=True):
            for name, value in other.items():
                if name.startswith("credit/") and "seconds" not in name and "share" not in name:
                    assert one[name] == pytest.approx(value, abs=1e-5), name


LOSS_STAGE = {"credit": "oar-g", "credit_stage": "loss"}
LABELS = {"credit": "oar-g", "credit_gradient": "labels"}
DDP_RUNS = [{"credit": "oar-p"}, {"credit": "oar-g", "num_generations": 8}, {"credit": "bias"}, LOSS_STAGE]
# Credit of the loss stage comes from a pass of its own where the model is in pieces.
FSDP_RUNS = [
    {"credit": "oar-p", "tied": False},
    {"credit": "oar-g"},
    {**LOSS_STAGE, "credit_gradient": "labels"},
]
TOGETHER = [name for name, strategy in STRATEGIES.items() if not strategy.samples]
EVERY_RUN = [{"credit": name} for name in TOGETHER] + [LABELS, {"credit": "oar-p", "credit_m": 0}]


def compare(folder: Path, ranks: int, runs: list[dict[str, Any]], fsdp: bool = False) -> None:
    for run, *found in zip(runs, *run_ranks(on_rank, ranks, folder, ranks, runs, fsdp), strict=True):
        check_same(found, train(folder / "whole", 1, **run))


def test_two_ranks(tmp_path):
    """Groups of eight span both."""
    compare(tmp_path, 2, DDP_RUNS)


def test_two_ranks_with_a_model_in_pieces(tmp_path):
    """FSDP2 with one block a unit."""
    compare(tmp_path, 2, FSDP_RUNS, fsdp=True)


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_every_strategy(tmp_path, fsdp, tied):
    compare(tmp_path, 2, [{**run, "tied": tied} for run in EVERY_RUN], fsdp)


@pytest.mark.slow
def test_a_strategy_that_samples(tmp_path):
    compare(tmp_path, 2, [{"credit": "spae"}])


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True])
def test_four_ranks(tmp_path, fsdp):
    """Groups of four span two ranks each."""
    compare(tmp_path, 4, EVERY_RUN[:2], fsdp)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", ["accelerate launch --multi_gpu --num_processes 2", "torchrun --nproc_per_node 4"]
)
def test_the_command_under_a_launcher(tmp_path, launcher):
    """Ranks with one prompt sample different completions, and one of them writes."""
    name, *flags = launcher.split()
    settings = (
        "--task query --max_steps 2 --eval_problems 16 --use_cpu true --per_device_train_batch_size 2 "
        f"--num_generations 4 --log_completions true --output_dir {tmp_path / 'run'}"
    )
    program = Path(sys.executable).with_name(name)
    command = [str(program), *flags, "-m", "tokencredit", "train", *settings.split()]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if "loss" in json.loads(line)] == [1, 2]
    tables = sorted((tmp_path / "run" / "completions").glob("*.parquet"))
    group = Dataset.from_parquet(str(tables[0]))[:4]["completion"]
    assert group[:2] != group[2:]


def test_fsdp_1_is_refused(monkeypatch):
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    monkeypatch.setattr(Accelerator, "is_fsdp2", False)
    with pytest.raises(UsageError, match="set fsdp_version: 2"):
        check_sharding(Accelerator(cpu=True))
    monkeypatch.setattr(Accelerator, "is_fsdp2", True)
    check_sharding(Accelerator(cpu=True))
    with pytest.raises(UsageError, match="samples from the policy does not work with FSDP"):
        check_sharding(Accelerator(cpu=True), samples=True)
