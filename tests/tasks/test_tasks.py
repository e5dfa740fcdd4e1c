"""Facts, problems, reward, truth, and the packaged policies of the built-in tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tokencredit.errors import UsageError
from tokencredit.tasks import HELD_OUT, ROLES, TASKS, TokenTruth, accuracy, get_task
from tokencredit.tasks.arithmetic import FACTS, OPERATORS, Problem, Step, parse_prompt, result
from tokencredit.tasks.policy import VOCABULARY, build_model, build_tokenizer

NAMES = ["query", "serial", "parallel"]
QUERY = "S1 7 + 5 ; S2 3 * 4 ; S3 1 - 9 ; S4 2 + 2 ; ? S3"
SERIAL = "S1 7 + 5 ; S2 * 4 ; S3 - 9 ; S4 + 2 ; ? S4"
PARALLEL = "S1 7 + 5 ; S2 3 * 4 ; S3 1 - 9 ; ? S1 S2 S3"


def roles(prompt: str, completion: str) -> list[str]:
    return [truth.role for truth in get_task("query").annotate(prompt, completion.split())]


def words_where(prompt: str, completion: str, **wanted: object) -> str:
    """The completion's words whose truth has the wanted fields."""
    words = completion.split()
    truths = get_task("query").annotate(prompt, words)
    assert len(truths) == len(words)
    chosen = [
        w for w, t in zip(words, truths, strict=True) if all(getattr(t, k) == v for k, v in wanted.items())
    ]
    return " ".join(chosen)


# Facts and problems


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ((7, "+", 5), 2),  # 12
        ((0, "+", 0), 0),
        ((1, "-", 9), 2),  # -8
        ((9, "-", 1), 8),
        ((3, "*", 4), 4),  # 21 + 12 + 1 = 34
        ((0, "*", 0), 1),
        ((9, "*", 9), 1),  # 63 + 27 + 1 = 91
    ],
)
def test_facts_by_hand(fact: tuple[int, str, int], value: int) -> None:
    assert result(fact) == value


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_gives_every_result_equally_often(operator: str) -> None:
    counts = Counter(result(fact) for fact in FACTS if fact[1] == operator)
    assert counts == dict.fromkeys(range(10), 10)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_error_in_the_first_operand_never_heals(operator: str) -> None:
    assert all(len({result((a, operator, b)) for a in range(10)}) == 10 for b in range(10))


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_uniform(name: str) -> None:
    rows = get_task(name).problems(4000, 0)
    counts = Counter(digit for row in rows for digit in row["answer"].split())
    expected = sum(counts.values()) / 10
    # Chi-squared with 9 degrees of freedom: 27.9 is passed by chance once in a thousand.
    assert sum((counts[str(d)] - expected) ** 2 / expected for d in range(10)) < 27.9


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (QUERY, "2"),
        (SERIAL, "0"),  # 7 + 5 = 2, 2 * 4 = 7 (14 + 12 + 1 = 27), 7 - 9 = 8, 8 + 2 = 0
        (PARALLEL, "2 4 2"),
    ],
)
def test_a_prompt_reads_back_as_the_problem_it_states(prompt: str, answer: str) -> None:
    problem = parse_prompt(prompt)
    assert problem.prompt == prompt
    assert problem.answer == answer


def test_the_path_is_what_the_answer_depends_on() -> None:
    assert parse_prompt(QUERY).path == {2}
    assert parse_prompt(SERIAL).path == {0, 1, 2, 3}
    assert parse_prompt(PARALLEL).path == {0, 1, 2}
    mixed = Problem((Step(1, "+", 1), Step(None, "+", 1), Step(4, "-", 1), Step(None, "*", 2)), asked=(3,))
    assert mixed.path == {2, 3}


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "hello",
        "? S1",
        "S1 7 + 5 ;",
        "S1 7 + 5 ; ?",
        "S1 7 + 5 ; ? S2",
        "S1 7 / 5 ; ? S1",
        "S1 + 5 ; ? S1",
        "S1 77 + 5 ; ? S1",
        "S2 7 + 5 ; ? S1",
        "S1 7 + 5 ; ? S1 ? S1",
        "S1 1 7 + 5 ; ? S1",
        "S1 ; ? S1",
    ],
)
def test_other_prompts_are_refused(prompt: str) -> None:
    with pytest.raises(UsageError):
        get_task("query").annotate(prompt, ["S1"])


@pytest.mark.parametrize("name", NAMES)
def test_problems_depend_on_the_seed_alone(name: str) -> None:
    task = get_task(name)
    rows = task.problems(300, 3)
    assert rows == task.problems(300, 3)
    assert rows[:100] == task.problems(100, 3)
    held_out = {row["prompt"] for row in task.problems(300, HELD_OUT + 3)}
    assert held_out.isdisjoint(row["prompt"] for row in rows)
    assert all(parse_prompt(row["prompt"]).answer == row["answer"] for row in rows)
    assert len({row["prompt"] for row in rows}) == 300


