"""Commands, help and errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tokencredit import STRATEGIES
from tokencredit.cli import COMMANDS, main


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from tokencredit.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "tokencredit", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert done.stdout.startswith("tokencredit ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    try:
        code = main([name, "--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0
    assert f"tokencredit {name}" in capsys.readouterr().out


def test_no_and_unknown_commands(cli):
    assert cli().error.startswith("tokencredit: error: no command given; there are train,")
    unknown = cli("trian")
    assert unknown.code == 2
    assert "no command 'trian'" in unknown.error
    assert cli("--frobnicate").code == 2


def test_errors_are_one_line(cli):
    outcome = cli("attribute", "--model", "a\nb/c/d\ne", "--prompt", "x")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_interruption_is_a_line_and_130(cli, monkeypatch):
    from tokencredit.cli import strategies

    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(strategies, "run", interrupted)
    outcome = cli("strategies")
    assert (outcome.code, outcome.err) == (130, "tokencredit: error: interrupted\n")


def test_strategies_lists_all(cli):
    lines = cli("strategies").out.splitlines()
    assert [line.split()[0] for line in lines] == list(STRATEGIES)
    assert STRATEGIES["oar-p"].summary in lines[list(STRATEGIES).index("oar-p")]
