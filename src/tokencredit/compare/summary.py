"""The comparison of all finished runs, as `compare.json` holds it. Accuracies and differences are shares."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokencredit.compare import statistics
from tokencredit.compare.collect import Finished, clock_of, on_common_steps
from tokencredit.compare.runs import TEMPERATURES, RunKey
from tokencredit.compare.statistics import Curve
from tokencredit.compare.verdict import LEVEL, in_words

WAYS = {"sampled": "temperature 1", "greedy": "greedy"}
REWARD = "reward"
OVER_TIME = {
    "entropy": "entropy (nats)",
    "completions/mean_length": "length (tokens)",
    "credit/ess_ratio": "evenness of weights (ESS)",
}
CURVES = (
    REWARD,
    "credit/ess_ratio",
    "entropy",
    "completions/mean_length",
    "credit/rollout_seconds",
    "credit/seconds",
    "step_time",
)
BAND_RESAMPLES = 999

Values = dict[RunKey, float]


@dataclass(frozen=True)
class Measure:
    """One figure of every run, to be compared."""

    name: str
    label: str
    values: Values


def compare(runs: Sequence[Finished], arms: Sequence[str], samples: int | None) -> dict[str, Any]:
    """The comparison of every arm with the first.

    Args:
        runs: finished ones; an arm may have fewer than another.
        arms: in their order.
        samples: behind a held-out accuracy; None without held-out problems.

    Returns:
        See `docs/compare.md`.
    """
    found = measures(runs, arms)
    return {
        "arms": list(arms),
        "runs": {arm: sum(run.key.arm == arm for run in runs) for arm in arms},
        "headline": [
            name for name in ("final_sampled", "average_sampled", "average_reward") if name in found
        ][:2],
        "samples": samples,
        "noise": None if samples is None else statistics.sampling_error(0.5, samples),
        "equal_time_seconds": equal_seconds(runs, arms),
        "measures": {measure.name: _compared(measure, arms) for measure in found.values()},
        "seconds_per_step": {arm: _mean_seconds(runs, arm) for arm in arms},
        "over_time": {name: {arm: _ends(runs, arm, name) for arm in arms} for name in OVER_TIME},
        "curves": curves(runs, arms),
    }


def measures(runs: Sequence[Finished], arms: Sequence[str]) -> dict[str, Measure]:
    """Every figure that is compared, by its name.

    Held-out accuracy at the end, on average over training, and at equal wall-clock; rewards at the end (the mean over
    the last tenth of the steps) and on average.
    """
    found: list[Measure] = []
    if all(run.curves for run in runs):
        common = {way: on_common_steps(runs, way) for way in TEMPERATURES}
        seconds = equal_seconds(runs, arms)
        clocks = clocks_of(runs, arms)
        for way, label in WAYS.items():
            held = common[way].items()
            steps = max((curve[-1][0] for _, curve in held), default=0)
            finals = {key: curve[-1][1] for key, curve in held}
            found.append(Measure(f"final_{way}", f"after {steps:.0f} steps, {label}", finals))
            averages = {key: statistics.curve_average(curve) for key, curve in held}
            found.append(Measure(f"average_{way}", f"average over {steps:.0f} steps, {label}", averages))
            at_time = {key: statistics.value_at_time(c, clocks[key.arm], seconds) for key, c in held}
            found.append(Measure(f"equal_time_{way}", f"after {seconds:.0f} s, {label}", at_time))
    rewards = {run.key: list(run.metric(REWARD).values()) for run in runs}
    if all(rewards.values()):
        found.append(
            Measure(
                "average_reward",
                "reward in training, average over the steps",
                {k: _mean(v) for k, v in rewards.items()},
            )
        )
        last = {key: _mean(values[-math.ceil(len(values) / 10) :]) for key, values in rewards.items()}
        found.append(Measure("final_reward", "reward in training, last tenth", last))
    return {measure.name: measure for measure in found}


def clocks_of(runs: Sequence[Finished], arms: Sequence[str]) -> dict[str, Curve]:
    """Each arm's clock, see `clock_of`, for the arms with runs."""
    return {arm: clock_of(own) for arm in arms if (own := [run for run in runs if run.key.arm == arm])}


def equal_seconds(runs: Sequence[Finished], arms: Sequence[str]) -> float:
    """When the fastest arm had finished."""
    return min((clock[-1][1] for clock in clocks_of(runs, arms).values()), default=0.0)


