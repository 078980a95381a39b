"""Reading a PEF runs no code: nothing that could is reachable from the package."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from tests.processes import finished

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "pef_schema"
_FILES = sorted(_PACKAGE.rglob("*.py"))
_ALLOWED = {
    "__future__",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "errno",
    "fcntl",
    "flatbuffers",
    "gc",
    "hashlib",
    "io",
    "itertools",
    "json",
    "math",
    "operator",
    "os",
    "pef_schema",
    "re",
    "secrets",
    "stat",
    "struct",
    "sys",
    "typing",
}
_FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "getattr", "globals", "open"}
_GETATTR_ALLOWED = {"write.py"}


def _imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.name)
def test_imports(path: Path) -> None:
    """No pickle, marshal, importlib, subprocess, numpy.load, ...: only these modules."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert _imports(tree) <= _ALLOWED


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.name)
def test_calls(path: Path) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    allowed = {"getattr"} if path.name in _GETATTR_ALLOWED else set()
    assert called & _FORBIDDEN_CALLS <= allowed


def test_files_are_small() -> None:
    for path in _FILES:
        if "_generated" not in path.parts:
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path.name


def test_import_has_no_effect_and_needs_neither_torch_nor_jax() -> None:
    code = (
        "import json, os, sys, threading\n"
        "before = dict(os.environ)\n"
        "sys.modules.update(torch=None, jax=None, jaxlib=None)\n"
        "import pef_schema\n"
        "print(json.dumps([dict(os.environ) == before, threading.active_count()]))\n"
    )
    done = finished([sys.executable, "-c", code], cwd=_ROOT, check=True)
    assert json.loads(done.stdout) == [True, 1]
