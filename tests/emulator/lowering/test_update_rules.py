"""What update rules keep: rates, momentum as it is stored, and complex weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emulator.device import Device
from emulator.plans.steps import all_steps
from pef_schema.program import Program, Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy, view_as_torch
from tests.tracing import trace


def load(model: nn.Module, x: Tensor, *optimizers: torch.optim.Optimizer) -> tuple[Device, Program]:
    traced = trace(model, (x,))
    program = build_program(traced, list(optimizers), CompileOptions(name="q"))
    device = Device(program)
    for source in traced.sources:
        if source.role is Role.WEIGHT and source.tensor is not None:
            region = program.graphs[0].values[source.value].region
            device.write(region, view_as_numpy(source.tensor))
    return device, program


def test_learning_rate_is_not_rounded_to_bfloat16() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    model.forward = lambda x: (model.w * x).sum()
    x = torch.full((4,), 1.0, dtype=torch.bfloat16)
    device, program = load(model, x, torch.optim.SGD(model.parameters(), lr=0.12695))
    device.write(device.region_of("x"), view_as_numpy(x))
    device.run(device.plan(all_steps(program)))
    got = device.read(device.region_of("module__w")).astype(np.float32)
    expected = torch.tensor(1.0 - 0.12695).bfloat16().item()
    np.testing.assert_array_equal(got, np.full(4, expected, np.float32))


def test_changing_hyperparameters_compiles_nothing() -> None:
    model, x = nn.Module(), torch.randn(4)
    model.w = nn.Parameter(torch.ones(4))
    model.forward = lambda x: (model.w * x).sum()
    device, program = load(model, x, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    device.write(device.region_of("x"), view_as_numpy(x))
    for lr in (0.1, 0.01, 0.0):
        device.set_argin(device.argin_index["lr"], lr)
        before = device.read(device.region_of("module__w"))
        device.run(device.plan(all_steps(program)))
    np.testing.assert_array_equal(device.read(device.region_of("module__w")), before)
    assert device.counters.compiles == 1
    device.set_argin(device.argin_index["momentum"], 0.0)
    device.run(device.plan(all_steps(program)))
    assert device.counters.compiles == 2, "without momentum no buffer is kept: another plan"


def test_a_bfloat16_weight_goes_by_its_momentum_as_it_is_stored() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(512, dtype=torch.bfloat16))
    model.forward = lambda x: (model.w * x).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.7)
    x = torch.linspace(0.1, 3.0, 512).bfloat16()
    device, program = load(model, x, optimizer)
    device.write(device.region_of("x"), view_as_numpy(x))
    plan, read = device.plan(all_steps(program)), lambda name: device.read(device.region_of(name))
    device.run(plan)
    before = view_as_torch(read("module__w")).double()
    device.run(plan)
    (state,) = [p.states[0] for p in program.optimizers[0].params]
    buffer = view_as_torch(device.read(state)).double()
    assert (buffer != 1.7 * x.double()).any(), "it is rounded"
    torch.testing.assert_close(
        view_as_torch(read("module__w")), (before - buffer).bfloat16(), rtol=0, atol=0
    )


class Both(nn.Module):
    """A real and a complex weight of one shape, in either order."""

    a: Tensor
    b: Tensor

    def __init__(self, *, real_first: bool) -> None:
        super().__init__()
        weights = {"a": torch.tensor([0.5, -1.0]), "b": torch.tensor([0.3 + 0.8j, -0.6 + 0.1j])}
        for name in ("a", "b") if real_first else ("b", "a"):
            setattr(self, name, nn.Parameter(weights[name].clone()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a * x).square().sum() + (self.b * x).abs().square().sum()


@pytest.mark.parametrize("real_first", [True, False])
@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_real_and_complex_weights_of_one_optimizer(
    cls: type[torch.optim.Optimizer], real_first: bool
) -> None:
    model, x = Both(real_first=real_first), torch.tensor([0.7, -0.4])
    optimizer = cls(model.parameters(), lr=0.1)
    device, program = load(model, x, optimizer)
    device.write(device.region_of("x"), view_as_numpy(x))
    plan = device.plan(all_steps(program))
    for _ in range(3):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        device.run(plan)
    for name, parameter in model.named_parameters():
        got = view_as_torch(device.read(device.region_of(f"both__{name}")))
        torch.testing.assert_close(got, parameter.detach(), rtol=2e-6, atol=1e-6)
