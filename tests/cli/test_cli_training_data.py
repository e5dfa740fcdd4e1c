"""What a run is rewarded for."""

from __future__ import annotations

import json

import pytest

from tokencredit.cli.arguments import parse_arguments
from tokencredit.cli.training_data import (
    bound_rewards,
    build_dataset,
    check_enough,
    checked_lengths,
    load_rows,
    reward_functions,
)
from tokencredit.errors import UsageError
from tokencredit.tasks import get_task

TEMPLATE = (
    "{{ messages[0]['content'] }}{% if add_generation_prompt and thinks is not false %}\n<think>\n{% endif %}"
)
PROMPT = [{"role": "user", "content": "2 + 3 = ?"}]
UNFINISHED = "2 + 3 is \\boxed{5} let me check"
DATA = ("--dataset", "rows.jsonl", "--model_name_or_path", "m")


@pytest.fixture
def tokenizer():
    _, tokenizer = get_task("query").load_policy()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def rewarded(tokenizer, text: str, *flags: str) -> float | None:
    (reward,) = bound_rewards([], parse_arguments([*DATA, *flags]), tokenizer)
    assert reward.__name__ == "accuracy_reward"
    (value,) = reward([[{"role": "assistant", "content": text}]], ["5"], prompts=[PROMPT])
    return value


def test_an_answer_in_an_unfinished_think_block_earns_nothing(tokenizer):
    """The template opens the block, so that neither the prompt's messages nor the completion show it."""
    assert rewarded(tokenizer, UNFINISHED) == 0.0
    assert rewarded(tokenizer, UNFINISHED + "</think> \\boxed{5}") == 1.0


def test_templates_that_open_no_think_block(tokenizer):
    assert rewarded(tokenizer, UNFINISHED, "--chat_template_kwargs", '{"thinks": false}') == 1.0
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert rewarded(tokenizer, UNFINISHED) == 1.0
    tokenizer.chat_template = None
    assert rewarded(tokenizer, UNFINISHED) == 1.0


def test_the_marker_that_credit_reads_is_the_one_that_is_judged(tokenizer):
    tokenizer.chat_template = None
    assert rewarded(tokenizer, "2 + 3 = 5") == 0.0
    assert rewarded(tokenizer, "2 + 3 = 5", "--credit_marker", "=") == 1.0
    assert rewarded(tokenizer, "\\boxed{5}", "--credit_marker", "=") == 0.0


def test_completions_whose_thinking_is_already_taken_out(tokenizer):
    tokenizer.response_template = {"fields": {}}
    assert rewarded(tokenizer, "\\boxed{5}") == 1.0


def test_a_task_has_its_own_reward(tokenizer):
    for flags in ((), ("--reward_funcs", "accuracy")):
        arguments = parse_arguments(["--task", "query", *flags])
        assert bound_rewards(reward_functions(arguments), arguments, tokenizer) == [get_task("query").reward]


def test_our_rewards_by_name(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "def length(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    names = ("accuracy", "format", "my_rewards.length", "think_format_reward")
    arguments = parse_arguments([*DATA, "--no_answer", "none", "--reward_funcs", *names])
    tokenizer.chat_template = None
    rewards = bound_rewards(reward_functions(arguments), arguments, tokenizer)
    assert [r.__name__ for r in rewards] == [
        "accuracy_reward",
        "format_reward",
        "length",
        "think_format_reward",
    ]
    texts = ["\\boxed{5}", "the answer is 5", "hm", "\\boxed{6}"]
    assert rewards[0](texts, ["5"] * 4) == [1.0, 1.0, None, 0.0]
    assert rewards[1](texts) == [1.0, 0.0, 0.0, 1.0]


def test_what_rewards_need_of_the_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "2 + 3?", "answer": "So it is\n#### 5", "tolerance": 0.1, "level": 3}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    built = {}
    for names in (
        "",
        "accuracy",
        "format",
        "trl.rewards.think_format_reward",
        "accuracy trl.rewards.think_format_reward",
    ):
        arguments = parse_arguments([*DATA, *(["--reward_funcs", *names.split()] if names else [])])
        _, tokenizer = get_task("query").load_policy()
        (built[names],) = build_dataset(load_rows(arguments), arguments, tokenizer)
    asked = "2 + 3?\n\nPut your final answer in \\boxed{}."
    assert built[""] == built["accuracy"] == {"answer": "5", "tolerance": "0.1", "prompt": asked}
    assert built["format"]["prompt"] == asked
    assert built["trl.rewards.think_format_reward"] == {**row, "tolerance": "0.1"}
    assert built["accuracy trl.rewards.think_format_reward"] == {**built[""], "level": 3}


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_prompts_must_leave_room_for_the_completion(template):
    """The model reads 128 tokens; each word is one."""
    model, tokenizer = get_task("query").load_policy()
    tokenizer.chat_template = template
    arguments = parse_arguments([*DATA, "--max_completion_length", "100", "--prompt_template", "{problem}"])
    # The template's "<think>" is one token more.
    fits = 28 if template is None else 27
    short = [{"problem": "S1 " * fits, "answer": "1"}]
    dataset = build_dataset(short, arguments, tokenizer)
    assert checked_lengths(dataset, arguments, model, tokenizer) is dataset
    long = build_dataset([*short, {"problem": "S1 " * (fits + 1), "answer": "1"}], arguments, tokenizer)
    with pytest.raises(
        UsageError, match=r"row 2 of rows\.jsonl has a prompt of 29 tokens.*reads 128 at most"
    ):
        checked_lengths(long, arguments, model, tokenizer)


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (("--num_train_epochs", "2"), 1),
        (("--max_steps", "1"), None),  # ends before
        (("--max_steps", "2"), 1),
        (("--max_steps", "2", "--num_iterations", "2"), None),
        (("--max_steps", "4", "--num_iterations", "2"), 1),
        (("--gradient_accumulation_steps", "3", "--per_device_train_batch_size", "4"), 3),
        (("--per_device_train_batch_size", "6"), None),
    ],
)
def test_what_an_uneven_batch_leaves_out(capsys, flags, left):
    """Nine problems, two completions of each, four problems a generation batch unless the flags say otherwise."""
    sizes = (
        "--per_device_train_batch_size",
        "8",
        "--num_generations",
        "2",
        "--gradient_accumulation_steps",
        "1",
    )
    check_enough(9, parse_arguments([*DATA, *sizes, *flags]))
    said = capsys.readouterr().err
    assert said == "" if left is None else f"each epoch leaves out {left} of 9 problems" in said
    check_enough(9, parse_arguments(["--task", "query", *sizes, *flags]))
    assert capsys.readouterr().err == ""
