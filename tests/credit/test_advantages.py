"""Group advantages; the arithmetic is in the comments."""

from __future__ import annotations

import pytest
import torch

from tokencredit import UsageError, group_advantages


def close(found: torch.Tensor, expected: list[float], tolerance: float = 1e-12) -> bool:
    return torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def test_by_hand():
    # Rewards 1, 0, 0, 0: mean 1/4, variance (9/16 + 3/16) / 3 = 1/4, std 1/2.
    found = group_advantages([1.0, 0.0, 0.0, 0.0], 4, eps=0.0)
    assert close(found, [1.5, -0.5, -0.5, -0.5])
    # With eps = 1e-4 the divisor is 0.5001.
    assert close(group_advantages([1.0, 0.0, 0.0, 0.0], 4)[:1], [0.75 / 0.5001])


def test_none_leaves_the_mean():
    # Rewards None, 1, 0, 1: mean of the rest 2/3, variance (1/9 + 4/9 + 1/9) / 2 = 1/3.
    std = (1 / 3) ** 0.5
    found = group_advantages([None, 1.0, 0.0, 1.0], 4, eps=0.0)
    assert close(found, [0.0, (1 / 3) / std, (-2 / 3) / std, (1 / 3) / std])


def test_nan_is_none():
    nan = float("nan")
    assert torch.equal(group_advantages([nan, 1.0, 0.0], 3), group_advantages([None, 1.0, 0.0], 3))


@pytest.mark.parametrize("value", [0.1, 0.35, 1 / 3, 1e9])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_no_variance_is_exactly_zero(value, scale):
    """A mean of seven 0.1 is not 0.1 in floating point; the advantage is 0 all the same."""
    found = group_advantages([value] * 7 + [1.0] * 6 + [0.0], 7, scale=scale)
    assert (found[:7] == 0).all()
    assert (found[7:] != 0).all()


def test_one_judged_row_is_zero():
    assert (group_advantages([None, None, 1.0], 3) == 0).all()


def test_close_rewards_keep_their_difference():
    # Two values a, b: mean (a + b) / 2, std |a - b| / sqrt 2, so the advantages are -+ 1 / sqrt 2 up to eps.
    rewards = torch.tensor([1.00000, 1.00001], dtype=torch.float64)
    assert close(group_advantages(rewards, 2, eps=0.0), [-(0.5**0.5), 0.5**0.5], 1e-9)
    assert close(group_advantages(rewards, 2, eps=1e-8), [-0.707, 0.707], 1e-3 + 1e-6)


def test_seven_equal_and_one_zero():
    # 7 x 0.35 and 0: mean 0.30625, deviations 0.04375 and -0.30625;
    # variance (7 * 0.04375^2 + 0.30625^2) / 7 = 0.0153125, std 0.12374368670764582.
    std = 0.0153125**0.5
    found = group_advantages([0.35] * 7 + [0.0], 8, eps=0.0)
    assert close(found, [0.04375 / std] * 7 + [-0.30625 / std], 1e-14)


def test_batch_scale_uses_the_std_of_all_rows():
    # Rewards 1, 0 | 3, 0: group means 0.5, 1.5; all rows: mean 1, variance (0 + 1 + 4 + 1) / 3 = 2.
    found = group_advantages([1.0, 0.0, 3.0, 0.0], 2, scale="batch", eps=0.0)
    assert close(found, [0.5 / 2**0.5, -0.5 / 2**0.5, 1.5 / 2**0.5, -1.5 / 2**0.5])


def test_no_scale():
    assert close(group_advantages([1.0, 0.0, 3.0, 0.0], 2, scale="none"), [0.5, -0.5, 1.5, -1.5])


def test_groups_in_any_order():
    rewards = [1.0, 5.0, 0.0, 2.0]
    found = group_advantages(rewards, torch.tensor([7, 3, 7, 3]), scale="none")
    assert close(found, [0.5, 1.5, -0.5, -1.5])


def test_lists_are_taken_in_float64():
    # 16777217 is no float32: the difference of 1 would be lost.
    assert close(group_advantages([16777217.0, 16777216.0], 2, scale="none"), [0.5, -0.5])


def test_infinite_rewards_are_refused():
    with pytest.raises(UsageError, match="reward 1 is infinite"):
        group_advantages([0.0, float("inf")], 2)


def test_a_group_of_one():
    with pytest.raises(UsageError, match="at least 2 generations"):
        group_advantages([1.0, 0.0], 1)
    assert (group_advantages([1.0, 0.0], 1, training=False) == 0).all()


def test_bad_input_is_named():
    with pytest.raises(UsageError, match="5 rewards don't divide into groups of 2"):
        group_advantages([1.0] * 5, 2)
    with pytest.raises(UsageError, match="'std'"):
        group_advantages([1.0, 0.0], 2, scale="std")
    with pytest.raises(UsageError, match="shape"):
        group_advantages([1.0, 0.0], torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_to_trl(scale):
    """TRL's formula in float32, on rewards that have no trouble with it."""
    torch.manual_seed(0)
    rewards = torch.rand(24)
    grouped = rewards.view(-1, 8)
    expected = rewards - grouped.mean(1).repeat_interleave(8)
    if scale == "group":
        expected = expected / (grouped.std(1).repeat_interleave(8) + 1e-4)
    elif scale == "batch":
        expected = expected / (rewards.std() + 1e-4)
    torch.testing.assert_close(
        group_advantages(rewards, 8, scale=scale).float(), expected, rtol=1e-5, atol=1e-6
    )
