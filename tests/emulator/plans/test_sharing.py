"""Sections of one structure: found, compiled once, and still right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import samba
from emulator.device import Device
from emulator.plans.steps import all_steps
from pef_schema import PefInvalid, verify
from pef_schema.program import Program
from samba.compiler.build import build_program
from samba.compiler.forms.listing import pef_log
from samba.compiler.sections import CompileOptions
from samba.tensor.views import view_as_numpy
from tests.tracing import trace


class Tower(nn.Module):
    """Equal blocks, one after the other."""

    def __init__(self, blocks: int, *, odd: bool = False) -> None:
        super().__init__()
        norms = [nn.LayerNorm(8, eps=1e-3 if odd and i == 2 else 1e-5) for i in range(blocks)]
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), norm, nn.GELU()) for norm in norms]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return (x * x).mean()


def program_of(model: nn.Module, level: str = "o1") -> Program:
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    dtype = next(model.parameters()).dtype
    traced = trace(model, (torch.ones(2, 8, dtype=dtype),))
    return build_program(traced, [optimizer], CompileOptions(name="tower", optim_level=level))


def device_of(program: Program, model: nn.Module) -> Device:
    device = Device(program)
    names = {f"tower__{n.replace('.', '__')}": p for n, p in model.named_parameters()}
    for name, tensor in names.items():
        device.write(device.region_of(name), view_as_numpy(tensor.detach()))
    graph = program.graphs[0]
    dtype = view_as_numpy(next(model.parameters()).detach()).dtype
    device.write(
        graph.values[graph.inputs[0]].region, np.linspace(-1, 1, 16, dtype=dtype).reshape(2, 8)
    )
    return device


def test_equal_blocks_need_no_more_structures() -> None:
    few, many = program_of(Tower(4)), program_of(Tower(9))
    structures = {len({s.twin for s in p.sections[:-1]}) for p in (few, many)}
    assert len(structures) == 1 and len(many.sections) > len(few.sections)
    assert f"{len(many.sections)} sections of {structures.pop() + 1} structures" in pef_log(many)


def test_a_constant_argument_is_part_of_the_structure() -> None:
    twins = {len({s.twin for s in program_of(Tower(4, odd=odd)).sections}) for odd in (False, True)}
    assert len(twins) == 2


def test_twins_are_compiled_once_and_give_the_numbers_of_the_whole() -> None:
    torch.manual_seed(0)
    model = Tower(5).double()  # what is fused differs; in float32 the norms enlarge its roundings
    program = program_of(model)
    whole, parts = device_of(program, model), device_of(program, model)
    for _ in range(2):
        whole.run(whole.plan(all_steps(program)))
        for section, step in all_steps(program):
            parts.run(parts.plan(((section, step),)))
    assert parts.counters.compiles == len({s.twin for s in program.sections})
    assert parts.counters.compiles < len(program.sections) / 2
    for name, _ in model.named_parameters():
        for suffix in ("", "__grad"):
            region = whole.region_of(f"tower__{name.replace('.', '__')}{suffix}")
            np.testing.assert_allclose(
                parts.read(region), whole.read(region), rtol=1e-12, atol=1e-14, err_msg=name
            )


def test_a_twin_of_another_structure_is_refused() -> None:
    program = program_of(Tower(3))
    wrong = next(
        i
        for i, s in enumerate(program.sections)
        if s.twin == i
        and any(t.kinds == s.kinds and t.twin == k < i for k, t in enumerate(program.sections))
    )
    other = next(
        k for k, t in enumerate(program.sections) if t.kinds == program.sections[wrong].kinds
    )
    sections = tuple(replace(s, twin=other) if s.twin == wrong else s for s in program.sections)
    with pytest.raises(
        PefInvalid, match=f"section {wrong}: its twin {other} has another structure"
    ):
        verify(replace(program, sections=sections))
