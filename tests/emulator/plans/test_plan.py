"""Plans: which memory a step reuses."""

from __future__ import annotations

import re

import torch
from torch import nn

import samba
from emulator.device import Device
from emulator.plans.plan import Plan
from emulator.plans.steps import all_steps
from pef_schema.program import Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy
from tests.tracing import trace


class Net(nn.Module):
    """Two layers of one shape, so that buffers could be mixed up."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.fc2(torch.relu(self.fc1(x)))
        return (out * out).mean(), out


def device_of(model: nn.Module) -> Device:
    """A device that holds the model's training program and weights."""
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    traced = trace(model, (torch.ones(4, 16),))
    device = Device(build_program(traced, [optimizer], CompileOptions(name="net")))
    values = device.program.graphs[0].values
    for source in traced.sources:
        if source.tensor is not None:
            device.write(values[source.value].region, view_as_numpy(source.tensor.detach()))
    return device


def text_of(plan: Plan) -> str:
    """What XLA made of a plan."""
    return plan.executables[0].as_text()


def test_every_buffer_is_its_own_successor() -> None:
    """A weight handed another weight's memory would cost a copy of both in every step."""
    device = device_of(Net())
    plan = device.plan(all_steps(device.program))
    found = re.findall(r"\{(\d+)\}: \((\d+), \{\}", text_of(plan).splitlines()[0])
    pairs = [(int(result), int(argument)) for result, argument in found]
    assert pairs == [(i, i) for i in range(plan.donated)]
    assert plan.reads[: plan.donated] == plan.writes[: plan.donated]


def test_no_weight_of_a_layer_is_copied() -> None:
    """The input gradient reads the weight too: its update must be told to come later."""
    device = device_of(Net())
    text = text_of(device.plan(all_steps(device.program)))
    entry = text[text.index("ENTRY ") :]
    assert "f32[16,16]" in entry
    assert not re.search(r"= f32\[16,16\]\S* copy\(", entry)


def test_gradients_and_outputs_are_written_where_they_were() -> None:
    device = device_of(Net())
    plan = device.plan(all_steps(device.program))
    roles = {device.program.regions[r].role for r in plan.overwritten}
    assert {Role.GRADIENT, Role.OUTPUT} <= roles
    device.run(plan)
    before = {r: device.pool.buffers[r] for r in plan.overwritten}
    device.run(plan)
    assert all(old.is_deleted() for old in before.values())
    assert all(not device.pool.buffers[r].is_deleted() for r in plan.overwritten)


class Recurrent(nn.Module):
    """One LSTM layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x[:, None])[0].square().mean()


def test_a_loop_runs_forward_once() -> None:
    """XLA keeps a second copy of a loop: the backward section must not bring one."""
    device = device_of(Recurrent())
    text = text_of(device.plan(all_steps(device.program)))
    assert len(re.findall(r" while\(", text)) == 2, "one loop forward, one backward"
