"""Lean's messages, in the form that its REPL gives them, and the steps that they are about. No Lean is needed."""

from __future__ import annotations

import pytest

from tokencredit import UsageError
from tokencredit.answers.lean_steps import LeanSteps, first_error_verdicts, proof_of

PROMPT = "Prove it.\n```lean\ntheorem t (a b : Nat) (h : a = b) : b = a ∧ a = a := by\n```\n"
STEPS = ["  constructor\n", "  · exact h\n", "  · rfl\n"]
# For that proof, in which h has the wrong direction.
MISMATCH = {
    "severity": "error",
    "pos": {"line": 3, "column": 10},
    "endPos": {"line": 3, "column": 11},
    "data": "type mismatch\n  h\nhas type\n  a = b : Prop\nbut is expected to have type\n  b = a : Prop",
}
UNUSED = {
    "severity": "warning",
    "pos": {"line": 2, "column": 2},
    "endPos": None,
    "data": "unused variable `b`\nnote: this linter can be disabled with `set_option linter.unusedVariables false`",
}
OPEN_GOALS = {
    "severity": "error",
    "pos": {"line": 1, "column": 53},
    "endPos": {"line": 3, "column": 9},
    "data": "unsolved goals\ncase right\na b : Nat\nh : a = b\n⊢ a = a",
}
SORRY = {
    "severity": "warning",
    "pos": {"line": 1, "column": 8},
    "endPos": {"line": 1, "column": 9},
    "data": "declaration uses `sorry`",
}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], [True, True, True]),
        ([UNUSED], [True, True, True]),
        ([UNUSED, MISMATCH], [True, False, None]),
        # Reported where the proof begins: its end is missing, or somewhere it gives up.
        ([OPEN_GOALS], [True, True, False]),
        ([SORRY], [True, True, False]),
        ([OPEN_GOALS, MISMATCH], [True, False, None]),
    ],
)
def test_the_first_error(messages, expected):
    assert first_error_verdicts(proof_of(PROMPT, STEPS), messages) == expected


def test_code_in_a_fence():
    """Talk around it has no verdict; a statement of its own takes the place of the prompt's."""
    steps = ["We split.\n", "```lean\n", "  constructor\n", "  · exact h\n", "```\n", "Done."]
    proof = proof_of(PROMPT, steps)
    assert (
        proof.code == "theorem t (a b : Nat) (h : a = b) : b = a ∧ a = a := by\n  constructor\n  · exact h\n"
    )
    assert first_error_verdicts(proof, [MISMATCH]) == [None, None, True, False, None, None]
    own = proof_of(PROMPT, ["```lean4\nexample : 1 = 1 := by\n", "  rfl\n", "```"])
    assert own.code == "example : 1 = 1 := by\n  rfl\n"
    assert first_error_verdicts(own, []) == [True, True, None]
    assert first_error_verdicts(proof_of(PROMPT, ["```lean\n```"]), [OPEN_GOALS]) == [None]
    assert proof_of("theorem u : True := by", ["  trivial"]).code == "theorem u : True := by\n  trivial"


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(UsageError, match="no Lean project: it has no lakefile"):
        LeanSteps(tmp_path)


class Reply:
    def __init__(self, messages):
        self.messages = messages


class Message:
    def __init__(self, fields):
        self.fields = fields

    def model_dump(self, by_alias):
        assert by_alias
        return self.fields


class Lean:
    """Stands in for lean-interact: what it is asked, and what it answers."""

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    LocalProject = staticmethod(lambda directory: directory)
    LeanREPLConfig = staticmethod(lambda project: project)
    Command = staticmethod(lambda cmd: cmd)

    def AutoLeanServer(self, config):  # noqa: N802
        return self

    def run(self, command, timeout):
        self.asked.append(command)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def test_proofs_are_run_one_by_one(tmp_path, monkeypatch):
    shifted = {**MISMATCH, "pos": {"line": 5, "column": 10}}
    lean = Lean(Reply([Message(shifted)]), TimeoutError(), object(), Reply([]))
    monkeypatch.setitem(__import__("sys").modules, "lean_interact", lean)
    (tmp_path / "lakefile.toml").write_text("")
    verify = LeanSteps(tmp_path, header="import Mathlib\nopen Nat\n")
    found = verify([PROMPT] * 4, [STEPS] * 4)
    assert found == [[True, False, None], [None] * 3, [None] * 3, [True] * 3]
    assert lean.asked[0].startswith("import Mathlib\nopen Nat\ntheorem t (a b : Nat)")


def test_lean_that_does_not_start_is_said(tmp_path, monkeypatch):
    class Missing(Lean):
        def AutoLeanServer(self, config):  # noqa: N802
            raise RuntimeError("`lake` not\nfound")

    monkeypatch.setitem(__import__("sys").modules, "lean_interact", Missing())
    (tmp_path / "lakefile.lean").write_text("")
    with pytest.raises(UsageError, match=r"Lean does not start in .*: `lake` not found"):
        LeanSteps(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "lean_interact", None)
    with pytest.raises(UsageError, match=r"pip install 'tokencredit\[lean\]'"):
        LeanSteps(tmp_path)
