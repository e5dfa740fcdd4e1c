"""`tokencredit attribute`: heat maps of one completion in the terminal, as HTML and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import edit_json

PROMPT = "S1 7 + 5 ; S2 3 - 4 ; S3 1 - 9 ; S4 2 + 2 ; ? S2"
COMPLETION = "S1 so 7 + 5 = 2 ; S2 hmm 3 - 4 = 9 ; S3 now 1 - 9 = 2 ; S4 me 2 + 2 = 4 ; ans 9"
GIVEN = ("--prompt", PROMPT, "--completion", COMPLETION)


def records(path: str) -> list[dict]:
    return json.loads(Path(path).read_text())["records"]


def test_built_in_policy_on_its_own_problem(cli):
    outcome = cli(
        "attribute", "--model", "query", "--credit", "oar-g,oar-p", "--json", "a.json", "--html", "a.html"
    )
    assert outcome.code == 0
    assert "top tokens by oar-g" in outcome.out and "top tokens by oar-p" in outcome.out
    assert outcome.out.startswith("prompt: S1 ")
    assert "\nanswer: " in outcome.out
    found = records("a.json")
    assert [record["credit"] for record in found] == ["oar-g", "oar-p"]
    assert found[0]["tokens"] == found[1]["tokens"]
    assert "<html" in Path("a.html").read_text()


def test_given_completion_and_its_numbers(cli):
    """The answer is read off the queried result, so OAR-P must put it far before the other results."""
    cli("attribute", "--model", "query", *GIVEN, "--credit", "oar-p,uniform", "--json", "a.json")
    record, uniform = records("a.json")
    assert "".join(record["tokens"]) == COMPLETION
    results = {"queried result": [], "other result": []}
    for role, value in zip(record["roles"], record["importance"], strict=True):
        if role in results:
            results[role].append(value)
    (queried,) = results["queried result"]
    assert queried > 10 * max(results["other result"])
    start, end = record["reasoning"]
    assert sum(record["weights"][start:end]) == pytest.approx(end - start, rel=1e-5)
    assert record["answer"] == [len(record["tokens"]) - 1, len(record["tokens"])]
    assert set(uniform["weights"]) == {1.0}
    assert all(0 < p <= 1 for p in record["probability"])


def test_texts_from_files_and_both_spellings(cli):
    Path("prompt.txt").write_text(PROMPT)
    Path("completion.txt").write_text(COMPLETION)
    files = ("--prompt", "@prompt.txt", "--completion", "@completion.txt", "--max-new-tokens", 8)
    assert cli("attribute", "--model", "query", *files, "--json", "a.json").code == 0
    cli("attribute", "--model", "query", *GIVEN, "--json", "b.json")
    assert records("a.json") == records("b.json")


def test_sampling_is_seeded_and_greedy_by_default(cli):
    def tokens(*flags) -> list[str]:
        cli(
            "attribute",
            "--model",
            "query",
            "--prompt",
            PROMPT,
            "--credit",
            "uniform",
            "--json",
            "a.json",
            *flags,
        )
        return records("a.json")[0]["tokens"]

    assert tokens() == tokens("--seed", 5)
    warm = ("--temperature", 1.5)
    assert tokens(*warm, "--seed", 1) == tokens(*warm, "--seed", 1) != tokens(*warm, "--seed", 2)


def test_without_an_answer_the_probe_asks(cli):
    unanswered = ("--prompt", PROMPT, "--completion", "S1 so 7 + 5 = 2 ;")
    outcome = cli("attribute", "--model", "query", *unanswered, "--json", "a.json")
    assert "no answer found; the probe asks for it" in outcome.out
    (record,) = records("a.json")
    assert (record["answer"], record["rule"]) == (None, "probe")
    assert max(value or 0 for value in record["importance"]) > 0
    asked = cli("attribute", "--model", "query", *GIVEN, "--probe", "ans")
    assert "answer: 9 (token 33); the probe asks for it" in asked.out


def test_options_reach_the_strategies(cli):
    def importance(*flags) -> list[float]:
        cli("attribute", "--model", "query", *GIVEN, "--json", "a.json", *flags)
        return records("a.json")[0]["importance"]

    one = importance("--credit", "oar-g", "--option", "gradient=labels")
    assert one != importance("--credit", "oar-g")
    assert one == importance("--credit", "oar-g", "--option", "gradient=labels", "--seed", 9)
    pad = importance("--credit", "oar-p")
    assert pad != importance("--credit", "oar-p", "--counterfactual", "alternative")
    assert pad != importance("--credit", "oar-p", "--outcome", "answer_joint")


def test_markup_and_control_characters_are_text(cli, model):
    """A model whose prompt tries to write to the page and the terminal."""
    prompt = "S1 7 + 5 </script><b>x</b> [red]y[/red] \x1b[2J ; ? S1"
    edit_json(model / "tokenizer_config.json", unk_token="<b>[red]\x1b[2J")
    flags = ("--completion", "S1 ? = 2 \x1b ; ans 2", "--marker", "ans", "--html", "a.html")
    outcome = cli("attribute", "--model", model, "--prompt", prompt, *flags)
    assert outcome.code == 0
    assert "\x1b[2J" not in outcome.out
    assert "<b>x</b>" not in Path("a.html").read_text()


def test_chat_template_is_used_where_there_is_one(cli, model):
    edit_json(model / "tokenizer_config.json", chat_template="ans {{ messages[0]['content'] }} ;")
    flags = ("attribute", "--model", model, *GIVEN, "--marker", "ans", "--json", "a.json")
    cli(*flags)
    assert records("a.json")[0]["prompt"] == f"ans {PROMPT} ;"
    cli(*flags, "--no-chat")
    assert records("a.json")[0]["prompt"] == PROMPT


def test_a_prompt_that_is_no_problem_has_no_roles(cli):
    given = ("--prompt", "7 + 5", "--completion", "so ans 2")
    assert cli("attribute", "--model", "query", *given, "--json", "a.json").code == 0
    assert "roles" not in records("a.json")[0]


@pytest.mark.parametrize(
    ("target", "message"),
    [("file/a.json", "Not a directory"), ("folder", "it is a folder"), ("n" * 300, "File name too long")],
)
def test_nothing_is_written_where_one_target_cannot_be(cli, target, message):
    Path("file").write_text("")
    Path("folder").mkdir()
    before = sorted(Path().iterdir())
    for flags in (("--html", "a.html", "--json", target), ("--html", target, "--json", "a.json")):
        outcome = cli("attribute", "--model", "query", *GIVEN, *flags)
        assert outcome.code == 2
        assert f"cannot write {target}: {message}" in outcome.error
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("other", ["a.html", "./a.html", "link"])
def test_one_file_for_both_is_refused(cli, other):
    Path("link").symlink_to("a.html")
    outcome = cli("attribute", "--model", "query", *GIVEN, "--html", "a.html", "--json", other)
    assert outcome.code == 2
    assert "--html and --json both name a.html; give each a file of its own" in outcome.error
    assert not Path("a.html").exists()


def test_a_completion_that_is_only_an_answer(cli):
    flags = ("--prompt", PROMPT, "--completion", "ans 9", "--credit", "oar-g,uniform", "--json", "a.json")
    outcome = cli("attribute", "--model", "query", *flags)
    assert outcome.code == 0
    assert outcome.out.count("nothing before the answer to attribute to") == 2
    assert "top tokens" not in outcome.out
    assert not any(any(record["importance"]) for record in records("a.json"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "query", "--credit", "oar-x"), "unknown credit strategy 'oar-x'; use one of oar-p"),
        (("--model", "query", "--credit", ","), "--credit ,: give names with commas"),
        (("--model", "query", "--credit", "sibling"), "sibling needs several completions of each prompt"),
        (("--model", "none/such/model", "--prompt", "x"), "no model folder"),
        (("--prompt", "x"), "--model"),
        (("--model", "other"), "--prompt is needed"),
        (("--model", "query", "--prompt", " "), "the prompt is empty"),
        (("--model", "query", "--completion", "@none.txt"), "cannot read the completion from none.txt"),
        (("--model", "query", "--outcome", "first"), "outcome must be one of last"),
        (("--model", "query", "--option", "draws"), "give NAME=VALUE with one of outcome"),
        (("--model", "query", "--option", "draws=1.5"), "'1.5' is no int"),
        (("--model", "query", "--option", "mass=perhaps"), "'perhaps' is no bool"),
        (("--model", "query", "--option", "q=2"), "q must lie in [0, 1]"),
        (("--model", "query", "--temperature", "-1"), "--temperature must be 0 or more"),
        (("--model", "query", "--max_new_tokens", "0"), "must be at least 1"),
        (("--model", "query", "--max_new_tokens", "500"), "the model reads at most 128"),
        (("--model", "query", "--chat"), "no chat template"),
    ],
)
def test_refusals(cli, flags, message):
    outcome = cli("attribute", *flags)
    assert outcome.code == 2
    assert message in outcome.error
