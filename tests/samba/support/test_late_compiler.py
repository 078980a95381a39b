"""Torch's compiler is loaded where it is used, and not where it is only switched off."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.processes import finished

SCRIPT = """
import sys

import torch
from torch import nn

import sambaflow.samba as samba
from samba.remembering.trace_key import trace_key
from samba.support.late_compiler import late_compiler
from samba.tracer.inputs import collect_inputs

LOADED = "torch._dynamo"


class Net(nn.Module):
    def __init__(self, asks=False):
        super().__init__()
        self.norm, self.linear, self.asks = nn.LayerNorm(4), nn.Linear(4, 2), asks

    def forward(self, x):
        if self.asks:
            import torch._dynamo.config as config

            assert config.cache_size_limit > 0
        return nn.functional.softmax(self.linear(self.norm(x)), -1).sum()


model = Net()
optimizer = samba.optim.AdamW(model.parameters(), lr=0.1)
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
given = collect_inputs(model, torch.ones(3, 4))
key = trace_key(model, given, inference=False)
assert LOADED not in sys.modules, "no more than switched off"
assert "_dynamo" not in vars(torch)

with late_compiler():
    assert torch._dynamo.config.cache_size_limit > 0, "whatever else is asked for loads it"
assert sys.modules[LOADED].__file__ == torch._dynamo.__file__

assert trace_key(model, given, inference=False) == key
asking = Net(asks=True)
trace_key(asking, given, inference=False)

# What was switched off without the compiler is switched off with it: torch asks anew.
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


compiled = torch.compile(lambda x: (optimizer.zero_grad(), x + 1)[1], backend=backend)
assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
assert graphs, "torch.compile works as ever"
print("done")
"""


def test_it_is_loaded_late(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = finished([sys.executable, script], cwd=tmp_path)
    assert done.stdout == "done\n", done.stderr
