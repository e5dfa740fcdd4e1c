"""Cases that people met with other trainers; more stand in the tests of rows, batches, models and ranks."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

import tokencredit
from models import llama
from processes import run_ranks
from test_spans import byte_level
from test_trainer_rows import TEXTS, given
from test_trl import LOSSES, advantages_of, losses, odd_ids, outputs_of, parameters, prompts, train
from tokencredit import STRATEGIES, Options
from tokencredit.cli.arguments import parse_arguments
from tokencredit.cli.training_data import bound_rewards
from tokencredit.credit import assign
from tokencredit.grounding import ground
from tokencredit.policy import Policy
from tokencredit.report.token_record import token_record
from tokencredit.tasks.policy import build_model, build_tokenizer
from tokencredit.trl import OARConfig, OARTrainer

# --- advantages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "by"), [("batch", math.sqrt(2 / 7)), ("group", 0.5), ("none", 1 - 1e-4)])
def test_scales_of_rewards(tmp_path, monkeypatch, scale, by):
    """Two groups: 1 0 0 0 and 1 1 1 0. Over all eight the mean is 1/2, the variance 8 / 4 / 7; within each 1/4."""
    given(monkeypatch)
    seen = outputs_of(monkeypatch)
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    settings = dict(steps=1, credit="oar-p", credit_marker="ans", scale_rewards=scale)
    train(tmp_path, reward=lambda completions, **kwargs: rewards, **settings)
    means = [0.25] * 4 + [0.75] * 4
    mask, advantages = seen[0]["completion_mask"].bool(), seen[0]["advantages"]
    for row, (reward, mean) in enumerate(zip(rewards, means, strict=True)):
        expected = (reward - mean) / (by + 1e-4)
        assert advantages[row][mask[row]].mean().item() == pytest.approx(expected, rel=1e-5)


# --- truncated rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_truncated_rows_leave_the_loss(tmp_path, monkeypatch, loss_type):
    """The numerator, and the denominator where it counts tokens; where it counts rows or room, TRL keeps them."""
    tokenizer = build_tokenizer()
    ids = tokenizer(TEXTS * 2)["input_ids"]
    for row in (1, 6):
        ids[row] = ids[row][:-1]  # no end of the text
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda *args, **kwargs: (ids, None))
    seen = outputs_of(monkeypatch)
    settings = dict(loss_type=loss_type, mask_truncated_completions=True, learning_rate=0.0, steps=1)
    run = train(tmp_path, credit="oar-p", credit_marker="ans", reward=odd_ids, **settings)
    advantages, mask = seen[0]["advantages"], seen[0]["completion_mask"].bool()
    assert mask.sum(1).tolist() == [0 if row in (1, 6) else len(row_ids) for row, row_ids in enumerate(ids)]
    per_token = -advantages * mask  # the ratio of an on-policy step is 1
    expected = {
        "grpo": (per_token.sum(1) / mask.sum(1).clamp(min=1)).mean(),
        "dr_grpo": per_token.sum() / (len(ids) * run.args.max_completion_length),
        "dapo": per_token.sum() / mask.sum(),
        "bnpo": per_token.sum() / mask.sum(),
    }[loss_type]
    assert losses(run)[0] == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_what_truncated_rows_say_moves_nothing(tmp_path, monkeypatch, loss_type):
    """Whatever they say, and however long: the same step."""
    rewards = [1.0, 0.0, 0.5, 0.25, 0.0, 1.0, 0.25, 0.5]
    found = []
    for cut in ("1 + 2", "3 + 4 = 7 ; 7 + 1 = 8 ; 8"):
        texts = TEXTS * 2
        texts[1] = texts[6] = cut
        ids = build_tokenizer()(texts)["input_ids"]
        monkeypatch.setattr(
            GRPOTrainer, "_generate_single_turn", lambda *args, ids=ids, **kwargs: (ids, None)
        )
        settings = dict(
            loss_type=loss_type,
            mask_truncated_completions=True,
            epsilon_high=5.0 if loss_type == "cispo" else None,
            optim="sgd",
        )
        run = train(
            tmp_path / str(len(found)),
            steps=1,
            model=build_model(0),
            credit="oar-p",
            credit_marker="ans",
            reward=lambda completions, **kwargs: rewards,
            **settings,
        )
        found.append(parameters(run))
    before = torch.cat([each.detach().flatten() for each in build_model(0).parameters()])
    assert (found[0] - before).abs().max() > 1e-5
    torch.testing.assert_close(found[0] - before, found[1] - before, rtol=1e-3, atol=1e-6)


# --- every prompt once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "batches", "times"), [(2, 1, 9), (6, 1, 9), (2, 3, 9), (4, 1, 8)])
def test_nine_prompts_two_completions_each(tmp_path, monkeypatch, rows, batches, times):
    """In batches of 1, 3, 3 and 2 prompts; the last leaves one out, which `train` says."""
    asked: Counter[str] = Counter()
    original = OARTrainer._generate_and_score_completions

    def spy(self, inputs):
        asked.update(row["prompt"] for row in inputs)
        return original(self, inputs)

    monkeypatch.setattr(OARTrainer, "_generate_and_score_completions", spy)
    settings = dict(per_device_train_batch_size=rows, gradient_accumulation_steps=batches, num_generations=2)
    train(tmp_path, steps=-1, num_train_epochs=1, dataset=prompts(9), credit="position", **settings)
    assert len(asked) == times and set(asked.values()) == {2}


# --- temperature ----------------------------------------------------------------------------------------------------


def test_temperature_is_in_the_losses_log_probabilities(tmp_path):
    run = train(tmp_path, steps=1, temperature=0.5, credit="uniform", learning_rate=0.0)
    run.model.eval()
    ids = torch.tensor([build_tokenizer()("S1 3 + 4 = 7 ; ans 7")["input_ids"]])
    logps = run._get_per_token_logps_and_entropies(run.model, ids, torch.ones_like(ids), 4)[0]
    with torch.no_grad():
        expected = (run.model(ids).logits[0, -5:-1] / 0.5).log_softmax(-1)
    torch.testing.assert_close(logps[0], expected.gather(1, ids[0, -4:, None])[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [dict(credit="oar-p"), dict(credit="oar-g", credit_stage="loss")])
def test_attribution_reads_the_model_at_temperature_one(tmp_path, monkeypatch, settings):
    """As its documentation says, in both stages: the same weights at any temperature of the sampling."""
    given(monkeypatch)
    seen = advantages_of(monkeypatch)
    for temperature in (1.0, 0.5):
        more = dict(temperature=temperature, credit_gradient="labels", credit_marker="ans", steps=1)
        train(tmp_path / str(temperature), model=build_model(0), **settings, **more)
    assert seen[0].std(1).max() > 0.1
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-5, atol=1e-6)
    documented = (Path(__file__).parents[1] / "docs" / "training.md").read_text()
    assert "at temperature 1, whatever" in " ".join(documented.split())


# --- ranks ----------------------------------------------------------------------------------------------------------


def sample_on_rank(rank: int, folder: Path) -> None:
    """One prompt, four completions, two on each rank."""
    seen: list[Any] = []
    config = OARConfig(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=2,
        num_generations=4,
        max_completion_length=12,
        max_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        credit_marker="ans",
    )
    trainer = OARTrainer(
        build_model(0),
        odd_ids,
        config,
        Dataset.from_list([{"prompt": "S1 3 + 4 ;"}]),
        processing_class=build_tokenizer(),
    )
    original = trainer._generate_single_turn

    def spy(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        seen.extend(found[0])
        return found

    trainer._generate_single_turn = spy
    trainer.train()
    torch.save(seen, folder / f"{rank}.pt")


def test_two_ranks_with_one_prompt_sample_different_completions(tmp_path):
    first, second = run_ranks(sample_on_rank, 2, tmp_path)
    assert len(first) == len(second) == 2 and not any(one in second for one in first)


# --- tokens that are no words ---------------------------------------------------------------------------------------


def test_think_tags_that_are_special_tokens():
    """TRL takes them out of the text that rewards see. A block that was never closed still holds no answer, and one
    that was closed does not hide what follows; as the spans have it, which are read from ids."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.chat_template = (
        "{{ messages[0]['content'] }}{% if add_generation_prompt %}\n<think>\n{% endif %}"
    )
    arguments = parse_arguments(
        ["--dataset", "rows.jsonl", "--model_name_or_path", "m", "--reward_funcs", *("accuracy", "format")]
    )
    accuracy, form = bound_rewards(["accuracy", "format"], arguments, tokenizer)
    texts = ["so \\boxed{5}</think> it is \\boxed{7}<|im_end|>", "so \\boxed{5} or \\boxed{7}<|im_end|>"]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    shown = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    assert "</think>" not in shown[0]
    question = [{"role": "user", "content": "?"}]
    for completions in (shown, [[{"role": "assistant", "content": text}] for text in shown]):
        given_rows = dict(completions=completions, prompts=[question] * 2, completion_ids=ids)
        assert accuracy(answer=["7", "7"], **given_rows) == [1.0, 0.0]
        assert form(**given_rows) == [1.0, 0.0]
    prompt = tokenizer.encode("?\n<think>\n", add_special_tokens=False)
    width = max(map(len, ids))
    rows = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in ids])
    asked = torch.tensor([prompt] * 2)
    rollouts, spans = ground(tokenizer, asked, torch.ones_like(asked).bool(), rows, mask)
    assert tokenizer.decode(rows[0][rollouts.answer_mask[0]]).strip(" {}") == "7" and spans[1].answer is None


