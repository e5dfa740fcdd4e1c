"""OAR-G in the graph of the loss against the separate pass with the same options."""

from __future__ import annotations

import dataclasses
import json
import logging
import math

import pytest
import torch
from torch import nn
from trl.trainer.utils import add_fused_lm_head

import tokencredit.trl as subject
from families import FAMILIES, build, with_lora
from models import gpt2, llama, ragged, rows_of, with_probe
from test_trl import advantages_of, losses, parameters, prompts, train
from tokencredit import Options, UsageError
from tokencredit.credit import TokenCredit, assign, get_strategy
from tokencredit.credit.options import OUTCOMES, SALIENCIES
from tokencredit.graph import GraphReader
from tokencredit.policy import Policy
from tokencredit.tasks.policy import build_model
from tokencredit.trl import OARConfig, OARTrainer

OAR_G = get_strategy("oar-g")
LABELS = [("top", 1), ("top", 3), ("sample", 1), ("sample", 3)]
FIELDS = [field.name for field in dataclasses.fields(TokenCredit)]


def options(**changes) -> Options:
    return Options(**{"gradient": "labels", "labels": 3, "seed": 3, "step": 2, **changes})


def forward(model, rollouts, counted=False):
    """The loss's forward, as TRL makes it: the log-probabilities of the completions' tokens, (B, T).

    TRL leaves the positions to the model, which may count padding. Rotations by other angles are the same up to
    float32, in which models compute them; with `counted` positions everything else can be compared in float64.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "forward" not in vars(base):
        add_fused_lm_head(base, outputs=("log_probs", "entropy"))
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)
    mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], 1).long()
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, : rollouts.prompt_ids.shape[1]] = -100
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if counted else {}
    output = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, **positions)
    return output.log_probs[:, -rollouts.shape[1] :]


def in_graph(model, rollouts, chosen, counted=True) -> tuple[TokenCredit, torch.Tensor]:
    """The credit, and the log-probabilities of the pass that it was read from."""
    found = []
    with GraphReader(model).reading(
        rollouts, lambda policy: found.append(assign(OAR_G, policy, rollouts, chosen))
    ):
        logps = forward(model, rollouts, counted)
    (credit,) = found
    return credit, logps


def check_equal(found: TokenCredit, expected: TokenCredit, tolerance: float) -> None:
    """Importance relative to each row's largest, weights as they are, gates and rows the same."""
    largest = expected.importance.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    assert ((found.importance - expected.importance) / largest).abs().max() < tolerance
    assert (found.weights - expected.weights).abs().max() < 100 * tolerance
    for name in ("suppressed", "boosted", "rows"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.fixture
def rollouts():
    """Prompts with padding on the left, completions and answers of many lengths, rows with nothing to read."""
    return ragged()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize(("labels_from", "labels"), LABELS)
@pytest.mark.parametrize("saliency", SALIENCIES)
def test_equals_the_separate_pass(rollouts, outcome, labels_from, labels, saliency):
    chosen = options(outcome=outcome, labels_from=labels_from, labels=labels, saliency=saliency)
    model = llama().train()
    found, _ = in_graph(model, rollouts, chosen)
    expected = assign(OAR_G, Policy(model), rollouts, chosen)
    assert expected.rows.sum() == 3 and expected.importance[expected.rows].amax(1).min() > 0
    check_equal(found, expected, 1e-9)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"])
def test_families(rollouts, family):
    """Soft caps after the head, scaled embeddings, windows, mixtures, linear attention."""
    # Padding on the left makes eager attention, which Gemma 2 asks for, NaN in float64: in the loss itself.
    model = build(family, dtype=torch.float32 if family == "gemma2" else torch.float64)
    assert GraphReader(model).obstacle() is None
    expected = assign(OAR_G, Policy(model), rollouts, options())
    exact = family not in ("gemma2", "qwen3-next")  # whose linear attention computes in float32 anyway
    check_equal(in_graph(model, rollouts, options())[0], expected, 1e-9 if exact else 1e-5)
    check_equal(in_graph(model, rollouts, options(), counted=False)[0], expected, 1e-5)


def test_absolute_positions(rollouts):
    """TRL leaves the positions of left-padded rows to the model; one that counts padding reads other positions."""
    model = gpt2(dropout=0.0)
    full = rows_of(rollouts, [2])  # the longest prompt: no padding
    check_equal(
        in_graph(model, full, options(), counted=False)[0],
        assign(OAR_G, Policy(model), full, options()),
        1e-9,
    )


@pytest.mark.parametrize("tied", [True, False])
def test_lora(rollouts, tied):
    pytest.importorskip("peft")
    model = with_lora(
        build("llama", dtype=torch.float64, tied=tied), lora_dropout=0.0, target_modules=["q_proj"]
    )
    assert not model.get_input_embeddings().weight.requires_grad
    found, logps = in_graph(model, rollouts, options())
    check_equal(found, assign(OAR_G, Policy(model), rollouts, options()), 1e-9)
    logps.sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "lora_B" in name)


