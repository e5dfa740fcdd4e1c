"""Finished batches in a folder: read back as they were, whatever a killed writer left behind them."""

from __future__ import annotations

import json
import math

import pytest

from tokencredit.errors import UsageError
from tokencredit.fidelity.plan import Measured
from tokencredit.fidelity.store import Store
from tokencredit.report.files import read_lines

SETTINGS = {"seed": 3, "q": 0.25, "tasks": ("query",)}


def batch(number: int) -> Measured:
    row = {"credit": "oar-g", "row": number, "figures": {"path_auroc": 0.1 + number, "step_auroc": None}}
    return Measured([row], [{"tokens": ["é\u2028"]}], {"oar-g": 0.5}, {"oar-g": True}, written=2, failed=1)


def store(folder, settings=SETTINGS, overwrite=False) -> Store:
    return Store(folder, settings, overwrite=overwrite)


def test_batches_come_back(tmp_path):
    first = store(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()
    first.keep(0, 1, batch(1))
    first.keep(1, 0, batch(2))
    again = store(tmp_path / "new" / "folder")
    assert again.of(0) == {1: batch(1)} and again.of(1) == {0: batch(2)} and again.of(2) == {}
    assert again.completions == 4
    again.keep(0, 0, batch(3))
    assert store(tmp_path / "new" / "folder").of(0) == {0: batch(3), 1: batch(1)}


@pytest.mark.parametrize("cut", [1, 20, 10**6])
@pytest.mark.parametrize("lines", [1, 2])
def test_a_line_that_was_cut_off_does_not_count(tmp_path, lines, cut):
    """The settings' own line, or a batch's."""
    first = store(tmp_path)
    first.keep(0, 0, batch(0))
    first.keep(0, 1, batch(1))
    path = tmp_path / "progress.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[: lines - 1]) + whole[lines - 1][:-1][:-cut])
    again = store(tmp_path)
    assert again.of(0) == {}
    again.keep(0, 0, batch(0))
    assert store(tmp_path).of(0) == {0: batch(0)}


def test_other_settings_are_refused_by_name(tmp_path):
    store(tmp_path).keep(0, 0, batch(0))
    with pytest.raises(UsageError, match="a measurement whose seed is 3, not 4"):
        store(tmp_path, {**SETTINGS, "seed": 4})
    with pytest.raises(UsageError, match="whose draws is null, not 2"):
        store(tmp_path, {**SETTINGS, "draws": 2})
    fresh = store(tmp_path, {**SETTINGS, "seed": 4}, overwrite=True)
    assert fresh.of(0) == {}
    assert not (tmp_path / "progress.jsonl").exists()


def test_in_the_end_results_stay(tmp_path):
    one = store(tmp_path)
    one.keep(0, 0, batch(0))
    found = batch(0)
    found.add(batch(1))
    path = one.conclude({"results": [{"value": math.nan}]}, [found])
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "fidelity.json",
        "records.jsonl",
        "values.jsonl",
    ]
    assert json.loads(path.read_text()) == {"results": [{"value": None}]}
    assert [value for _, value in read_lines(tmp_path / "values.jsonl")] == found.rows
    assert len(read_lines(tmp_path / "records.jsonl")) == 2
    with pytest.raises(UsageError, match="holds a measurement"):
        store(tmp_path)
    store(tmp_path, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_said(tmp_path):
    one = store(tmp_path / "folder")
    (tmp_path / "folder").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*progress.jsonl"):
        one.keep(0, 0, batch(0))


def test_batches_add_up():
    whole = batch(0)
    other = batch(1)
    other.drawing["oar-g"] = False
    whole.add(other)
    assert (whole.written, whole.failed, whole.seconds) == (4, 2, {"oar-g": 1.0})
    assert [row["row"] for row in whole.rows] == [0, 1] and len(whole.records) == 2
    assert whole.drawing == {"oar-g": True}  # found out in one batch, for all
