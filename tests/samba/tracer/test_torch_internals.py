"""One file of the tracer knows torch's private names."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import samba.tracer.torch_internals as internals
from tests.processes import finished

TRACER = Path(internals.__file__).parent
ATTRIBUTES = {
    *("_apply", "_parameters", "_buffers", "_modules", "_version", "_schema", "_overloadpacket"),
    *("_set_replace_hook", "_validate_args", "py_kernels", "fake_mode"),
}
"""Names that torch's objects have, whatever they are called by."""


def is_private(name: str) -> bool:
    """Whether a dotted name of torch's has a part that begins with one underscore."""
    parts = name.split(".")
    return parts[0] == "torch" and any(p.startswith("_") and p[:2] != "__" for p in parts)


def private_names(source: str) -> list[str]:
    """Where code names what is private to torch, as ``line: name``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if node.attr in ATTRIBUTES:
                names = [f"torch._.{node.attr}"]
            elif names[0].startswith("torch.ops."):
                names = []  # operations are public under whatever name
        else:
            continue
        found += [f"{node.lineno}: {name}" for name in names if is_private(name)]
    return found


def test_no_other_file_names_what_is_private_to_torch() -> None:
    files = sorted(TRACER.rglob("*.py"))
    wrong = {
        str(path.relative_to(TRACER)): found
        for path in files
        if path.name != "torch_internals.py" and (found := private_names(path.read_text()))
    }
    assert len(files) > 15
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "import torch._decomp",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "from torch.utils import _pytree",
        "isinstance(target, torch._ops.OpOverload)",
        "torch.nn.Module._apply = apply",
        "node.target._schema.arguments",
    ],
)
def test_the_search_bites(line: str) -> None:
    assert private_names(line)
    assert private_names((TRACER / "torch_internals.py").read_text())


def test_the_tracer_loads_no_exporter_before_it_traces() -> None:
    """Torch's exporter takes a second to load, which no import should."""
    code = (
        "import sys, samba.tracer.capture, samba.tracer.trace_cache\n"
        "assert 'torch._dynamo' not in sys.modules and 'jax' not in sys.modules"
    )
    finished([sys.executable, "-c", code], check=True)
