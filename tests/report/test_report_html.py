from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from tokencredit.errors import UsageError
from tokencredit.report import (
    Chart,
    Number,
    Shown,
    Table,
    chart_svg,
    load_run,
    render_attribution,
    render_report,
    render_run,
)
from tokencredit.report.html import embed_json, label_runs

TOKENS = ["7", "+", "5", "=", "2", "ans", "2"]
HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "<!--",
    "{{ 7 * 7 }}{% raw %}",
    "\u2028\u2029",
    "&lt;b&gt;",
    "\x00\x1b",
    "\ud800",
    "🙂\u202e",
]


class Page(HTMLParser):
    """Collects a page's elements, the text of its data element, and all visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.data = self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        last, attributes = self.tags[-1] if self.tags else ("", {})
        if attributes.get("id") == "data" and not self.data:
            self.data = data
        elif last not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def read(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_embedded_json_cannot_leave_its_element():
    text = embed_json(HOSTILE)
    assert not set("<>&\u2028\u2029\ud800") & set(text)
    assert json.loads(text.encode()) == HOSTILE


def test_what_a_model_wrote_becomes_neither_markup_nor_code(tmp_path, make_record, make_run):
    hostile = HOSTILE[2]
    record = make_record([*HOSTILE, "ans", "2"], prompt="".join(HOSTILE), rule=hostile, credit=hostile)
    metrics = [{"step": 1, "reward": 0.5, f"credit/{hostile}": 1.0}]
    run = make_run(
        tmp_path / "run",
        [record],
        metrics,
        credit=hostile,
        summary={hostile: {hostile: hostile}},
        other=hostile,
    )
    page = read(render_run([run], tmp_path / "report.html", title=hostile))
    assert page.count("script") == 2
    assert page.count("img") == 0
    assert page.text.count(hostile) >= 5  # heading, settings (twice), summary (name and value)
    [completion] = json.loads(page.data)
    assert completion["tokens"][0] == HOSTILE[0]
    assert completion["tokens"][5:10] == [
        "⟨U+2028⟩⟨U+2029⟩",
        "&lt;b&gt;",
        "⟨U+0000⟩⟨U+001B⟩",
        "⟨U+D800⟩",
        "🙂⟨U+202E⟩",
    ]
    assert completion["raw"] == {str(place): HOSTILE[place] for place in range(5, 10) if place != 6}


def test_the_page_refers_to_nothing_outside(tmp_path, make_record, make_run):
    run = make_run(tmp_path / "run", [make_record(TOKENS)], [{"step": 1, "reward": 0.5}])
    page = read(render_run([run], tmp_path / "report.html"))
    attributes = {name for _, attributes in page.tags for name in attributes}
    assert not attributes & {"src", "srcset", "action", "style", "onclick", "onload"}
    assert [a["href"] for _, a in page.tags if "href" in a] == ["#curves", "#completions"]
    assert {"curves", "completions"} <= {a.get("id") for _, a in page.tags}
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    style = next(
        re.finditer(r"<style>(.*?)</style>", (tmp_path / "report.html").read_text(), re.DOTALL)
    ).group(1)
    assert "url(" not in style and "@import" not in style


def test_settings_curves_tables_and_completions_of_two_runs(tmp_path, make_record, make_run):
    metrics = [{"step": step, "reward": 0.1 * step, "loss": 0.0} for step in range(1, 4)]
    summary = {"accuracy": {"before": 0.461, "after": 0.8}, "report": "made", "seconds": 12.345}
    runs = [
        make_run(tmp_path / name, [make_record(TOKENS)], metrics, credit=name, task="query", summary=summary)
        for name in ("oar-g", "uniform")
    ]
    loaded = [load_without_task(run) for run in runs]
    page = read(render_run(loaded, tmp_path / "report.html"))
    for text in (
        "oar-g and uniform on query",
        "settings.learning_rate",
        "0.0002",
        "settings.lora.r",
        "0.461",
        "12.3",
    ):
        assert text in page.text, text
    figures = [a["aria-label"] for tag, a in page.tags if tag == "svg" and "aria-label" in a]
    assert figures[0] == "reward against step: oar-g from 0.1 to 0.3; uniform from 0.1 to 0.3"
    [completion] = json.loads(page.data)  # both runs have it
    assert [view["strategy"] for view in completion["views"]] == ["oar-g", "uniform"]


def load_without_task(directory):
    """Load a run whose task is only named (the tasks have their own tests)."""
    path = directory / "run.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps(info | {"task": None}))
    run = load_run(directory)
    return type(run)(run.path, info, run.metrics, run.records)


def test_a_run_without_records_or_metrics_has_a_report(tmp_path, make_run):
    page = read(render_run([make_run(tmp_path / "run", [])], tmp_path / "report.html"))
    assert "No completions were recorded." in page.text
    assert page.count("svg") == 0


def test_completions_are_sampled_evenly_and_the_page_says_so(tmp_path, make_record, make_run):
    run = make_run(tmp_path / "run", [make_record(TOKENS, step=step) for step in range(10)])
    page = read(render_run([run], tmp_path / "report.html", most=5))
    assert [completion["step"] for completion in json.loads(page.data)] == [0, 2, 4, 6, 8]
    assert "5 of 10 recorded completions" in page.text


def test_strategies_on_one_completion_come_together(tmp_path, make_record):
    first, second = make_record(TOKENS), make_record(TOKENS, credit="oar-p", importance=[float("nan")] * 7)
    other = make_record([*TOKENS[:-1], "3"])
    page = read(render_attribution([first, other, second], tmp_path / "a.html", "Two <strategies>"))
    completions = json.loads(page.data)
    assert [[view["strategy"] for view in c["views"]] for c in completions] == [["oar-g", "oar-p"], ["oar-g"]]
    assert completions[0]["views"][1]["importance"] == [None] * 7
    assert "Two <strategies>" in page.text


def test_bad_records_and_empty_lists_are_named(tmp_path, make_record):
    with pytest.raises(UsageError, match="record 1: 'weights' has 1 entries"):
        render_attribution(
            [make_record(TOKENS), make_record(TOKENS, weights=[1.0])], tmp_path / "a.html", "t"
        )
    with pytest.raises(UsageError, match="nothing to show"):
        render_attribution([], tmp_path / "a.html", "t")
    with pytest.raises(UsageError, match="no run to report"):
        render_run([], tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_one_strategy_are_told_apart_by_directory(tmp_path, make_run):
    runs = [load_run(make_run(tmp_path / where / "s0", [])) for where in ("a", "b")]
    runs.append(load_run(make_run(tmp_path / "s1", [], credit="uniform")))
    assert list(label_runs(runs)) == ["oar-g (s0)", "oar-g (s0)′", "uniform"]


def test_a_report_of_any_kind_has_what_it_is_given(tmp_path, make_record):
    """And nothing else."""
    lines = {"a": [(0.0, 1.0), (1.0, 0.0)], "b": [(0.0, 1.0), (1.0, 2.0)]}
    page = read(
        render_report(
            tmp_path / "a.html",
            title="Kind",
            findings=["a is <b>higher</b>"],
            reservations=["few pairs"],
            labels=["a", "b"],
            charts=[Chart("moved", "how far it moves", chart_svg("moved", lines, against="share"))],
            curves_title="How far",
            curves_note="Against the share.",
            tables=[
                Table(
                    "Figures", ["AUROC"], [["a\u202e", Number("0.82 ±0.03", 0.8234, 0.79, 0.85)]], "strategy"
                )
            ],
            completions=[Shown("a", make_record(TOKENS)), Shown("b", make_record(TOKENS))],
        )
    )
    for text in ("a is <b>higher</b>", "few pairs", "How far", "Against the share.", "Figures", "strategy"):
        assert text in page.text
    assert "a⟨U+202E⟩" in page.text and "Settings" not in page.text and "Learning curves" not in page.text
    [cell] = [attributes for tag, attributes in page.tags if tag == "td"]
    assert cell == {"data-value": "0.8234", "data-low": "0.79", "data-high": "0.85"}
    assert "moved against share: a from 1 to 0; b from 1 to 2" in [a.get("aria-label") for _, a in page.tags]
    bare = read(render_report(tmp_path / "b.html", title="Bare"))
    assert "No completions were recorded." in bare.text
    assert bare.count("section") == 1 and bare.count("table") == bare.count("nav") == 0
