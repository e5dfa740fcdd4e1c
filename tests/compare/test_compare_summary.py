"""The comparison of fake runs against arithmetic by hand; its words, tables and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import write_run
from scipy import stats

from tokencredit.compare.collect import Finished, read_finished
from tokencredit.compare.page import write_page
from tokencredit.compare.runs import RunKey
from tokencredit.compare.statistics import detectable_difference
from tokencredit.compare.summary import compare, measures
from tokencredit.compare.tables import all_tables
from tokencredit.compare.verdict import in_words, points, statements
from tokencredit.report import in_terminal

ARMS = ["uniform", "oar-g", "random"]
START = {(0, "sampled"): 0.4, (0, "greedy"): 0.2}
GAINS = {"uniform": 0.0, "oar-g": 0.10, "random": 0.0}
NOISE = [0.010, -0.005, 0.015, 0.0, -0.012]
"""What the seeds of `oar-g` and `random` add to their difference."""


def accuracy_of(key: RunKey) -> float:
    """Final accuracy at temperature 1; seeds move all arms alike, but for the noise."""
    own = 0.0 if key.arm == "uniform" else NOISE[key.seed - 1] * (1 if key.arm == "oar-g" else -2)
    return 0.5 + 0.02 * key.seed + 0.1 * key.warm + GAINS[key.arm] + own


def write_all(directory: Path, warm_starts: int = 2, seeds: int = 5) -> list[Finished]:
    """Ten steps; measured at 0, 5 and 10; `oar-g` takes twice as long a step as the others."""
    keys = [RunKey(a, w, s) for s in range(1, seeds + 1) for w in range(warm_starts) for a in ARMS]
    for key in keys:
        final = accuracy_of(key)
        slow = 2.0 if key.arm == "oar-g" else 1.0
        curve = {5: (final - 0.1, 0.3), 10: (final, 0.4)}
        extra = {} if key.arm == "uniform" else {"credit/ess_ratio": 0.8}
        write_run(directory, key, curve, [final - 0.2] * 9 + [final], step_time=slow, entropy=1.5, **extra)
    return read_finished(directory, keys, dict.fromkeys(range(warm_starts), START))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Finished]:
    return write_all(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def compared(runs) -> dict[str, Any]:
    found = compare(runs, ARMS, 2560)
    calls = [{"arms": ARMS, "seeds": 5, "warm_starts": 2}]
    return found | statements(found, 2, calls, [])


def test_figures_of_one_run_by_hand(runs):
    """uniform, warm start 0, seed 1: 0.4, 0.42, 0.52 at steps 0, 5, 10; average (0.41 + 0.47) / 2."""
    found = {name: measure.values[RunKey("uniform", 0, 1)] for name, measure in measures(runs, ARMS).items()}
    assert found["final_sampled"] == pytest.approx(0.52)
    assert found["average_sampled"] == pytest.approx(0.44)
    assert (found["final_greedy"], found["average_greedy"]) == (0.4, pytest.approx(0.3))
    assert found["average_reward"] == pytest.approx((9 * 0.32 + 0.52) / 10)
    assert found["final_reward"] == pytest.approx(0.52)


def test_equal_wall_clock_by_hand(runs, compared):
    """The fastest arm takes 10 s; `oar-g`, at 2 s a step, is then at step 5."""
    assert compared["equal_time_seconds"] == 10.0
    values = measures(runs, ARMS)["equal_time_sampled"].values
    for key in (RunKey("oar-g", 1, 2), RunKey("random", 0, 3)):
        expected = accuracy_of(key) - (0.1 if key.arm == "oar-g" else 0.0)
        assert values[key] == pytest.approx(expected)


def test_paired_differences_take_seeds_and_warm_starts_out(compared):
    found = compared["measures"]["final_sampled"]["differences"]["oar-g"]
    differences = [0.1 + noise for noise in NOISE] * 2
    expected = stats.ttest_1samp(differences, 0.0)
    assert found["pairs"] == 10
    assert found["mean"] == pytest.approx(0.1016)
    assert found["interquartile_mean"] == pytest.approx(stats.trim_mean(differences, 0.25))
    assert found["t_interval"] == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["p_adjusted"] == pytest.approx(min(1.0, 2 * expected.pvalue))
    assert found["detectable"] == pytest.approx(detectable_difference(found["sd"], 10, 0.05 / 2))
    assert found["by_warm_start"] == {"0": pytest.approx(0.1016), "1": pytest.approx(0.1016)}
    low, high = found["bootstrap_interval"]
    assert 0.09 < low < 0.1016 < high < 0.115


def test_the_words_follow(compared):
    measure = compared["measures"]["final_sampled"]
    assert measure["differences"]["oar-g"]["words"] == "higher"
    assert measure["differences"]["random"]["words"] == "no difference shown"
    assert compared["measures"]["final_greedy"]["differences"]["oar-g"]["words"] == "no difference shown"
    said = " ".join(compared["verdict"])
    assert (
        "oar-g against uniform, after 10 steps, temperature 1: +10.2 (95% +9.4 to +10.9, 10 pairs); higher."
        in said
    )
    assert "random against uniform, after 10 steps, temperature 1: −0.3" in said
    random = compared["measures"]["final_sampled"]["differences"]["random"]
    assert (
        f"a true difference of {random['detectable'] * 100:.1f} would show in 4 of 5 such comparisons" in said
    )


def test_an_arm_of_unfinished_runs(runs):
    few = [run for run in runs if run.key.arm != "random" and (run.key.arm, run.key.seed) != ("oar-g", 5)]
    found = compare(few, ARMS, 2560)
    found |= statements(found, 2, [{"seeds": 5}], ["random/warm0-seed1", "oar-g/warm0-seed5"])
    assert found["measures"]["final_sampled"]["differences"]["oar-g"]["pairs"] == 8
    assert "random against uniform: no pair of runs is finished." in found["verdict"]
    assert any(line.startswith("2 run(s) are not finished") for line in found["reservations"])
    assert found["measures"]["final_sampled"]["arms"]["random"] is None
    assert all_tables(found)


def test_rewards_alone(tmp_path):
    """Without held-out problems the words are about rewards, and say so."""
    keys = [RunKey(arm, 0, seed) for seed in (1, 2) for arm in ARMS[:2]]
    for key in keys:
        write_run(tmp_path, key, None, [0.3 + GAINS[key.arm] + 0.01 * key.seed] * 4)
    found = compare(read_finished(tmp_path, keys, {}), ARMS[:2], None)
    assert set(found["measures"]) == {"average_reward", "final_reward"}
    assert found["headline"] == ["average_reward"]
    notes = statements(found, 1, [{"seeds": 2}], [])["reservations"]
    assert any("rewards on the problems that were trained on" in line for line in notes)
    assert any("Fewer than 5 pairs" in line for line in notes)
    assert any("One warm start" in line for line in notes)


@pytest.mark.parametrize(
    ("mean", "p", "interval", "pairs", "words"),
    [
        (0.1, 0.01, (0.05, 0.2), 5, "higher"),
        (-0.1, 0.01, (-0.2, -0.05), 5, "lower"),
        (0.1, 0.05, (0.05, 0.2), 5, "no difference shown"),
        (0.1, 0.01, (-0.01, 0.2), 5, "no difference shown"),
        (0.1, 0.01, None, 5, "higher"),
        (0.1, None, (0.1, 0.1), 5, "no difference shown"),
        (0.1, None, None, 1, "no difference shown (too few pairs)"),
        (0.1, 0.01, (0.05, 0.2), 4, "no difference shown (too few pairs)"),
    ],
)
def test_words(mean, p, interval, pairs, words):
    assert in_words(mean, p, interval, pairs) == words


def test_reservations(compared):
    found = statements(compared, 2, [{"seeds": 2}, {"seeds": 2}, {"seeds": 5}], [])["reservations"]
    assert any("Seeds were added after a first look (2, then 5)" in line for line in found)
    assert any("these 2 warm starts" in line for line in found)
    assert not any("standard error" in line for line in found)
    noisy = statements(compared | {"noise": 0.02}, 2, [{"seeds": 5}], [])["reservations"]
    assert any("standard error of up to 2.0 points" in line for line in noisy)


def test_points():
    assert [points(share) for share in (0.0123, -0.2, 0.0)] == ["+1.2", "−20.0", "+0.0"]


def test_curves_have_means_and_bands(compared):
    step, mean, low, high = compared["curves"]["held_out_sampled"]["oar-g"][-1]
    finals = [accuracy_of(RunKey("oar-g", warm, seed)) for warm in (0, 1) for seed in range(1, 6)]
    assert (step, mean) == (10, pytest.approx(sum(finals) / 10))
    assert low < mean < high
    start = compared["curves"]["held_out_sampled"]["oar-g"][0]
    assert start == [0, pytest.approx(0.4), pytest.approx(0.4), pytest.approx(0.4)]
    assert set(compared["curves"]["credit/ess_ratio"]) == {"oar-g", "random"}
    assert compared["over_time"]["entropy"]["random"] == [1.5, 1.5]
    assert compared["over_time"]["credit/ess_ratio"]["uniform"] is None
    assert compared["seconds_per_step"]["oar-g"]["attribution"] == pytest.approx(0.2)


def test_tables(compared):
    tables = {table.title: table for table in all_tables(compared)}
    assert list(tables)[:3] == [
        "Per cent right: mean [95% bootstrap], interquartile mean",
        "oar-g against uniform, 10 pairs",
        "random against uniform, 10 pairs",
    ]
    levels = next(iter(tables.values())).rows[0]
    assert levels[0] == "after 10 steps, temperature 1" and levels[1].startswith("61.0 [")
    row = tables["oar-g against uniform, 10 pairs"].rows[0]
    assert row[1:3] == ["+10.2", "+9.4 to +10.9"] and row[-1] == "higher"
    assert row[1].value == pytest.approx(10.16)  # the page sorts by it
    low, high = compared["measures"]["final_sampled"]["differences"]["oar-g"]["t_interval"]
    assert (row[2].low, row[2].high) == pytest.approx((100 * low, 100 * high))
    assert tables["Difference to uniform in points, by warm start"].rows[0][1:] == ["+10.2", "+10.2"]
    narrow = all_tables(compared, full=False)[1]
    assert narrow.columns == ["points", "95% paired t", "verdict"]
    assert in_terminal(narrow).row_count == len(narrow.rows)


def test_one_warm_start_has_no_table_of_its_own(tmp_path: Path):
    found = compare(write_all(tmp_path, warm_starts=1, seeds=2), ARMS, 2560)
    assert not any("by warm start" in table.title for table in all_tables(found))


def write(tmp_path: Path, compared: dict[str, Any]) -> str:
    return write_page(tmp_path / "compare.html", compared, {"task": "query", "q": 0.25}, []).read_text()


def test_page(tmp_path, compared):
    page = write(tmp_path, compared)
    assert "oar-g" in page and "What the figures show" in page
    assert page.count('class="band line-') >= 6  # three arms, two ways of answering
    assert "bands: their 95% intervals" in page
    assert "held-out accuracy at temperature 1" in page
    assert "+9.4 to +10.9" in page


def test_page_of_single_runs_has_no_bands(tmp_path):
    found = compare(write_all(tmp_path, warm_starts=1, seeds=1), ARMS, 2560)
    found |= statements(found, 1, [{"seeds": 1}], [])
    page = write(tmp_path, found)
    assert 'class="band' not in page and "bands:" not in page


def test_everything_can_be_written(compared, tmp_path):
    from tokencredit.report.files import plain_json

    text = json.dumps(plain_json(compared), allow_nan=False)
    assert json.loads(text)["measures"]["final_sampled"]["differences"]["oar-g"]["pairs"] == 10


def test_more_seeds_narrow_the_interval(tmp_path: Path):
    """The same noise over four times the pairs."""

    def width(warm_starts: int) -> float:
        runs = write_all(tmp_path / str(warm_starts), warm_starts)
        found = compare(runs, ARMS, 2560)["measures"]["final_sampled"]["differences"]["oar-g"]
        return found["t_interval"][1] - found["t_interval"][0]

    assert width(4) < width(1) / 1.8
