"""The page of a measurement, from numbers made by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tokencredit.errors import UsageError
from tokencredit.fidelity.page import charts, findings, write_page
from tokencredit.fidelity.tables import tables


def mean(value: float, half: float = 0.1) -> dict:
    return {"value": value, "stderr": half / 2, "low": value - half, "high": value + half, "n": 9}


def strategy(auroc: float, *, truth: bool = True) -> dict:
    curves = {"shares": [0.0, 0.5, 1.0]} | {
        game: [mean(0.0), mean(auroc), mean(2.0)] for game in ("deletion", "insertion")
    }
    metrics = {"path_auroc": mean(auroc), "deletion_area": mean(1.0), "deletion_over_random": mean(auroc)}
    roles = {"operand": {"importance_share": mean(0.5), "mean_weight": mean(1.5)}}
    found = {"metrics": metrics, "curves": curves, "draws": False, "seconds_per_completion": 0.02}
    return found | ({"by_role": roles} if truth else {})


def result(*, truth: bool = True, **aurocs: float) -> dict:
    names = {"position": 0.4, "random": 0.5, "entropy": 0.55, "uniform": 0.5} | aurocs
    strategies = {name: strategy(value, truth=truth) for name, value in names.items()}
    about = {"source": "query", "policy": "<b>warm", "measured": 9, "failed": 4, "completions": 10}
    return about | {"problems": 10, "strategies": strategies}


def content(*results: dict) -> dict:
    return {
        "settings": {"seed": 3},
        "versions": {"torch": "2"},
        "machine": {"threads": 1},
        "results": [*results],
    }


def test_findings_say_what_is_above_every_baseline():
    """The highest baseline is entropy, at most 0.65."""
    lines = list(findings(result(high=0.8, near=0.7, low=0.2)))
    assert lines == [
        "query, <b>warm: above every baseline by AUROC of the tokens on the path: high (0.80 [0.70, 0.90]).",
        "query, <b>warm: not shown to be above every baseline by AUROC of the tokens on the path: "
        "near (0.70 [0.60, 0.80]), low (0.20 [0.10, 0.30]).",
    ]
    (line,) = findings(result(truth=False, high=0.8))
    assert line.startswith(
        "query, <b>warm: above every baseline by area under deletion beyond that of random"
    )


def test_without_intervals_nothing_is_found():
    alone = result(high=0.9)
    for each in alone["strategies"].values():
        each["metrics"]["path_auroc"] |= {"low": None, "high": None}
    assert list(findings(alone)) == []


def test_tables_name_each_strategy_once():
    for table in tables(result(high=0.8)):
        assert [row[0] for row in table.rows] == ["position", "random", "entropy", "uniform", "high"]
        assert all(len(row) == len(table.columns) + 1 for row in table.rows)
    truth = tables(result(high=0.8))[0]
    cell = truth.rows[-1][1 + truth.columns.index("path AUROC")]
    assert (str(cell), cell.value) == ("0.80 ±0.10", 0.8)
    assert len(tables(result(truth=False))) == 2


def test_charts_have_a_line_a_strategy():
    deletion, insertion = charts(result(high=0.8), ["random", "high"])
    assert (deletion.metric, insertion.metric) == ("deletion", "insertion")
    assert str(deletion.svg).count('class="mean') == 2


def test_the_page_is_made_from_the_numbers_alone(tmp_path):
    many = {f"s{number}": 0.6 for number in range(7)}
    numbers = json.loads(json.dumps(content(result(**many), result(truth=False, **many))))
    page = write_page(tmp_path / "fidelity.html", numbers, []).read_text()
    assert "&lt;b&gt;warm" in page and "<b>warm" not in page
    for text in ("path AUROC", "How far the outcome moves", "Fidelity on query", "s6", "seed"):
        assert text in page
    assert "wrong step" not in page  # no failure has a figure
    with pytest.raises(UsageError, match="no numbers of a measurement"):
        write_page(tmp_path / "other.html", {"results": []}, [])


def test_file_names_are_known_without_torch():
    code = "import sys, tokencredit.fidelity.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", ["agreement", "auroc", "average_precision", "causal_curves", "Curves"])
def test_public_names_load(name):
    import tokencredit.fidelity

    assert getattr(tokencredit.fidelity, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = tokencredit.fidelity.nothing