def _compared(measure: Measure, arms: Sequence[str]) -> dict[str, Any]:
    baseline = arms[0]
    differences = {arm: paired_differences(measure.values, arm, baseline) for arm in arms[1:]}
    tests = {arm: statistics.paired_test(list(each.values())) for arm, each in differences.items() if each}
    adjusted = statistics.holm({arm: test.p for arm, test in tests.items()})
    compared = {}
    for arm, test in tests.items():
        values = list(differences[arm].values())
        interval = statistics.stratified_interval(by_warm_start(differences[arm]))
        compared[arm] = {
            "pairs": test.pairs,
            "mean": test.mean,
            "interquartile_mean": statistics.interquartile_mean(values),
            "sd": test.sd,
            "t_interval": test.interval,
            "bootstrap_interval": interval,
            "p": test.p,
            "p_adjusted": adjusted[arm],
            "detectable": statistics.detectable_difference(test.sd, test.pairs, LEVEL / (len(arms) - 1))
            if test.sd
            else None,
            "by_warm_start": {str(w): _mean(each) for w, each in by_warm_start(differences[arm]).items()},
            "words": in_words(test.mean, adjusted[arm], interval, test.pairs),
        }
    return {
        "label": measure.label,
        "arms": {arm: _of_arm(measure.values, arm) for arm in arms},
        "differences": compared,
    }


def _of_arm(values: Values, arm: str) -> dict[str, Any] | None:
    own = {key: value for key, value in sorted(values.items()) if key.arm == arm}
    if not own:
        return None
    return {
        "mean": _mean(list(own.values())),
        "bootstrap_interval": statistics.stratified_interval(by_warm_start(own)),
        "interquartile_mean": statistics.interquartile_mean(list(own.values())),
        "runs": {f"warm{key.warm}-seed{key.seed}": value for key, value in own.items()},
    }


def paired_differences(values: Values, arm: str, baseline: str) -> Values:
    """What the arm's runs have more than the baseline's of the same warm start and seed, by the arm's key."""
    pairs = {key: RunKey(baseline, key.warm, key.seed) for key in sorted(values) if key.arm == arm}
    return {key: values[key] - values[other] for key, other in pairs.items() if other in values}


def by_warm_start(values: Values) -> dict[int, list[float]]:
    strata: dict[int, list[float]] = defaultdict(list)
    for key, value in values.items():
        strata[key.warm].append(value)
    return dict(strata)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mean_seconds(runs: Sequence[Finished], arm: str) -> dict[str, float]:
    """Seconds a step of each part, the mean over the arm's runs."""
    own = [run.seconds for run in runs if run.key.arm == arm and run.seconds]
    return {part: _mean([each[part] for each in own]) for part in own[0]} if own else {}


def _ends(runs: Sequence[Finished], arm: str, name: str) -> list[float] | None:
    """A metric's mean over the first and over the last tenth of the steps; None where it was not logged."""
    series = [list(run.metric(name).values()) for run in runs if run.key.arm == arm]
    if not series or not all(series):
        return None
    tenths = [(each[: math.ceil(len(each) / 10)], each[-math.ceil(len(each) / 10) :]) for each in series]
    return [_mean([_mean(first) for first, _ in tenths]), _mean([_mean(last) for _, last in tenths])]


def curves(runs: Sequence[Finished], arms: Sequence[str]) -> dict[str, dict[str, list[list[float | None]]]]:
    """For each measure and arm a list of [step, mean, low, high]: the 95% interval of the mean, or nulls."""
    by_name: dict[str, dict[RunKey, dict[int, float]]] = {}
    if all(run.curves for run in runs):
        for way in TEMPERATURES:
            by_name[f"held_out_{way}"] = {
                key: {int(step): value for step, value in curve}
                for key, curve in on_common_steps(runs, way).items()
            }
    for name in CURVES:
        by_name[name] = {run.key: run.metric(name) for run in runs}
    found = {}
    for name, series in by_name.items():
        of_arms = {arm: _band({k: v for k, v in series.items() if k.arm == arm and v}) for arm in arms}
        if any(of_arms.values()):
            found[name] = {arm: rows for arm, rows in of_arms.items() if rows}
    return found


def _band(series: Mapping[RunKey, Mapping[int, float]]) -> list[list[float | None]]:
    if not series:
        return []
    steps = sorted(set.intersection(*(set(each) for each in series.values())))
    if not steps:
        return []
    strata: dict[int, list[list[float]]] = defaultdict(list)
    for key, each in series.items():
        strata[key.warm].append([each[step] for step in steps])
    arrays = [np.asarray(rows).T for rows in strata.values()]  # (steps, runs)
    means = np.concatenate(arrays, axis=1).mean(axis=1).tolist()
    band = statistics.stratified_bands(arrays, resamples=BAND_RESAMPLES)
    lows, highs = ([None] * len(steps),) * 2 if band is None else (band[0].tolist(), band[1].tolist())
    return [[step, *rest] for step, *rest in zip(steps, means, lows, highs, strict=True)]
