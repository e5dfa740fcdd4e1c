"""OARTrainer against GRPOTrainer and against the functional form, on a tiny random policy."""

from __future__ import annotations

import json
import math

import pytest
import torch
from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

import tokencredit.trl as subject
from tokencredit import STRATEGIES, Strategy, UsageError, token_advantages
from tokencredit.credit.controls import uniform
from tokencredit.tasks.policy import build_model, build_tokenizer
from tokencredit.trl import OARConfig, OARTrainer

LOSSES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
CREDIT_METRICS = [
    *("ess_ratio", "suppressed", "boosted", "no_answer", "skipped", "not_finite", "seconds", "share_of_step")
]


def odd_ids(completions, completion_ids, **kwargs):
    """A reward with variance in every group, whatever the policy says."""
    return [sum(i % 2 for i in ids) / len(ids) for ids in completion_ids]


def prompts(count: int = 8) -> Dataset:
    return Dataset.from_list([{"prompt": f"S1 {i} + {i} ;", "answer": str(i)} for i in range(count)])


def train(
    tmp_path,
    trainer=OARTrainer,
    steps=2,
    model=None,
    reward=odd_ids,
    dataset=None,
    tokenizer=None,
    **settings,
):
    """A finished short run; the policy is the same for every call with the same seed."""
    options = dict(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=12,
        max_steps=steps,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=7,
        lr_scheduler_type="constant",
    )
    if trainer is OARTrainer:
        options |= dict(credit_no_answer="probe", credit_probe="ans")
    options |= settings
    config = (OARConfig if trainer is OARTrainer else GRPOConfig)(**options)
    if model is None:
        build_model(0).save_pretrained(tmp_path / "policy")  # TRL loads its reference model from there
        model = LlamaForCausalLM.from_pretrained(tmp_path / "policy")
    run = trainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=dataset if dataset is not None else prompts(),
        processing_class=tokenizer or build_tokenizer(),
    )
    run.train()
    return run


