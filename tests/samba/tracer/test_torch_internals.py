"""Torch's private names stand in one file, and what is patched while a thread traces is undone."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import samba
import samba.tracer.torch_internals as internals
from pef_schema.program import Role
from samba.session import SambaSession
from samba.support.tracing import is_tracing, tracing
from samba.tracer.reference import run_reference
from tests.processes import came
from tests.tracing import trace

TRACER = Path(internals.__file__).parent
NAMES = {"torch_internals.py", "torch_patches.py"}
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
        if path.name not in NAMES and (found := private_names(path.read_text()))
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


# -- two threads that trace ------------------------------------------------------------


class Slow(nn.Module):
    """Tells when it is traced, and lets others try meanwhile."""

    def __init__(self, entered: threading.Event, inside: list[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self._entered, self._inside = [entered], inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._inside.append(1)
        self._entered[0].set()
        threading.Event().wait(0.2)
        assert len(self._inside) == 1
        self._inside.pop()
        return self.linear.to(torch.float32)(x)


def patched() -> tuple[object, ...]:
    return nn.Module._apply, Normal._validate_args, torch.nn.functional.dropout


def test_overlapping_traces_wait_for_each_other_and_leave_torch_as_it_was():
    before, inside = patched(), []
    entered = threading.Event()
    models = [Slow(entered, inside) for _ in range(3)]
    x = torch.randn(2, 4)

    def traced(number: int):
        if number:
            came(entered)
        return trace(models[number], x)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(traced, range(3)))
    assert patched() == before
    assert not is_tracing()
    for model, one in zip(models, found, strict=True):
        sources = {s.value: x if s.tensor is None else s.tensor for s in one.sources}
        sources |= {s.value: x for s in one.sources if s.role is Role.INPUT}
        results = run_reference(one.graph(), sources)
        torch.testing.assert_close(results[one.outputs[0].value], model.linear(x))


def test_sessions_of_two_threads_compile_at_once(tmp_path):
    entered, inside = threading.Event(), []
    before = patched()

    def compiled(number: int) -> str:
        model = samba.from_torch_model_(Slow(entered, inside))
        if number:
            came(entered)
        x = samba.from_torch_tensor(torch.randn(2, 4), name="x")
        config = {"output_folder": str(tmp_path), "pef_name": f"m{number}", "inference": True}
        return SambaSession().compile(model, (x,), config_dict=config)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(compiled, range(2))
    assert samba.SambaSession(first).get_weight_names() == (
        samba.SambaSession(second).get_weight_names()
    )
    assert patched() == before and not is_tracing()


def test_a_thread_may_trace_while_it_traces():
    with tracing(), tracing():
        assert is_tracing()
        trace(nn.Linear(2, 2), torch.zeros(1, 2))
        assert is_tracing()
    assert not is_tracing()
