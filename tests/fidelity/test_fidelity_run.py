"""All contenders over one subject: strategies that know the truth get full marks, and their reverse none."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tokencredit.credit import STRATEGIES, Credit, Options, Strategy
from tokencredit.errors import UsageError
from tokencredit.fidelity.baselines import BASELINES
from tokencredit.fidelity.plan import Contender, Plan, with_baselines
from tokencredit.fidelity.run import measure, result


def truths(one, rollouts):
    """Every token's truth, read off the ids without the package's own records."""
    for prompt, mask, ids, real in zip(
        rollouts.prompt_ids,
        rollouts.prompt_mask,
        rollouts.completion_ids,
        rollouts.completion_mask,
        strict=True,
    ):
        tokens = one.tokenizer.convert_ids_to_tokens(ids[real].tolist())
        yield one.task.annotate(one.tokenizer.decode(prompt[mask]), tokens)


def knowing(one, sign: float) -> Strategy:
    """Importance 2 on the path and 1 off it, or the other way round."""

    def function(policy, rollouts, options):
        importance = torch.zeros(rollouts.shape)
        for row, truth in enumerate(truths(one, rollouts)):
            importance[row, : len(truth)] = torch.tensor(
                [1.5 + sign * (0.5 if t.on_path else -0.5) for t in truth]
            )
        return Credit(importance=importance * rollouts.reasoning_mask)

    return Strategy(function, "knows the path")


def blaming(one, sign: float) -> Strategy:
    """A negative bonus for the step that went wrong, or for all others."""

    def function(policy, rollouts, options):
        bonus = torch.zeros(rollouts.shape)
        for row, truth in enumerate(truths(one, rollouts)):
            wrong = torch.tensor([t.on_path and t.right is False for t in truth])
            bonus[row, : len(truth)] = -sign * wrong.float()
        return Credit(bonus=bonus * rollouts.reasoning_mask)

    return Strategy(function, "knows the step", additive=True)


def silent(more: int, what: str) -> None:
    pass


def plan(*contenders: Contender, **settings) -> Plan:
    options = Options(pad_token_id=0)
    return Plan(with_baselines(contenders, options), options, **settings)


@pytest.mark.parametrize("task", ["query", "serial", "parallel"])
def test_full_marks_and_none(subject, task):
    one = subject(task, problems=10)
    contenders = [
        Contender("knows", knowing(one, 1), Options()),
        Contender("reverse", knowing(one, -1), Options()),
        Contender("blames", blaming(one, 1), Options()),
        Contender("spares", blaming(one, -1), Options()),
    ]
    chosen = plan(*contenders, reference=False, draws=1)
    found = result(one, chosen, measure(one, chosen, silent), seed=0)
    assert 0 < found["failed"] < 10 and found["measured"] <= found["completions"] == 10
    metrics = {name: each["metrics"] for name, each in found["strategies"].items()}
    for name in ("path_auroc", "path_ap", "path_precision"):
        assert metrics["knows"][name]["value"] == 1.0
        assert metrics["reverse"][name]["value"] < metrics["uniform"][name]["value"] + 1e-9
    assert metrics["reverse"]["path_auroc"]["value"] == 0.0
    assert metrics["uniform"]["path_auroc"]["value"] == 0.5
    assert (metrics["blames"]["step_auroc"]["value"], metrics["blames"]["step_ap"]["value"]) == (1.0, 1.0)
    assert metrics["spares"]["step_auroc"]["value"] == 0.0
    assert metrics["uniform"]["step_auroc"]["value"] == 0.5
    assert metrics["blames"]["step_auroc"]["n"] <= found["failed"]


def test_reference_draws_and_baselines(subject):
    one = subject(problems=5)
    pad = Options(pad_token_id=0)
    contenders = [Contender(name, STRATEGIES[name], pad) for name in ("oar-g", "oar-p")]
    labels = dataclasses.replace(pad, gradient="labels", labels=1)
    for name, labels_from in (("top", "top"), ("sampled", "sample")):
        options = dataclasses.replace(labels, labels_from=labels_from)
        contenders.append(Contender(name, STRATEGIES["oar-g"], options))
    chosen = plan(*contenders, draws=3, batch_size=2)
    found = result(one, chosen, measure(one, chosen, silent), seed=0)
    strategies = found["strategies"]
    assert list(strategies) == ["oar-g", "oar-p", "top", "sampled", *BASELINES]
    exact = strategies["oar-p"]["metrics"]
    assert exact["exact_spearman"]["value"] == pytest.approx(1.0)
    assert exact["exact_mean_dw"]["value"] == 0.0
    assert strategies["oar-g"]["metrics"]["exact_spearman"]["value"] < 1
    drawing = {name: each["draws"] for name, each in strategies.items()}
    assert drawing == {name: name in ("oar-g", "sampled", "random") for name in strategies}
    assert strategies["oar-g"]["metrics"]["draws_spearman"]["n"] == found["measured"]
    assert "draws_spearman" not in exact
    assert all(each["seconds_per_completion"] > 0 for each in strategies.values())
    assert strategies["random"]["metrics"]["deletion_over_random"]["value"] == 0
    for other in ("random", "position"):
        areas = [strategies[name]["metrics"]["deletion_area"]["value"] for name in ("oar-p", other)]
        assert exact[f"deletion_over_{other}"]["value"] == pytest.approx(areas[0] - areas[1])


def test_rows_and_records(subject):
    one = subject(problems=4)
    chosen = plan(reference=False, draws=1, kept=2, batch_size=3)
    found = measure(one, chosen, silent)
    names = [contender.name for contender in chosen.contenders]
    assert sorted((row["row"], row["credit"]) for row in found.rows) == sorted(
        (row, name) for row in range(4) for name in names
    )
    assert {record["row"] for record in found.records} == {0, 1}
    for record in found.records:
        assert len(record["roles"]) == len(record["on_path"]) == len(record["tokens"])
    for row in found.rows:
        shares = [role["importance_share"] for role in row["by_role"].values()]
        assert sum(shares) == pytest.approx(1.0)


def test_the_batch_size_changes_nothing(subject):
    """Greedily written, for batches are sampled from seeds of their own."""
    one = subject(problems=4)
    greedy = dataclasses.replace(one, decoding=dataclasses.replace(one.decoding, temperature=0.0))
    rows = {}
    for size in (3, 64):
        found = measure(greedy, plan(batch_size=size), silent).rows
        rows[size] = sorted(found, key=lambda row: (row["row"], row["credit"]))
    for small, large in zip(rows[3], rows[64], strict=True):
        figures = [
            {k: math.nan if v is None else v for k, v in row["figures"].items()} for row in (small, large)
        ]
        assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=1e-3, nan_ok=True)


def test_progress_reaches_the_total(subject):
    one, told = subject(problems=5), []
    chosen = plan(reference=False, draws=1, batch_size=2)
    measure(one, chosen, lambda more, what: told.append(more))
    assert sum(told) == one.completions * chosen.steps


def test_batches_that_were_kept_are_not_measured_again(subject):
    one, kept = subject(problems=5), {}
    chosen = plan(reference=False, batch_size=2)
    whole = measure(one, chosen, silent, keep=kept.__setitem__)
    assert sorted(kept) == [0, 1, 2]
    part, again, told = {0: kept[0], 2: kept[2]}, {}, []
    found = measure(one, chosen, lambda more, what: told.append(more), part, again.__setitem__)
    assert list(again) == [1]
    assert sum(told) == one.completions * chosen.steps
    assert (found.rows, found.records, found.drawing) == (whole.rows, whole.records, whole.drawing)
    assert (found.written, found.failed) == (whole.written, whole.failed)
    assert list(kept) == [0, 1, 2]


def test_nothing_to_measure_and_other_words(subject):
    one = subject()
    short = dataclasses.replace(one, decoding=dataclasses.replace(one.decoding, max_new_tokens=2))
    with pytest.raises(UsageError, match=r"for query has an answer.*--probe"):
        measure(short, plan(), silent)
    asked = dataclasses.replace(
        short, decoding=dataclasses.replace(one.decoding, max_new_tokens=1), probe="ans"
    )
    with pytest.raises(UsageError, match="has two tokens of reasoning") as refusal:
        measure(asked, plan(), silent)
    assert "--probe" not in str(refusal.value)
    prompts = [ids[:-1] for ids in one.prompts]  # what is asked is cut off
    with pytest.raises(UsageError, match="not the words of the task query"):
        measure(dataclasses.replace(one, prompts=prompts), plan(), silent)