def test_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'queue'.*query, serial, parallel"):
        get_task("queue")


def test_problems_and_truth_do_not_load_transformers() -> None:
    program = (
        "import sys, tokencredit.tasks as t; q = t.get_task('query'); r = q.problems(1, 0)[0]; "
        "q.annotate(r['prompt'], ['ans']); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# Reward


@pytest.mark.parametrize(
    ("completion", "gold", "reward"),
    [
        ("S1 hmm 7 + 5 = 2 ; ans 2", "2", 1.0),
        ("S1 hmm 7 + 5 = 2 ; ans 3", "2", 0.0),
        ("ans 2 4 2", "2 4 2", 1.0),
        ("ans 2 4", "2 4 2", 0.0),
        ("ans 2 4 2 2", "2 4 2", 0.0),
        ("ans 3 ans 2", "2", 1.0),  # the last one counts
        ("ans 2 ans", "2", 0.0),
        ("ans 2 ;", "2", 0.0),
        ("2", "2", 0.0),
        ("", "2", 0.0),
    ],
)
def test_reward(completion: str, gold: str, reward: float) -> None:
    rewarded = get_task("query").reward(
        prompts=["p"], completions=[completion], answer=[gold], trainer_state=None
    )
    assert rewarded == [reward]


def test_reward_is_named_for_trl() -> None:
    assert get_task("serial").reward.__name__ == "accuracy"


# Truth


def test_query_by_hand() -> None:
    completion = "S1 hmm 7 + 5 = 2 ; S2 3 * 4 = 5 ; S3 so 1 - 9 = 2 ; S4 2 + 2 = 4 ; ans 2 <eos>"
    step = "operand operator operand delimiter"
    assert " ".join(r.replace(" ", "_") for r in roles(QUERY, completion)) == (
        f"delimiter filler {step} other_result delimiter "
        f"delimiter {step} other_result delimiter "
        f"delimiter filler {step} queried_result delimiter "
        f"delimiter {step} other_result delimiter delimiter answer delimiter"
    )
    assert words_where(QUERY, completion, on_path=True) == "1 - 9 2 2"
    assert words_where(QUERY, completion, right=False) == "S2 3 * 4 = 5 ;"
    assert words_where(QUERY, completion, right=None) == "ans 2 <eos>"


def test_a_chain_blames_the_step_that_errs_and_not_those_that_follow() -> None:
    completion = "S1 hmm 7 + 5 = 3 ; S2 so 3 * 4 = 4 ; S3 let 5 - 9 = 6 ; S4 me 6 + 2 = 8 ; ans 8"
    assert words_where(SERIAL, completion, right=True) == "S2 so 3 * 4 = 4 ; S4 me 6 + 2 = 8 ;"
    # Step 3 computes rightly, but from 5, where the result before it is 4.
    assert words_where(SERIAL, completion, right=False) == "S1 hmm 7 + 5 = 3 ; S3 let 5 - 9 = 6 ;"
    assert words_where(SERIAL, completion, on_path=True) == "7 + 5 3 3 * 4 4 5 - 9 6 6 + 2 8 8"
    assert words_where(SERIAL, completion, role="queried result") == "8"
    assert words_where(SERIAL, completion, role="other result") == "3 4 6"


def test_parallel_has_everything_on_the_path() -> None:
    completion = "S1 hmm so 7 + 5 = 2 ; S2 well 3 * 4 = 4 ; S3 1 - 9 = 2 ; ans 2 4 2"
    assert words_where(PARALLEL, completion, role="queried result") == "2 4 2"
    assert words_where(PARALLEL, completion, role="answer", on_path=True) == "2 4 2"
    assert words_where(PARALLEL, completion, on_path=False) == "S1 hmm so = ; S2 well = ; S3 = ; ans"
    assert words_where(PARALLEL, completion, right=False) == ""


def test_a_step_that_copies_the_wrong_operands_is_wrong() -> None:
    assert words_where(QUERY, "S1 7 + 6 = 3 ; ans 3", right=False) == "S1 7 + 6 = 3 ;"


def test_a_step_written_twice_counts_once_on_the_path() -> None:
    completion = "S3 1 - 9 = 5 ; S3 1 - 9 = 2 ; ans 2 S3 1 - 9 = 7 ;"
    assert words_where(QUERY, completion, on_path=True) == "1 - 9 2 2"
    assert [t.on_path for t in get_task("query").annotate(QUERY, completion.split())[:7]] == [False] * 7


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "ans",
        "ans ans",
        "S1",
        "S1 S2 S3",
        "S3 1 - 9 =",
        "S3 1 - 9 = ; ans",
        "S3 1 - 9 = hmm 2 ; ans 2",
        "S3 = = = ; ans 2",
        "; ; = 2 + ? <unk> <pad> ans hmm 2",
        "1 - 9 = 2",
        "S4 2 + 2 = 4",
        "S2 7 * 4 = 1",
        "Ünïcode \ufffd ans 2",
    ],
)
@pytest.mark.parametrize("prompt", [QUERY, SERIAL, PARALLEL])
def test_malformed_completions_are_annotated(prompt: str, completion: str) -> None:
    tokens = completion.split()
    truths = get_task("query").annotate(prompt, tokens)
    assert len(truths) == len(tokens)
    assert all(truth.role in ROLES for truth in truths)


