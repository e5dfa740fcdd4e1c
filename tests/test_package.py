"""The public surface, what it imports, and that imports point one way."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import tokencredit

SOURCE = Path(tokencredit.__file__).parent
LAYERS = {
    "errors": 0,
    "signals": 0,
    "credit": 1,
    "answers": 1,
    "checkpoints": 1,
    "rollouts": 1,
    "spans": 2,
    "packing": 1,
    "ranks": 1,
    "readiness": 1,
    "layout": 2,
    "calling": 2,
    "memory": 2,
    "passes": 2,
    "edits": 2,
    "checks": 2,
    "continuations": 2,
    "policy_texts": 2,
    "sampling": 2,
    "steps": 2,
    "step_verifiers": 6,
    "policy": 3,
    "configs": 3,
    "graph": 3,
    "generation": 4,
    "grounding": 4,
    "functional": 4,
    "plan": 4,
    "tasks": 5,
    "report": 6,
    "evaluation": 6,
    "fidelity": 7,
    "trainer_checks": 7,
    "trainer_config": 7,
    "trainer_graders": 7,
    "trainer_logging": 7,
    "trainer_resume": 7,
    "trainer_rewards": 7,
    "trainer_steps": 7,
    "trl": 7,
    "compare": 7,
    "cli": 8,
}


def test_public_names_exist_and_are_documented():
    for name in tokencredit.__all__:
        thing = getattr(tokencredit, name)
        assert name == "STRATEGIES" or thing.__doc__, name


def test_credit_imports_torch_alone():
    """With transformers, trl and the rest blocked, the core still imports."""
    code = (
        "import sys\n"
        "for name in ('transformers', 'trl', 'datasets', 'accelerate', 'peft', 'math_verify', 'rich', 'jinja2'):\n"
        "    sys.modules[name] = None\n"
        "import tokencredit, tokencredit.credit\n"
        "for name in tokencredit.__all__:\n"
        "    getattr(tokencredit, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_bare_import_is_light():
    code = "import sys, tokencredit, tokencredit.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_wheel_carries_what_the_package_needs(tmp_path):
    """Every file under src/ but bytecode, and the licence."""
    project = SOURCE.parent.parent
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / name, tmp_path)
    shutil.copytree(
        SOURCE, tmp_path / "src" / "tokencredit", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = tmp_path / "src"
    assert {str(p.relative_to(source)) for p in (source / "tokencredit").rglob("*") if p.is_file()} <= packed
    assert "tokencredit/py.typed" in packed and any(name.endswith("licenses/LICENSE") for name in packed)


def test_unknown_names_raise():
    assert not hasattr(tokencredit, "no_such_name")


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokencredit."):
                target = node.module.split(".")[1]
                allowed = LAYERS[target] <= LAYERS[parts[0]] or _only_for_types(path, node)
                assert allowed, f"{path.name} imports {node.module}"


def _only_for_types(path: Path, node: ast.ImportFrom) -> bool:
    """Whether the import stands under `if TYPE_CHECKING`."""
    for outer in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(outer, ast.If) and getattr(outer.test, "id", "") == "TYPE_CHECKING":
            return any(inner.lineno == node.lineno for inner in outer.body)
    return False
