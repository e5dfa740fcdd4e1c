"""The bi-level gate by hand and against a plain version."""

from __future__ import annotations

import math
import random

import pytest
import torch

import plain
from tokencredit import bilevel_gate


def gate_row(importance: list[float], **options) -> list[float]:
    values = torch.tensor([importance], dtype=torch.float64)
    return bilevel_gate(values, torch.ones_like(values, dtype=torch.bool), **options).weights[0].tolist()


def test_by_hand():
    # I = e^s - 1 with s = 0, 1, 2, 3, 4, so n = 0, 1/4, 1/2, 3/4, 1 and, at q = 1/4, tau = 1/4.
    # n < tau: max(0 / .25, .1) = .1. Others: 1 + (n - .25) / .75 = 1, 4/3, 5/3, 2. Sum 6.1, times 5 / 6.1.
    found = gate_row([math.expm1(s) for s in range(5)])
    assert found == pytest.approx([w * 5 / 6.1 for w in (0.1, 1, 4 / 3, 5 / 3, 2)], rel=1e-12)


def test_without_mass_the_floor_is_the_floor():
    found = gate_row([math.expm1(s) for s in range(5)], mass=False)
    assert found == pytest.approx([0.1, 1, 4 / 3, 5 / 3, 2], rel=1e-12)


def test_absolute_threshold():
    # tau = 1/2: n = 0 -> .1; 1/4 -> .5; 1/2 -> 1; 3/4 -> 1.5; 1 -> 2.
    found = gate_row([math.expm1(s) for s in range(5)], q=0.5, threshold="absolute", mass=False)
    assert found == pytest.approx([0.1, 0.5, 1, 1.5, 2], rel=1e-12)


def test_quantile_is_interpolated():
    # n = 0, 1: the 1/4-quantile is 1/4. w = .1 and 1 + (1 - .25) / .75 = 2; sum 2.1.
    assert gate_row([0.0, 1.0]) == pytest.approx([0.1 * 2 / 2.1, 2 * 2 / 2.1], rel=1e-12)


def test_beta_and_floor():
    # n = 0, 1/2, 1, tau = 1/4: w = .3, 1 + 3 (1/4) / (3/4) = 2, 4.
    found = gate_row([math.expm1(s) for s in range(3)], floor=0.3, beta=3.0, mass=False)
    assert found == pytest.approx([0.3, 2, 4], rel=1e-12)


def test_mass_may_push_a_weight_below_the_floor():
    assert min(gate_row([math.expm1(s) for s in range(5)])) < 0.1


@pytest.mark.parametrize(
    "importance",
    [[0.0, 0.0, 0.0], [0.7], [0.3, 0.3], [1.0, math.nan, 2.0], [1.0, math.inf], [1.0, 1.0 + 2.3e-16]],
)
def test_no_spread_or_not_finite_is_one(importance):
    assert gate_row(importance) == [1.0] * len(importance)


def test_tau_of_one():
    # n = 0, 1, 1, 1, 1 with q = 3/4: tau = 1, so nothing is above it and no division by zero happens.
    assert gate_row([0, 1, 1, 1, 1], q=0.75, mass=False) == pytest.approx([0.1, 1, 1, 1, 1])


def test_suppressed_and_boosted():
    values = torch.tensor([[math.expm1(s) for s in range(5)] + [9.0]], dtype=torch.float64)
    mask = torch.tensor([[True] * 5 + [False]])
    gate = bilevel_gate(values, mask)
    assert gate.suppressed.tolist() == [[True, False, False, False, False, False]]
    assert gate.boosted.tolist() == [[False, False, True, True, True, False]]
    assert gate.weights[0, 5] == 1


@pytest.mark.parametrize("seed", range(20))
def test_equal_to_the_plain_version(seed):
    draw = random.Random(seed)
    options = dict(q=draw.random(), floor=draw.random(), beta=3 * draw.random(), mass=draw.random() < 0.5)
    absolute = draw.random() < 0.5
    rows = [[10 ** draw.uniform(-8, 2) for _ in range(draw.randint(1, 40))] for _ in range(6)]
    length = max(len(row) for row in rows)
    importance = torch.full((6, length), math.nan, dtype=torch.float64)
    mask = torch.zeros(6, length, dtype=torch.bool)
    for index, row in enumerate(rows):
        start = draw.randint(0, length - len(row))
        importance[index, start : start + len(row)] = torch.tensor(row, dtype=torch.float64)
        mask[index, start : start + len(row)] = True
    found = bilevel_gate(
        importance, mask, threshold="absolute" if absolute else "quantile", **options
    ).weights
    for index, row in enumerate(rows):
        expected = plain.gate(row, options["q"], options["floor"], options["beta"], absolute, options["mass"])
        assert found[index][mask[index]].tolist() == pytest.approx(expected, rel=1e-9)
        assert (found[index][~mask[index]] == 1).all()


def test_tiny_importance_keeps_its_order():
    """OAR-G's importances are about 1e-6 and less: log1p must not lose them."""
    found = gate_row([1e-12, 2e-12, 3e-12, 4e-12])
    assert found == sorted(found) and found[0] < 0.2 and found[-1] > 1.3