def test_bfloat16(rollouts):
    """In half precision the head computes in float32 here too."""
    model = build("llama", dtype=torch.bfloat16, seed=7)
    found, _ = in_graph(model, rollouts, options())
    expected = assign(OAR_G, Policy(model), rollouts, options())
    largest = expected.importance.amax(1, keepdim=True).clamp(min=1e-30)
    assert ((found.importance - expected.importance) / largest).abs().max() < 0.1


def test_a_part_of_the_passes_rows(rollouts):
    """Rows are found by their keys; a row's labels are its own in any company."""
    model, found = llama(), []
    whole, _ = in_graph(model, rollouts, options(labels_from="sample"))
    some = torch.tensor([6, 2, 0])

    def then(policy):
        found.append(assign(OAR_G, policy, rollouts.select(some), options(labels_from="sample")))

    with GraphReader(model).reading(rollouts, then):
        forward(model, rollouts, counted=True)
    for name in FIELDS:
        torch.testing.assert_close(getattr(found[0], name), getattr(whole, name)[some], rtol=1e-9, atol=1e-12)


def test_the_losses_gradients_are_those_of_the_loss_alone(rollouts):
    model = llama()
    weights = assign(OAR_G, Policy(model), rollouts, options()).weights
    (forward(model, rollouts, counted=True) * weights).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    credit, logps = in_graph(model, rollouts, options())
    assert not credit.weights.requires_grad and all(p.grad is None for p in model.parameters())
    (logps * credit.weights).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-12)


def test_rows_that_need_nothing_cost_nothing(rollouts, monkeypatch):
    """Without an outcome to read or without advantage there is neither a head nor a backward."""
    calls = []
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: calls.append(args))
    monkeypatch.setattr(GraphReader, "logits", lambda *args: calls.append(args))
    credit, _ = in_graph(llama(), rows_of(rollouts, [3, 4, 6]), options())
    assert not calls and (credit.weights == 1).all()


def hooks(model) -> list[int]:
    counts = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [*counts, *("forward" in vars(m) for m in model.modules())]


def test_nothing_stays_behind(rollouts):
    model, reader = llama(), None
    forward(model, rollouts)  # puts the fused head in
    before = hooks(model)
    in_graph(model, rollouts, options())
    assert hooks(model) == before
    reader = GraphReader(model)

    def fails(policy):
        raise KeyError("in the credit")

    with pytest.raises(KeyError, match="in the credit"), reader.reading(rollouts, fails):
        forward(model, rollouts)
    assert hooks(model) == before
    with pytest.raises(KeyError, match="in the loss"), reader.reading(rollouts, fails):
        raise KeyError("in the loss")
    assert hooks(model) == before
    assert reader.obstacle() is None and hooks(model) == before


