"""Torch's compiler is loaded where it is used, and not where it is only switched off."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.fx.experimental import symbolic_shapes

from samba.support.late_compiler import _OF_NUMBERS
from tests import warm

SCRIPT = """
import sys

import torch
from torch import nn

import sambaflow.samba as samba
from samba.remembering.trace_key import trace_key
from samba.support.late_compiler import late_compiler
from samba.tracer.inputs import collect_inputs

NAMES = "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy"


class Net(nn.Module):
    def __init__(self, asks=False):
        super().__init__()
        self.norm, self.linear, self.asks = nn.LayerNorm(4), nn.Linear(4, 2), asks
        self.words, self.conv = nn.Embedding(7, 4), nn.Conv1d(4, 4, 1)
        self.batch = nn.BatchNorm1d(4)

    def forward(self, x):
        if self.asks:
            import sympy
            from torch.fx.experimental.symbolic_shapes import guard_int, ShapeEnv

            sys.held_by_forward = sympy
            assert guard_int(3) == 3 and issubclass(ShapeEnv, object)
            assert sympy.Symbol("n") + 1 == sympy.sympify("n + 1")
        x = x + self.batch(self.conv(self.words(torch.arange(7)).T[None]))[0].T[:3] * 2
        x = torch.cat([x, x.square()], -1).chunk(2, -1)[0].reshape(3, 4).masked_fill(x > 9, 0.5)
        return nn.functional.softmax(self.linear(self.norm(x)), -1).sum() / x.size(0)


model = Net()
optimizer = samba.optim.AdamW(model.parameters(), lr=0.1)
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
given = collect_inputs(model, torch.ones(3, 4))
key = trace_key(model, given, inference=False)
assert not sys.modules.keys() & {*NAMES}, "no more than switched off, of plain numbers"
assert "_dynamo" not in vars(torch) and "symbolic_shapes" not in vars(torch.fx.experimental)

asking = Net(asks=True)
trace_key(asking, given, inference=False)
held = sys.held_by_forward
assert held.Basic is sys.modules["sympy"].Basic, "who has kept what stood for it has all of it"
with late_compiler():
    import torch._dynamo.config as config

    assert config.cache_size_limit > 0
assert all(sys.modules[name].__file__ for name in NAMES), "whatever else is asked for loads it"

assert trace_key(model, given, inference=False) == key

# What was switched off without the compiler is switched off with it: torch asks again.
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


compiled = torch.compile(lambda x: (optimizer.zero_grad(), x + 1)[1], backend=backend)
assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
assert graphs, "torch.compile works as ever"
print("done")
"""


@pytest.mark.filterwarnings("ignore:guard_size_oblivious will be removed:FutureWarning")
@pytest.mark.parametrize("name", sorted(_OF_NUMBERS))
def test_numbers_are_asked_for_as_torch_does(name: str) -> None:
    ours, torchs = _OF_NUMBERS[name], getattr(symbolic_shapes, name)
    booleans = [(False,), (True,), (False, True), (True, True), (False, False)]
    numbers = [(1,), (0,), (-3,)]
    pairs = [(2, 2), (2, 3), ((2, 3), [2, 3]), ((2, 3), (2,)), ([], ()), ([1, [2]], (1, (2,)))]
    for args in {"sym_eq": pairs, "sym_and": booleans, "sym_or": booleans}.get(
        name, numbers if name.endswith(("int", "throw", "hint")) else booleans[:2]
    ):
        assert ours(*args) == torchs(*args), args
    if name in {"expect_true", "guard_or_true", "guard_or_false", "statically_known_true"}:
        for function in (ours, torchs):
            with pytest.raises(AssertionError, match="Expected bool"):
                function(2)


def test_it_is_loaded_late(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = warm.finished([sys.executable, script], cwd=tmp_path, server=warm.SAMBA)
    assert done.stdout == "done\n", done.stderr
