"""Completions that are measured: seeded, as sampled, with their rewards."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from tokencredit.errors import UsageError
from tokencredit.fidelity.subjects import batches, encode_prompt, write


def written(one, size: int) -> list:
    return [write(one, problems) for problems in batches(one, size)]


def texts(sampled) -> list[str]:
    return [text for batch in sampled for text in batch.rollouts.texts]


def test_sampling_is_seeded_and_leaves_the_random_state(subject):
    state = torch.random.get_rng_state()
    first = texts(written(subject(), 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(123)
    assert texts(written(subject(), 4)) == first
    other = dataclasses.replace(subject(), decoding=dataclasses.replace(subject().decoding, seed=1))
    assert texts(written(other, 4)) != first


def test_batches_are_of_whole_problems(subject):
    one = subject(problems=3, samples=2)
    assert batches(one, 5) == [[0, 0, 1, 1], [2, 2]] and batches(one, 1) == [[0, 0], [1, 1], [2, 2]]
    found = written(one, 5)
    assert [batch.written for batch in found] == [4, 2]
    groups = [batch.rollouts.groups.tolist() for batch in found]
    keys = [batch.rollouts.row_keys.tolist() for batch in found]
    assert (groups, keys) == ([[0, 0, 1, 1], [2, 2]], [[0, 1, 2, 3], [4, 5]])


def test_a_completion_ends_with_its_end_of_turn(subject):
    (batch,) = written(subject(), 64)
    rollouts, end = batch.rollouts, subject().tokenizer.eos_token_id
    for row in range(rollouts.shape[0]):
        ids = rollouts.completion_ids[row][rollouts.completion_mask[row]].tolist()
        assert ids.count(end) <= 1 and (end not in ids or ids[-1] == end)
        said = rollouts.completion_ids[row][rollouts.answer_mask[row]]
        assert rollouts.texts[row].endswith("ans " + subject().tokenizer.decode(said))


def test_rewards_advantages_and_failures(subject):
    one = subject(problems=12)
    (batch,) = written(one, 64)
    rollouts = batch.rollouts
    golds = [one.golds[problem] for problem in rollouts.groups.tolist()]
    expected = one.task.reward(rollouts.texts, golds)
    assert rollouts.rewards.tolist() == expected
    assert rollouts.advantages.tolist() == [1 if reward else -1 for reward in expected]
    assert 0 < batch.failed < batch.written == 12


def test_completions_without_an_answer_are_left_out_or_asked(subject):
    """Cut off after three tokens, none has an answer; a probe asks for one."""
    short = dataclasses.replace(subject(), decoding=dataclasses.replace(subject().decoding, max_new_tokens=3))
    (batch,) = written(short, 64)
    assert (batch.rollouts.shape[0], batch.written, batch.failed) == (0, 6, 6)
    (asked,) = written(dataclasses.replace(short, probe="ans"), 64)
    assert asked.rollouts.shape[0] == 6 and asked.rollouts.readable.all()


def test_prompts(subject):
    tokenizer = copy.deepcopy(subject().tokenizer)
    plain = encode_prompt(tokenizer, "S1 7 + 5 ;", None, chat=False)
    assert tokenizer.decode(plain) == "S1 7 + 5 ;"
    wrapped = encode_prompt(tokenizer, "S1 7", "? {problem} ;", chat=False)
    assert tokenizer.decode(wrapped) == "? S1 7 ;"
    with pytest.raises(UsageError, match="no chat template"):
        encode_prompt(tokenizer, [{"role": "user", "content": "S1"}], None, chat=False)
    tokenizer.chat_template = "ans {{ messages[0]['content'] }} ;"
    assert tokenizer.decode(encode_prompt(tokenizer, "S1 7", "? {problem}", chat=True)) == "ans ? S1 7 ;"


def test_steps_are_judged_and_other_completions_graded(subject):
    """By the task: a completion is as right as its own copy is, and some step is wrong."""
    (batch,) = written(subject(problems=12), 64)
    rollouts = batch.rollouts
    ids = [
        own[mask].tolist()
        for own, mask in zip(rollouts.completion_ids, rollouts.completion_mask, strict=True)
    ]
    assert list(rollouts.grader(rollouts.row_keys.tolist(), ids)) == rollouts.rewards.tolist()
    assert list(rollouts.grader([int(rollouts.row_keys[0])] * 2, [ids[0], ids[0][:-3]]))[1] == 0.0
    judged = rollouts.step_verdicts >= 0
    assert judged.any() and not (judged & ~rollouts.reasoning_mask).any()
    assert (rollouts.step_verdicts == 0).any()
