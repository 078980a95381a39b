"""Update rules against torch's optimizers, over several steps and all their options."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emulator.device import Device
from emulator.plans.steps import all_steps
from pef_schema.program import Program, Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.distributed.bagua import QAdamOptimizer
from samba.tensor.views import view_as_numpy, view_as_torch
from tests.tracing import trace


class Quadratic(nn.Module):
    """Two parameters of different shapes, with a gradient that changes every step."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.a = nn.Parameter(torch.randn(4, 3, generator=generator).to(dtype))
        self.b = nn.Parameter(torch.randn(3, generator=generator).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.a + self.b) ** 2).mean()


CASES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.01, "momentum": 0.5, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.02}),
    (torch.optim.Adam, {"lr": 0.02, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}),
    (torch.optim.Adam, {"lr": 0.02, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.02, "amsgrad": True, "maximize": True}),
    (QAdamOptimizer, {"lr": 0.02, "warmup_steps": 20}),
    (QAdamOptimizer, {"lr": 0.02, "warmup_steps": 4, "weight_decay": 0.1, "betas": (0.8, 0.9)}),
]


def load(model: nn.Module, x: Tensor, *optimizers: torch.optim.Optimizer) -> tuple[Device, Program]:
    traced = trace(model, (x,))
    program = build_program(traced, list(optimizers), CompileOptions(name="q"))
    device = Device(program)
    for source in traced.sources:
        if source.role is Role.WEIGHT and source.tensor is not None:
            region = program.graphs[0].values[source.value].region
            device.write(region, view_as_numpy(source.tensor))
    return device, program


Cases = list[tuple[type[torch.optim.Optimizer], dict[str, Any]]]


class Several(nn.Module):
    """A model for each case; the gradients of each are those that it has alone."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.each = nn.ModuleList([Quadratic(dtype) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.each]).sum()


def assert_trains_alike(cases: Cases, dtype: torch.dtype, bound: float) -> None:
    """Ten steps on both sides, of all cases in one program; all weights after each step."""
    model = Several(len(cases), dtype)
    pairs = zip(cases, model.each, strict=True)
    optimizers = [cls(part.parameters(), **options) for (cls, options), part in pairs]
    generator = torch.Generator().manual_seed(6)
    batches = [torch.randn(5, 4, generator=generator).to(dtype) for _ in range(10)]
    device, program = load(model, batches[0], *optimizers)
    plan = device.plan(all_steps(program))
    homes = {
        name: device.region_of(f"several__{name.replace('.', '__')}")
        for name, _ in model.named_parameters()
    }
    for step, x in enumerate(batches):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(x).backward()
        for optimizer in optimizers:
            optimizer.step()
        device.write(device.region_of("x"), view_as_numpy(x))
        device.run(plan)
        for name, parameter in model.named_parameters():
            got = view_as_torch(device.read(homes[name]))
            place = f"{cases[int(name.split('.')[1])]}, {name} after step {step}"
            torch.testing.assert_close(
                got,
                parameter.detach(),
                rtol=bound,
                atol=bound,
                msg=lambda text, place=place: f"{place}: {text}",
            )


def test_ten_steps_follow_torch() -> None:
    # Ten updates, each within a few ulps of weights of order one.
    assert_trains_alike(CASES, torch.float32, 4e-6)


def test_float64_is_float64() -> None:
    assert_trains_alike([CASES[2], CASES[9]], torch.float64, 1e-12)


def test_bfloat16_follows_torch_within_its_rounding() -> None:
    # One rounding to bfloat16 (2**-8) a step on either side.
    assert_trains_alike([CASES[2], CASES[9]], torch.bfloat16, 2**-5)


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
    model = Quadratic(torch.float32)
    x = torch.randn(5, 4)
    device, program = load(model, x, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    device.write(device.region_of("x"), view_as_numpy(x))
    for lr in (0.1, 0.01, 0.0):
        device.set_argin(device.argin_index["lr"], lr)
        before = device.read(device.region_of("quadratic__a"))
        device.run(device.plan(all_steps(program)))
    np.testing.assert_array_equal(device.read(device.region_of("quadratic__a")), before)
    assert device.counters.compiles == 1
    device.set_argin(device.argin_index["momentum"], 0.0)
    device.run(device.plan(all_steps(program)))
    assert device.counters.compiles == 2, "without momentum no buffer is kept: another plan"


@pytest.mark.parametrize(("cls", "options"), [CASES[2], CASES[4], CASES[9], CASES[8]])
def test_bfloat16_states_and_weights_are_overwritten_in_place(
    cls: type, options: dict[str, Any]
) -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(32, 64).bfloat16())
    model.forward = lambda x: nn.functional.linear(x, model.w).square().mean()
    device, program = load(model, torch.zeros(8, 64).bfloat16(), cls(model.parameters(), **options))
    text = device.plan(all_steps(program)).executables[0].as_text()
    assert re.search(r"= bf16\[32,64\]\S* fusion\(", text), "the update is looked for by shape"
    assert not re.search(r"= bf16\[32,64\]\S* copy\(", text)


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
