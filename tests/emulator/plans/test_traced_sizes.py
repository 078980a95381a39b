"""What a lowering makes on the way is bounded before XLA, which would end the process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emulator.device import Device
from emulator.errors import PlanError
from emulator.memory.budget import LIMIT_VARIABLE
from emulator.plans.steps import all_steps
from pef_schema import Program, Ref, verify
from pef_schema.program import DType, Region, Role, Value
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference


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
    with pytest.raises(PlanError, match=r"makes \[2147483648, 2147483648\] on the way"):
        device.plan(all_steps(program))


def test_a_table_that_is_never_in_memory() -> None:
    program = _meeting(2**10, 2**10)
    assert {0, 2} <= set(Device(program).plan(all_steps(program)).reads)
