"""The folder of an evaluation: claimed, gone on with, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokencredit.errors import UsageError
from tokencredit.evaluation import store

SETTINGS = {"model": "m", "seed": 0}


def sample(number: int, name: str = "p") -> dict[str, Any]:
    fields = {"problem": "?", "verdict": "wrong", "answer": "1", "finish": None, "tokens": None}
    return {"task": "t", "id": f"{name}{number}", "sample": 0, **fields}


BATCHES = [[store.key_of(sample(n)) for n in group] for group in ((0, 1), (2, 3), (4,))]


@pytest.mark.parametrize(("written", "kept"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (5, 5)])
def test_whole_batches_are_kept(tmp_path, written, kept):
    store.append(tmp_path, [sample(n) for n in range(written)])
    assert store.keep_finished(tmp_path, BATCHES) == [sample(n) for n in range(kept)]
    assert store.read_samples(tmp_path) == [sample(n) for n in range(kept)]


def test_a_torn_line_is_dropped(tmp_path):
    store.append(tmp_path, [sample(0), sample(1)])
    path = tmp_path / store.SAMPLES
    path.write_bytes(path.read_bytes() + b'{"task": "t", "id": "p2", "sa')
    assert len(store.keep_finished(tmp_path, BATCHES)) == 2
    store.append(tmp_path, [sample(2), sample(3)])
    assert store.keep_finished(tmp_path, BATCHES) == [sample(n) for n in range(4)]


def test_other_samples_are_refused(tmp_path):
    store.append(tmp_path, [sample(0), sample(1, "other")])
    with pytest.raises(UsageError, match="holds other samples"):
        store.keep_finished(tmp_path, BATCHES)
    assert len(store.read_samples(tmp_path)) == 2


def test_a_broken_line_is_named(tmp_path):
    store.append(tmp_path, [sample(0)])
    (tmp_path / store.SAMPLES).write_text('{"task": "t"}\n')
    with pytest.raises(UsageError, match="line 1: no 'answer'"):
        store.read_samples(tmp_path)


def test_text_survives(tmp_path):
    odd = {**sample(0), "completion": "line\nbreak \u2028 é \ud800 \x00"}
    store.append(tmp_path, [odd, sample(1)])
    first, second = store.read_samples(tmp_path)
    assert second == sample(1)
    assert first["completion"] == "line\nbreak \u2028 é ? \x00"  # a lone surrogate is no character


def test_claim_goes_on_with_the_same_settings(tmp_path):
    folder = tmp_path / "out"
    store.claim(folder, SETTINGS, overwrite=False)
    store.append(folder, [sample(0)])
    store.claim(folder, dict(SETTINGS), overwrite=False)
    assert len(store.read_samples(folder)) == 1


def test_claim_refuses_other_settings(tmp_path):
    store.claim(tmp_path, SETTINGS, overwrite=False)
    store.append(tmp_path, [sample(0)])
    with pytest.raises(UsageError, match=r"whose seed is 0, not 1: .* another --out, or --overwrite"):
        store.claim(tmp_path, {**SETTINGS, "seed": 1}, overwrite=False)
    with pytest.raises(UsageError, match="whose top_p is not set, not 1"):
        store.claim(tmp_path, {**SETTINGS, "top_p": 1}, overwrite=False)
    assert len(store.read_samples(tmp_path)) == 1
    store.claim(tmp_path, {**SETTINGS, "seed": 1}, overwrite=True)
    assert store.read_samples(tmp_path) == []
    assert store.summary(tmp_path)["settings"]["seed"] == 1


def test_claim_refuses_a_file(tmp_path: Path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="is a file; name a folder"):
        store.claim(tmp_path / "out", SETTINGS, overwrite=True)


def test_no_evaluation_there(tmp_path):
    with pytest.raises(UsageError, match=r"holds no evaluation: it has no evaluation.json"):
        store.summary(tmp_path)
    for broken in ("{", "[]", '{"settings": 1}', json.dumps({"results": {}})):
        (tmp_path / store.SUMMARY).write_text(broken)
        with pytest.raises(UsageError, match="cannot read"):
            store.summary(tmp_path)
