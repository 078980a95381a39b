"""Every model of the zoo, forward and backward, cut in every way, against plain torch."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch

from emulator.device import Device
from pef_schema import decode, encode, verify
from pef_schema.program import Program, Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy, view_as_torch
from samba.tracer.reference import run_reference
from samba.tracer.traced import Traced
from tests.models.zoo import ZOO, Case
from tests.tracing import trace

CUTS = ("o1",)
OTHER_CUTS = ("o0", "o3", "spatial")
CUT_IN_ALL_WAYS = ("mlp", "resnet", "gpt")
"""Models with buffers, tied weights and boundaries: the others add ops, not sections."""
SLOW = ("vit", "bert")
"""Their blocks are those of gpt and attention, their ops are tested one by one."""
WAYS = [
    *(
        pytest.param(name, CUTS, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in ZOO
    ),
    *(
        pytest.param(
            name,
            OTHER_CUTS if name in CUT_IN_ALL_WAYS else ("o3",),
            id=f"{name}-other_cuts",
            marks=[] if name == "mlp" else [pytest.mark.slow],
        )
        for name in ZOO
    ),
]


def make(case: Case) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(11)
    return case.model(), case.inputs()


@functools.cache
def made(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Traced]:
    """A model, its inputs and its trace; the model's tensors are left as they are."""
    model, inputs = make(ZOO[name])
    return model, inputs, trace(model, inputs)


def build(traced: Traced, cut: str) -> Program:
    spatial = cut == "spatial"
    options = CompileOptions(
        name="zoo", optim_level="o3" if spatial else cut, mapping=cut if spatial else "section"
    )
    program = build_program(traced, [], options)
    verify(program)
    return decode(encode(program))


def load(program: Program, traced: Traced) -> Device:
    device = Device(program)
    values = program.graphs[0].values
    for source in traced.sources:
        if source.tensor is not None and source.role is not Role.CONSTANT:
            device.write(values[source.value].region, view_as_numpy(source.tensor))
    return device


def all_steps(program: Program) -> tuple[tuple[int, int], ...]:
    return tuple(
        (c.section, k)
        for c in program.schedules[0].calls
        for k in range(len(program.sections[c.section].steps))
    )


def close(got: torch.Tensor, want: torch.Tensor, what: str, scale: float = 0.0) -> None:
    """Within 2e-6 of the tensor's largest entry, about 16 float32 ulps of accumulated rounding.

    A gradient that is zero but for rounding (a key bias) may differ by half a float32 ulp of
    ``scale``, the model's largest gradient.
    """
    limit = max(2e-6 * want.abs().max().item(), 6e-8 * scale)
    worst = (got - want).abs().max().item() if want.numel() else 0.0
    assert worst <= limit, f"{what}: off by {worst:.3g}, allowed {limit:.3g}"


@pytest.mark.parametrize(("name", "cuts"), WAYS)
def test_outputs_gradients_and_buffers_match_torch(name: str, cuts: tuple[str, ...]) -> None:
    case = ZOO[name]
    model, inputs, traced = made(name)
    eager = copy.deepcopy(model)
    want = eager(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    want[case.loss].backward()
    largest = max(p.grad.abs().max().item() for p in eager.parameters() if p.grad is not None)
    for cut in cuts:
        program = build(traced, cut)
        device = load(program, traced)
        device.run(device.plan(all_steps(program)))
        for output, expected in zip(program.graphs[0].outputs, want, strict=True):
            close(
                view_as_torch(device.read(output.region)), expected.detach(), f"{cut} {output.name}"
            )
        values = program.graphs[0].values
        compared = 0
        for source in traced.sources:
            value = values[source.value]
            if source.role is Role.WEIGHT:
                grad = eager.get_parameter(source.path).grad
                assert (grad is None) == (value.grad_region < 0), source.name
                if grad is not None:
                    got = view_as_torch(device.read(value.grad_region))
                    close(got, grad, f"{cut} gradient of {source.name}", largest)
                    compared += 1
            elif source.role is Role.BUFFER:
                got = view_as_torch(device.read(value.region))
                buffer = eager.get_buffer(source.path)
                if buffer.is_floating_point():
                    close(got, buffer, f"{cut} {source.name}")
                else:
                    assert torch.equal(got, buffer), source.name
        assert compared > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT_IN_ALL_WAYS)
def test_sections_one_by_one_give_what_the_full_plan_gives(name: str) -> None:
    _, _, traced = made(name)
    program = build(traced, "o1")
    whole, single = load(program, traced), load(program, traced)
    whole.run(whole.plan(all_steps(program)))
    for step in all_steps(program):
        single.run(single.plan((step,)))
    for region, r in enumerate(program.regions):
        if r.role in (Role.OUTPUT, Role.GRADIENT, Role.BUFFER):
            close(
                torch.from_numpy(np.asarray(single.read(region), np.float64)),
                torch.from_numpy(np.asarray(whole.read(region), np.float64)),
                r.name,
            )


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in ZOO]
)
def test_reference_interpreter_is_torch(name: str) -> None:
    model, inputs, traced = made(name)
    sources = {
        s.value: (s.tensor.clone() if s.tensor is not None else torch.tensor(s.default))
        for s in traced.sources
        if s.role is not Role.SEED
    }
    with torch.no_grad():
        env = run_reference(traced.graph(), sources)
        want = copy.deepcopy(model)(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    for output, expected in zip(traced.outputs, want, strict=True):
        torch.testing.assert_close(env[output.value], expected)


def test_the_tolerance_bites() -> None:
    want = torch.tensor([1.0, -2.0])
    close(want, want, "same")
    with pytest.raises(AssertionError, match="off by"):
        close(want + 2 * 2e-6 * 2.0, want, "perturbed")
