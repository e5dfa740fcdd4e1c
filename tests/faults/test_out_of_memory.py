"""Memory that runs out in attribution halves its budget, and the training goes on with the same credit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from fault_helpers import lines, trainer

from tokencredit.calling import Caller

MOST = 100
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"),
]


def limit(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Passes of more than so many tokens fail; the sizes of all passes."""
    packed, sizes = Caller.packed, list[int]()

    def limited(self: Caller, segments: Any, reads: Any) -> Any:
        sizes.append(sum(segment.ids.numel() for segment in segments))
        if sizes[-1] > MOST:
            raise error
        return packed(self, segments, reads)

    monkeypatch.setattr(Caller, "packed", limited)
    return sizes


@pytest.mark.parametrize("error", ERRORS, ids=["on a GPU", "on a CPU"])
@pytest.mark.parametrize("credit", ["oar-g", "oar-p"])
def test_a_training_step_goes_on(tmp_path, monkeypatch, caplog, credit, error):
    settings = {"credit": credit, "max_steps": 2, "save_strategy": "no", "credit_token_budget": 800}
    roomy = trainer(tmp_path / "roomy", **settings)
    roomy.train()
    sizes = limit(monkeypatch, error)
    tight = trainer(tmp_path / "tight", **settings)
    with caplog.at_level(logging.WARNING):
        tight.train()
    assert max(sizes) > MOST >= sizes[-1]
    assert tight._policy.token_budget < 800
    said = [message for message in caplog.messages if message.startswith("memory ran out")]
    assert said == ["memory ran out: attribution goes on with 400 tokens a pass"]
    for one, other in zip(tight.model.parameters(), roomy.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    one, other = (lines(tmp_path / name / "records.jsonl") for name in ("tight", "roomy"))
    assert [record["tokens"] for record in one] == [record["tokens"] for record in other]
    assert any(any(record["importance"]) for record in one)


def test_other_errors_are_not_taken_for_it(tmp_path, monkeypatch):
    limit(monkeypatch, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        trainer(tmp_path, max_steps=2, credit_token_budget=800).train()