def test_an_unfinished_step_is_neither_right_nor_wrong() -> None:
    assert words_where(QUERY, "S3 hmm 1 - 9 =", right=None) == "S3 hmm 1 - 9 ="
    assert words_where(QUERY, "S3 hmm 1 - 9 =", on_path=True) == "1 - 9"


def test_a_label_that_the_problem_lacks_is_wrong_and_off_the_path() -> None:
    assert words_where(PARALLEL, "S4 2 + 2 = 4 ; ans 4", right=False) == "S4 2 + 2 = 4 ;"
    assert words_where(PARALLEL, "S4 2 + 2 = 4 ; ans 4", on_path=True) == "4"


def test_white_space_around_tokens_does_not_matter() -> None:
    tokens = ["S3", " 1", " -", " 9", " =", " 2", " ;", " ans", " 2", ""]
    truths = get_task("query").annotate(QUERY, tokens)
    assert truths[5] == TokenTruth("queried result", True, True)
    assert truths[-1] == TokenTruth("delimiter", False, None)


def test_any_run_of_words_is_annotated() -> None:
    generator = torch.Generator().manual_seed(0)
    for row in get_task("serial").problems(20, 0):
        for _ in range(20):
            ids = torch.randint(len(VOCABULARY), (40,), generator=generator).tolist()
            truths = get_task("serial").annotate(row["prompt"], [VOCABULARY[i] for i in ids])
            assert len(truths) == 40


# Tokenizer, model and packaged policies


def test_the_tokenizer_takes_and_gives_words_with_single_spaces() -> None:
    tokenizer = build_tokenizer()
    text = f"{QUERY} S1 hmm so 7 + 5 = 2 ; ans 2 4"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.split())  # nothing added at either end
    assert tokenizer.decode(ids) == text
    assert (
        tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True)
        == text
    )
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert tokenizer("S1 gibberish")["input_ids"][1] == tokenizer.unk_token_id


@pytest.mark.parametrize("name", NAMES)
def test_the_preset_leaves_room_for_the_longest_completion(name: str) -> None:
    task = get_task(name)
    tokens = {"query": 4 * 10 + 3, "serial": 4 * 11 + 3, "parallel": 3 * (task.world.filler[1] + 7) + 5}[name]
    assert task.world.longest_completion == tokens < task.preset["max_completion_length"]
    model = build_model(0)
    assert 150_000 < model.num_parameters() < 250_000


@pytest.mark.parametrize("name", NAMES)
def test_packaged_policies_are_small_and_as_accurate_as_they_say(name: str) -> None:
    task = get_task(name)
    path = task.policy_path()
    assert sum(file.stat().st_size for file in path.iterdir()) < 1_000_000
    says = json.loads((path / "warm_start.json").read_text())
    assert (says["task"], says["seed"]) == (name, 0)
    model, tokenizer = task.load_policy()
    state = torch.get_rng_state()
    measured = accuracy(model, tokenizer, task, n=128, seed=5)
    # Three standard errors of 128 problems.
    assert measured == pytest.approx(says["accuracy"], abs=0.13)
    assert torch.equal(state, torch.get_rng_state())
    assert not model.training


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gain"), [("query", 0.12), ("serial", 0.2), ("parallel", 0.15)])
def test_reinforcement_mends_what_was_badly_taught(name: str, gain: float, tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    task = get_task(name)
    model, tokenizer = task.load_policy()
    before = accuracy(model, tokenizer, task)
    settings = {**task.preset, "save_strategy": "no"}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=task.reward,
        args=GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings),
        train_dataset=Dataset.from_list(task.problems(1000, 0)),
        processing_class=tokenizer,
    )
    trainer.train()
    assert accuracy(model, tokenizer, task) > before + gain


def test_there_are_three_tasks() -> None:
    assert list(TASKS) == NAMES
    assert all(task.name == name and task.marker == "ans" for name, task in TASKS.items())