def test_another_pass_than_expected_is_refused(rollouts):
    model = llama()
    with pytest.raises(RuntimeError, match="not its batch"), GraphReader(model).reading(rollouts, print):
        forward(model, rows_of(rollouts, [0, 1]))
    probed = with_probe(rollouts, [0])
    with pytest.raises(UsageError, match="a row with a probe"):
        in_graph(model, probed, options())


class Twice(nn.Module):
    """Embeds its input once more beside the model."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        self.config, self.base_model = model.config, model.base_model
        self.get_input_embeddings = model.get_input_embeddings
        self.get_output_embeddings = model.get_output_embeddings

    def forward(self, input_ids, **kwargs):
        self.get_input_embeddings()(input_ids)
        return self.model(input_ids, **kwargs)


def test_obstacles():
    plain = llama().train()
    assert GraphReader(plain).obstacle() is None
    plain.gradient_checkpointing_enable()
    assert "gradient checkpointing is on" in GraphReader(plain).obstacle()
    for model in (llama(dropout=0.1), gpt2(dropout=0.1)):
        assert "dropout is on" in GraphReader(model.train()).obstacle()
        assert GraphReader(model.eval()).obstacle() is None
    assert "can't be found again" in GraphReader(Twice(llama())).obstacle()


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch):
    """A random policy gives no answers: each completion's tokens before its last count as one, of 1 to 3 tokens; the
    second row of each generation has none."""
    original = subject.ground

    def grounded(tokenizer, prompt_ids, prompt_mask, completion_ids, completion_mask, **kwargs):
        found, spans = original(tokenizer, prompt_ids, prompt_mask, completion_ids, completion_mask, **kwargs)
        rows, width = completion_ids.shape
        sizes = 1 + torch.arange(rows) % 3
        sizes[1] = 0
        start = (completion_mask.long().sum(1) - 1 - sizes).clamp(min=0)[:, None]
        place, real = torch.arange(width)[None], completion_mask.bool()
        answer = (place >= start) & (place < start + sizes[:, None]) & real
        masks = dict(reasoning_mask=(place < start) & real, answer_mask=answer)
        if found.probe_mask is not None:
            masks["probe_mask"] = found.probe_mask & ~answer.any(1, keepdim=True)
        return dataclasses.replace(found, **masks), spans

    monkeypatch.setattr(subject, "ground", grounded)


@pytest.fixture
def given(monkeypatch) -> list[torch.Tensor]:
    return advantages_of(monkeypatch)


# Without Adam, which makes as large a step of a gradient that is all rounding as of any other.
SETTINGS = dict(credit_no_answer="uniform", credit_labels=2, optim="sgd", learning_rate=0.1)
SEPARATE = dict(credit_stage="rollout", credit_gradient="labels")


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(credit_labels_from="sample", credit_outcome="answer_kl", beta=0.04, loss_type="grpo"),
        dict(per_device_train_batch_size=4, gradient_accumulation_steps=2),
        dict(per_device_train_batch_size=4, gradient_accumulation_steps=4, steps_per_generation=2),
        dict(credit_no_answer="probe"),
    ],
)
def test_training_is_that_of_the_separate_pass(tmp_path, answers, given, settings):
    separate = train(tmp_path / "a", **{**SETTINGS, **SEPARATE, **settings})
    expected, given[:] = list(given), []
    ours = train(tmp_path / "b", **{**SETTINGS, "credit_stage": "loss", **settings})
    assert len(given) == len(expected)
    for found, before in zip(given, expected, strict=True):
        assert found.shape == before.shape and not found.requires_grad
        torch.testing.assert_close(found, before, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        given[0], expected[0], rtol=1e-5, atol=1e-5
    )  # before rounding moves the policies
    torch.testing.assert_close(losses(ours), losses(separate), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters(ours), parameters(separate), rtol=1e-5, atol=1e-6)
    names = [name for name in separate.state.log_history[0] if name.startswith("credit/")]
    assert len(names) == 10
    for before, after in zip(separate.state.log_history[:2], ours.state.log_history[:2], strict=True):
        for name in names:
            assert math.isfinite(after[name])
            if "seconds" not in name and "share" not in name:
                assert after[name] == pytest.approx(before[name], abs=1e-4)
        assert 0 < after["credit/share_of_step"] < 1
    first, second = (
        [json.loads(line) for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        for name in ("a", "b")
    )
    assert len(first) == len(second) > 0
    for before, after in zip(first, second, strict=True):
        assert (before["step"], before["row"], before["reward"]) == (
            after["step"],
            after["row"],
            after["reward"],
        )
        assert before["tokens"] == after["tokens"]
        assert after["weights"] == pytest.approx(before["weights"], abs=1e-4)
    assert any(any(record["importance"]) for record in second)


def test_lora_and_bf16_train(tmp_path, answers):
    peft = pytest.importorskip("peft")

    def adapted():
        torch.manual_seed(0)
        return peft.get_peft_model(build_model(0), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))

    separate = train(tmp_path / "a", model=adapted(), steps=1, **SETTINGS, **SEPARATE)
    ours = train(tmp_path / "b", model=adapted(), steps=1, credit_stage="loss", **SETTINGS)
    torch.testing.assert_close(parameters(ours), parameters(separate), rtol=1e-4, atol=1e-6)
    for name in ("rollout", "loss"):
        settings = {**SETTINGS, "credit_stage": name, "bf16": True, "credit_records": 8, "steps": 1}
        run = train(tmp_path / name, **settings)
        assert run._policy.half_precision and all(math.isfinite(loss) for loss in losses(run))
    weights = [
        [json.loads(line)["weights"] for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        for name in ("rollout", "loss")
    ]
    for before, after in zip(*weights, strict=True):
        assert after == pytest.approx(before, abs=0.3)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(gradient_checkpointing=True), "gradient checkpointing is on"),
        (dict(num_iterations=2), "more than one optimizer step"),
        (dict(steps_per_generation=2, per_device_train_batch_size=4), "more than one optimizer step"),
        (dict(credit_probe_always=True), "every row is asked by a probe"),
    ],
)
def test_the_separate_pass_where_the_loss_is_not_right(tmp_path, answers, given, caplog, settings, reason):
    train(tmp_path / "a", **{**SETTINGS, **SEPARATE, **settings})
    expected, given[:] = list(given), []
    with caplog.at_level(logging.WARNING, logger="tokencredit.trl"):
        train(tmp_path / "b", **{**SETTINGS, "credit_stage": "loss", **settings})
    assert all(torch.equal(found, before) for found, before in zip(given, expected, strict=True))
    (message,) = [record.getMessage() for record in caplog.records if record.name == "tokencredit.trl"]
    assert message.startswith("credit_stage=loss: ") and reason in message and "a separate pass" in message


def test_evaluation_is_untouched(tmp_path, answers):
    run = train(tmp_path, steps=1, per_device_eval_batch_size=8, credit_stage="loss", **SETTINGS)
    metrics = run.evaluate(eval_dataset=prompts(2))
    assert math.isfinite(metrics["eval_loss"])
    assert not any(name.startswith("eval_credit/") for name in metrics)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(credit_stage="late"), "credit_stage must be one of rollout, loss, not 'late'"),
        (
            dict(credit_stage="loss", credit="oar-p"),
            "credit_stage=loss works with oar-g, not with credit=oar-p",
        ),
        (dict(credit_stage="loss", credit_gradient="noise"), "credit_stage=loss has no noise"),
    ],
)
def test_refusals(tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        OARConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)


def test_labels_are_what_the_loss_stage_takes(tmp_path):
    config = OARConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, credit_stage="loss")
    assert config.credit_options(step=0).gradient == "labels"
    assert OARTrainer._compute_loss is not subject.GRPOTrainer._compute_loss