def test_tokens_that_end_a_turn_have_a_row_each_in_a_heat_map():
    """Two kinds side by side, and one twice: no credit, weights 1."""
    tokenizer = byte_level()
    text = "two and two; the answer is \\boxed{4}"
    ending = ["<|im_end|>", "<|im_end|>", "<|endoftext|>"]
    ids = [*tokenizer.encode(text, add_special_tokens=False), *tokenizer.convert_tokens_to_ids(ending)]
    rows = torch.tensor([ids]) % tokenizer.vocab_size
    model = llama()
    model.resize_token_embeddings(len(tokenizer))
    ones = torch.ones_like(rows).bool()
    rollouts, spans = ground(
        tokenizer, rows[:, :4], ones[:, :4], torch.tensor([ids]), ones, advantages=torch.ones(1)
    )
    policy = Policy(model)
    credit = assign(STRATEGIES["oar-g"], policy, rollouts, Options())
    record = token_record(tokenizer, rollouts, 0, spans[0], policy.token_logps(rollouts), credit, 0)
    assert record["tokens"][-3:] == ending and "".join(record["tokens"][:-3]) == text
    assert record["weights"][-3:] == [1.0] * 3 and record["importance"][-3:] == [None] * 3
    assert {
        len(record[name]) for name in ("tokens", "weights", "importance", "advantages", "probability")
    } == {len(ids)}


# --- what isn't there -----------------------------------------------------------------------------------------------


def test_caches_of_transformers_are_left_alone():
    """No attribute of a cache, which transformers rearranges from version to version, is touched."""
    private = {
        "key_cache",
        "value_cache",
        "_seen_tokens",
        "past_key_values",
        "to_legacy_cache",
        "from_legacy_cache",
    }
    for path in Path(tokencredit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Attribute) and node.attr in private), (path, node.lineno)
            assert not (
                isinstance(node, ast.Name) and node.id.endswith("Cache") and node.id != "CacheHook"
            ), path


def test_without_wandb(tmp_path, monkeypatch):
    """Nothing reports anywhere unless it is told to, tables of completions included."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name.startswith("wandb") else found(name, *rest),
    )
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert parse_arguments(["--task", "query"]).training.report_to in ([], "none", ["none"])
    run = train(tmp_path, steps=1, log_completions=True, report_to=OARConfig.report_to)
    assert math.isfinite(losses(run)[0]) and list((tmp_path / "completions").glob("*.parquet"))