def losses(run) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def parameters(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.fixture
def ones(monkeypatch):
    """A strategy whose weights are 1 but which goes the whole way to (B, T)."""
    monkeypatch.setitem(STRATEGIES, "ones", Strategy(uniform, "weights 1"))
    return "ones"


def test_uniform_is_grpo_number_for_number(tmp_path):
    plain = train(tmp_path / "a", GRPOTrainer, steps=3, beta=0.04)
    ours = train(tmp_path / "b", steps=3, credit="uniform", beta=0.04)
    assert losses(plain) == losses(ours)
    assert torch.equal(parameters(plain), parameters(ours))
    keys = {"reward", "kl", "entropy", "completions/mean_length", "grad_norm"}
    for before, after in zip(plain.state.log_history[:3], ours.state.log_history[:3], strict=True):
        assert keys <= set(before) and {k: before[k] for k in keys} == {k: after[k] for k in keys}


@pytest.mark.parametrize("loss_type", LOSSES)
def test_weights_of_one_change_nothing(tmp_path, ones, loss_type):
    settings = dict(
        loss_type=loss_type, num_iterations=2, steps=4, epsilon_high=5.0 if loss_type == "cispo" else None
    )
    plain = train(tmp_path / "a", GRPOTrainer, **settings)
    ours = train(tmp_path / "b", credit=ones, **settings)
    torch.testing.assert_close(losses(ours), losses(plain), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(parameters(ours), parameters(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_credit_reaches_every_loss(tmp_path, ones, loss_type):
    """Weights that differ from 1 move the policy elsewhere, and to finite values."""
    settings = dict(loss_type=loss_type, steps=1, epsilon_high=5.0 if loss_type == "cispo" else None)
    plain = train(tmp_path / "a", credit=ones, **settings)
    ours = train(tmp_path / "b", credit="oar-g", **settings)
    assert parameters(ours).isfinite().all()
    assert not torch.allclose(parameters(ours), parameters(plain), rtol=1e-4, atol=1e-6)


def advantages_of(monkeypatch) -> list[torch.Tensor]:
    """The token advantages (B, T) that TRL's loss works with, of each call from here on."""
    seen: list[torch.Tensor] = []
    original = GRPOTrainer._compute_loss

    def spy(self, model, inputs):
        loss = original(self, model, inputs)
        seen.append(inputs["advantages"].clone())
        return loss

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spy)
    return seen


def outputs_of(monkeypatch) -> list[dict]:
    """What each generation hands to the loss."""
    seen: list[dict] = []
    original = OARTrainer._generate_and_score_completions

    def spy(self, inputs):
        output = original(self, inputs)
        seen.append(
            {key: value.clone() if hasattr(value, "clone") else value for key, value in output.items()}
        )
        return output

    monkeypatch.setattr(OARTrainer, "_generate_and_score_completions", spy)
    return seen


@pytest.mark.parametrize("credit", list(STRATEGIES))
def test_token_advantages_of_each_strategy(tmp_path, monkeypatch, credit):
    """A w + b of the functional form on the same ids; A is what TRL's own formula gives."""
    seen = outputs_of(monkeypatch)
    model, tokenizer = build_model(0), build_tokenizer()
    few = dict(credit_continuations=2, credit_continuation_tokens=3)
    run = train(tmp_path, steps=1, credit=credit, model=model, tokenizer=tokenizer, learning_rate=0.0, **few)
    output = seen[0]
    rewards = torch.tensor(
        odd_ids(
            None,
            [
                ids[m.bool()].tolist()
                for ids, m in zip(output["completion_ids"], output["completion_mask"], strict=True)
            ],
        )
    ).view(-1, 4)
    sequence = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    if credit == "uniform" or STRATEGIES[credit].at_loss:
        torch.testing.assert_close(output["advantages"], sequence, rtol=1e-5, atol=1e-6)
        return
    by_prompt = {row["prompt"]: row for row in prompts()}
    asked = tokenizer.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    rollouts, _ = run._ground({**output, "advantages": sequence}, [by_prompt[text] for text in asked])
    options = dict(seed=7, step=0, pad_token_id=tokenizer.pad_token_id, m=run.args.credit_m)
    options |= dict(continuations=2, continuation_tokens=3)
    expected = token_advantages(model, rollouts, credit, **options)
    torch.testing.assert_close(output["advantages"], expected, rtol=1e-4, atol=1e-5)


def test_draws_differ_from_step_to_step(tmp_path, monkeypatch):
    asked: list[int] = []
    original = OARConfig.credit_options

    def spy(self, step, pad_token_id=0):
        asked.append(step)
        return original(self, step, pad_token_id)

    monkeypatch.setattr(OARConfig, "credit_options", spy)
    train(tmp_path, steps=3, credit="oar-g")
    assert asked[-3:] == [0, 1, 2]


def test_records_fall_on_logged_steps_whatever_a_generation_serves(tmp_path):
    settings = dict(steps=6, num_iterations=2, credit_records=1, credit="position")
    train(tmp_path / "a", logging_steps=4, **settings)
    records = (tmp_path / "a" / "records.jsonl").read_text().splitlines()
    # Generations serve steps 1-2, 3-4, 5-6: the first, and the one that holds step 4.
    assert [json.loads(line)["step"] for line in records] == [1, 3]


def test_bf16_asks_for_labels(tmp_path):
    run = train(tmp_path, steps=1, bf16=True)
    assert run._policy.half_precision and run.args.credit_gradient is None


def test_probe_always_alone_asks(tmp_path, monkeypatch):
    seen = outputs_of(monkeypatch)
    run = train(tmp_path, steps=1, credit_no_answer="uniform", credit_probe_always=True)
    rollouts, _ = run._ground({**seen[0], "advantages": torch.ones(8)})
    assert rollouts.probe_mask.all()


def test_tool_mask_reaches_the_credit(tmp_path, monkeypatch):
    seen = outputs_of(monkeypatch)
    run = train(tmp_path, steps=1)
    output = {**seen[0], "advantages": torch.ones(8)}
    tool = output["completion_mask"].clone()
    tool[:, 0] = 0
    plain_rollouts, _ = run._ground(output)
    masked, _ = run._ground({**output, "tool_mask": tool})
    assert plain_rollouts.reasoning_mask[:, 0].any() and not masked.reasoning_mask[:, 0].any()
    assert torch.equal(plain_rollouts.reasoning_mask[:, 1:], masked.reasoning_mask[:, 1:])


def test_weights_are_those_of_generation_time(tmp_path, monkeypatch):
    """Four optimizer steps on one generation: credit is assigned once, and shuffled and split with its rows."""
    seen = outputs_of(monkeypatch)
    used: list[torch.Tensor] = []
    original = OARTrainer._compute_loss

    def spy(self, model, inputs):
        used.append((inputs["completion_ids"].clone(), inputs["advantages"].clone()))
        return original(self, model, inputs)

    monkeypatch.setattr(OARTrainer, "_compute_loss", spy)
    train(tmp_path, steps=4, num_iterations=2, steps_per_generation=2, per_device_train_batch_size=4)
    assert len(seen) == 1 and len(used) == 4
    for ids, advantages in used:
        for row in range(4):
            source = (seen[0]["completion_ids"] == ids[row]).all(1)
            assert (seen[0]["advantages"][source] == advantages[row]).all(1).any()


def test_keys_of_generations_differ_and_survive_a_resume(tmp_path):
    run = train(tmp_path, steps=1, gradient_accumulation_steps=4, steps_per_generation=1, max_steps=3)
    keys = []
    for step, micro in [(0, 0), (0, 1), (0, 3), (1, 4), (1, 5), (2, 8)]:
        run.state.global_step, run._step = step, micro
        keys.append(run._generation_key())
    assert keys == [0, 1, 3, 4, 5, 8]
    run.state.global_step, run._step = 2, 0  # TRL counts from 0 after a resume
    assert run._generation_key() == 8


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(tmp_path, reentrant):
    plain = train(tmp_path / "a", credit="oar-g")
    settings = dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    ours = train(tmp_path / "b", credit="oar-g", **settings)
    assert ours.model.is_gradient_checkpointing
    torch.testing.assert_close(parameters(ours), parameters(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("credit", ["oar-g", "oar-p"])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_lora(tmp_path, credit, checkpointing):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(build_model(0), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    frozen = model.base_model.model.model.embed_tokens.weight.clone()
    run = train(tmp_path, credit=credit, model=model, gradient_checkpointing=checkpointing)
    assert all(math.isfinite(loss) for loss in losses(run))
    assert torch.equal(run.model.base_model.model.model.embed_tokens.weight, frozen)
    moved = [p.abs().sum() for name, p in run.model.named_parameters() if "lora_B" in name]
    assert torch.stack(moved).min() > 0


def test_truncated_completions_get_no_credit(tmp_path, monkeypatch):
    seen = outputs_of(monkeypatch)
    run = train(tmp_path, steps=1, mask_truncated_completions=True, max_completion_length=6)
    output = seen[0]
    cut = ~output["completion_mask"].bool().any(1)
    assert cut.any()
    sequence = output["advantages"][cut]
    assert (sequence == sequence[:, :1]).all()
    assert all(math.isfinite(loss) for loss in losses(run))


def test_tool_tokens_get_no_credit():
    """What a tool wrote is part of the context, never of the credit."""
    tokenizer = build_tokenizer()
    ids = torch.tensor([tokenizer("S1 3 + 4 = 7 ; ans 7")["input_ids"]])
    tool = torch.tensor([[1, 0, 0, 0, 1, 1, 1, 1, 1]])
    rollouts, spans = subject.ground(
        tokenizer, ids, torch.ones_like(ids), ids, torch.ones_like(ids), marker="ans", credited_mask=tool
    )
    assert spans[0].reasoning == (0, 7) and spans[0].answer == (8, 9)
    assert rollouts.reasoning_mask.int().tolist() == [[1, 0, 0, 0, 1, 1, 1, 0, 0]]
    assert rollouts.answer_mask.int().tolist() == [[0] * 8 + [1]]


def test_conversational_prompts(tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }} ; {% endfor %}"
        "{% if add_generation_prompt %}S1 {% endif %}"
    )
    rows = [{"prompt": [{"role": "user", "content": f"S1 {i} + 2"}]} for i in range(8)]

    def reward(completions, completion_ids, **kwargs):
        assert all(messages[-1]["role"] == "assistant" for messages in completions)
        return odd_ids(completions, completion_ids)

    run = train(tmp_path, dataset=Dataset.from_list(rows), tokenizer=tokenizer, reward=reward)
    assert run.state.log_history[0]["credit/ess_ratio"] < 1


def test_metrics_and_records(tmp_path):
    run = train(tmp_path, steps=3, credit="oar-p", credit_records=3)
    for entry in run.state.log_history[:3]:
        values = [entry[f"credit/{name}"] for name in CREDIT_METRICS]
        assert all(math.isfinite(value) for value in values)
        assert 0 < entry["credit/ess_ratio"] < 1 and 0 < entry["credit/share_of_step"] < 1
        assert entry["credit/no_answer"] == 1 and entry["credit/suppressed"] + entry["credit/boosted"] <= 1
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1] * 3 + [2] * 3 + [3] * 3
    for record in records:
        count = len(record["tokens"])
        assert count > 0 and record["credit"] == "oar-p"
        for name in ("importance", "weights", "advantages", "probability"):
            assert len(record[name]) == count
        start, end = record["reasoning"]
        assert sum(record["weights"][start:end]) == pytest.approx(end - start, rel=1e-5)
        for weight, advantage in zip(record["weights"], record["advantages"], strict=True):
            assert advantage == pytest.approx(record["advantage"] * weight, rel=1e-5, abs=1e-7)
        assert all(0 < p <= 1 for p in record["probability"])


def test_records_carry_the_rows_reward(tmp_path):
    train(tmp_path, steps=1, credit_records=8, credit="uniform")
    tokenizer = build_tokenizer()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert len(records) == 8
    for record in records:
        ids = tokenizer.convert_tokens_to_ids([token.strip() for token in record["tokens"]])
        assert record["reward"] == pytest.approx(odd_ids(None, [ids])[0], rel=1e-6)


def test_evaluation_keeps_sequence_advantages(tmp_path):
    run = train(tmp_path, steps=1, per_device_eval_batch_size=8)
    metrics = run.evaluate(eval_dataset=prompts(2))
    assert math.isfinite(metrics["eval_loss"])
    assert not any(name.startswith("eval_credit/") for name in metrics)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(credit="oar-x"), "unknown credit strategy 'oar-x'"),
        (dict(credit_outcome="first"), "credit_outcome must be one of last"),
        (dict(credit_q=2.0), "credit_q must lie in"),
        (dict(credit_no_answer="skip"), "credit_no_answer must be one of uniform, probe"),
        (dict(credit_token_budget=0), "credit_token_budget must be at least 1"),
        (dict(credit_records=-1), "credit_records must not be negative"),
        (dict(credit_probe=""), "credit_probe must not be empty"),
        (dict(credit_marker=""), "credit_marker must not be empty"),
    ],
)
def test_bad_settings(tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        OARConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_what_cannot_work_is_refused_before_training(tmp_path):
    def strict(completions):
        return [0.0] * len(completions)

    with pytest.raises(UsageError, match=r"strict must accept \*\*kwargs"):
        train(tmp_path, reward=strict)
    with pytest.raises(UsageError, match="column 'completions'"):
        train(tmp_path, dataset=prompts().add_column("completions", ["x"] * 8))
    with pytest.raises(UsageError, match="'image', but credit=oar-g does not support multimodal"):
        train(tmp_path, dataset=prompts().add_column("image", ["x"] * 8))
    with pytest.raises(UsageError, match="takes an OARConfig, not a GRPOConfig"):
        OARTrainer(build_model(0), odd_ids, GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False))
    model = build_model(0)
    model.get_input_embeddings = lambda: None
    with pytest.raises(UsageError, match="no input embedding module"):
        train(tmp_path, model=model)


def test_options_of_config_and_strategies_are_the_same(tmp_path):
    options = OARConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False).credit_options(step=0)
    import dataclasses

    from tokencredit import Options

    # Training takes the cheap forms: OAR-P is sparse, and OAR-G's labels form goes back once.
    expected = dataclasses.replace(Options(), seed=options.seed, m=8, labels=1, labels_from="sample")
    assert options == expected
