"""Plans: what they run, how they are compiled, polled and refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from torch import nn

import samba
from emulator.device import Device
from emulator.errors import PlanError
from emulator.memory.budget import LIMIT_VARIABLE
from emulator.plans.calls import Poller
from emulator.plans.plan import Plan
from emulator.plans.steps import all_steps
from emulator.plans.traced import FlatPlan, Forms, flattened
from pef_schema import Program, Ref, verify
from pef_schema.program import DType, Region, Role, Value
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference
from tests.samba.session.loading import loaded
from tests.samba.worlds import World
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


class Pointwise(nn.Module):
    """The cotangent of the last convolution is read for its bias and for what comes before."""

    def __init__(self, conv: type[nn.Conv1d] | type[nn.Conv2d]) -> None:
        super().__init__()
        self.first, self.last = conv(4, 8, 1), conv(8, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first(x))
        return h.sum() + (self.last(h) ** 2).sum()


@pytest.mark.parametrize(
    ("conv", "shape"), [(nn.Conv1d, (2, 4, 12)), (nn.Conv2d, (2, 4, 3, 5))], ids=["1d", "2d"]
)
def test_gradients_are_torchs(conv, shape, tmp_path):
    x = torch.randn(shape)
    world = World(name="pointwise", model=lambda: Pointwise(conv), inputs=lambda: {"x": x})
    scene = loaded(world, tmp_path)
    scene.run()
    scene.host(x).backward()
    for name, p in scene.model.named_parameters():
        wanted = scene.host.get_parameter(name).grad
        torch.testing.assert_close(p.sn_grad, wanted, rtol=1e-5, atol=1e-5)


class _Result:
    """Ready when asked for the given time."""

    def __init__(self, ready_after: int) -> None:
        self.asked, self._ready_after = 0, ready_after

    def is_ready(self) -> bool:
        self.asked += 1
        return self.asked > self._ready_after


def _asked(poller: Poller, ready_after: int) -> int:
    result = _Result(ready_after)
    poller.wait_briefly(result)
    return result.asked


def test_asks_until_the_result_is_there() -> None:
    poller = Poller()
    assert [_asked(poller, n) for n in (0, 7, 100)] == [1, 8, 101]


def test_leaves_long_steps_alone_for_a_while() -> None:
    poller = Poller()
    never = 10**9
    asked = [_asked(poller, never) for _ in range(300)]
    tried = [i for i, n in enumerate(asked) if n]
    assert tried[0] == 0
    assert len(tried) == 3
    assert max(asked) < 1000, "polling takes a core from whoever computes"


def test_asks_again_once_steps_are_short() -> None:
    poller = Poller()
    _asked(poller, 10**9)
    asked = [_asked(poller, 3) for _ in range(200)]
    assert asked[0] == 0
    assert asked[-1] == 4


def _meeting(rows: int, columns: int) -> Program:
    """The mean of squared differences of a column and a row, which are a table on the way."""
    shapes = {"x": (rows, 1), "y": (), "w": (1, columns)}
    kinds = {"x": Role.INPUT, "y": Role.OUTPUT, "w": Role.INPUT}
    program = inference()
    graph = program.graphs[0]
    values = tuple(
        Value(name=name, shape=shape, dtype=DType.FLOAT32, region=home)
        for (name, shape), home in zip(shapes.items(), (0, -1, 2), strict=True)
    )
    program = replace(
        program,
        regions=tuple(
            Region(name=name, shape=shape, dtype=DType.FLOAT32, role=kinds[name])
            for name, shape in shapes.items()
        ),
        graphs=(replace(graph, values=values, inputs=(0, 2)),),
    )
    mean = 1
    program = edit(
        program, "graphs.0.nodes.0", op="aten.mse_loss.default", args=(Ref(0), Ref(2), mean)
    )
    program = edit(program, "sections.0.steps.0", reads=(0, 2))
    verify(program)
    return program


def test_a_table_on_the_way_that_xla_has_no_number_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, str(2**50))
    program = _meeting(2**31, 2**31)
    device = Device(program)
    with pytest.raises(PlanError, match=r"array of shape \[2147483648, 2147483648\]"):
        device.plan(all_steps(program))


def test_a_table_that_is_never_in_memory() -> None:
    program = _meeting(2**10, 2**10)
    assert {0, 2} <= set(Device(program).plan(all_steps(program)).reads)


X = np.arange(24.0, dtype=np.float32).reshape(1, 2, 3, 4)


def flat(function: Any) -> FlatPlan:
    return flattened(jax.make_jaxpr(function)(X).jaxpr, Forms(), whole=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.permutations(range(4)), max_size=4))
def test_transposes_of_transposes_are_one_or_none(orders: list[list[int]]) -> None:
    def turn(x: jax.Array) -> jax.Array:
        for order in orders:
            x = jnp.transpose(x, order)
        return x * 2.0

    traced: Any = jax.make_jaxpr(turn)(X)
    found = flat(turn)
    names = [eqn.primitive.name for eqn in found.eqns]
    (y,) = jaxpr_as_fun(
        ClosedJaxpr(traced.jaxpr.replace(eqns=found.eqns, outvars=found.results), ())
    )(X)
    moves = X.transpose(*orders[0]) if orders else X
    for order in orders[1:]:
        moves = moves.transpose(*order)
    assert names in (["mul"], ["transpose", "mul"])
    np.testing.assert_array_equal(y, moves * 2.0)


def test_a_value_between_two_transposes_is_kept_for_its_other_readers() -> None:
    def turn(x: jax.Array) -> Any:
        h = jnp.transpose(x, (0, 2, 3, 1))
        return jnp.sin(h), jnp.transpose(h, (0, 3, 1, 2)) + x

    names = [eqn.primitive.name for eqn in flat(turn).eqns]
    assert names == ["transpose", "sin", "add"]
