"""Operations and bytes of steps that are of no graph, and what is left out of the bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emulator.costs.steps import Costs, schedule_cost, section_cost
from emulator.costs.touched import update_flops
from pef_schema.optimizer_rules import OPTIMIZER_RULES
from pef_schema.program import (
    Argin,
    ArginKind,
    Call,
    DType,
    Optimizer,
    OptimizerKind,
    OptimizerParam,
    Program,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
)

SIZE = 10


def region(name: str, role: Role, shape: tuple[int, ...] = (SIZE,)) -> Region:
    return Region(name=name, shape=shape, dtype=DType.FLOAT32, role=role)


def updating(kind: OptimizerKind, *, momentum: float = 0.9, **options: float) -> Program:
    """A program that only updates one weight."""
    rule = OPTIMIZER_RULES[kind]
    states = sum(not state.option or bool(options.get(state.option)) for state in rule.states)
    regions = (
        region("w", Role.WEIGHT),
        region("w__grad", Role.GRADIENT),
        region("momentum", Role.ARGIN, ()),
        region("count", Role.OPTIMIZER_STATE, ()),
        *(region(f"state{i}", Role.OPTIMIZER_STATE) for i in range(states)),
        region("norm", Role.METRIC, ()),
    )
    kept = tuple(range(4, 4 + states))
    optimizer = Optimizer(
        name="o",
        kind=kind,
        params=(OptimizerParam(weight=0, grad=1, states=kept),),
        argins=(("momentum", 2),) if "momentum" in rule.argins else (),
        options=tuple(sorted(options.items())),
        step=3,
    )
    step = Step(kind=SectionKind.OPT, optimizers=(0,), reads=(0, 1, 3, *kept), writes=(0, 3, *kept))
    return Program(
        name="p",
        mapping="section",
        inference=False,
        regions=regions,
        symbols=(),
        graphs=(),
        optimizers=(optimizer,),
        argins=(Argin(name="momentum", region=2, kind=ArginKind.MOMENTUM, default=momentum),),
        sections=(Section(name="opt", steps=(step,), twin=0),),
        schedules=(Schedule(graph=0, calls=(Call(call_id=0, section=0),)),),
    )


@pytest.mark.parametrize(
    ("kind", "options", "each"),
    [
        (OptimizerKind.SGD, {}, 7),
        (OptimizerKind.SGD, {"nesterov": 1.0}, 9),
        (OptimizerKind.SGD, {"momentum": 0.0}, 4),
        (OptimizerKind.SGD, {"momentum": 0.0, "maximize": 1.0}, 5),
        (OptimizerKind.ADAM, {}, 15),
        (OptimizerKind.ADAMW, {}, 14),
        (OptimizerKind.ADAMW, {"amsgrad": 1.0}, 15),
        (OptimizerKind.QADAM, {}, 17),
        (OptimizerKind.RMSPROP, {}, 13),
        (OptimizerKind.RMSPROP, {"centered": 1.0, "momentum": 0.0}, 16),
        (OptimizerKind.ADAGRAD, {}, 9),
        (OptimizerKind.ADADELTA, {}, 18),
        (OptimizerKind.ADAMAX, {}, 12),
        (OptimizerKind.NADAM, {}, 18),
        (OptimizerKind.RADAM, {"decoupled_weight_decay": 1.0}, 17),
    ],
)
def test_updates(kind, options, each):
    found = section_cost(updating(kind, **options), 0)
    assert (found.product_flops, found.other_flops, found.unknown) == (0, each * SIZE, ())


def test_every_update_rule_is_counted():
    for kind in OptimizerKind:
        assert section_cost(updating(kind), 0).other_flops >= 4 * SIZE


def test_bytes_of_an_update():
    found = section_cost(updating(OptimizerKind.SGD), 0)
    # Weight, gradient, buffer and count are read; weight, buffer and count are written.
    assert (found.bytes_read, found.bytes_written) == (3 * 4 * SIZE + 4, 2 * 4 * SIZE + 4)
    found = section_cost(updating(OptimizerKind.SGD, momentum=0.0), 0)
    assert (found.bytes_read, found.bytes_written) == (2 * 4 * SIZE, 4 * SIZE)


def test_zero_norm_and_reduce():
    program = updating(OptimizerKind.SGD)
    zero = Step(kind=SectionKind.ZEROGRAD, writes=(1,))
    assert Costs(program).of_steps([zero]).bytes_written == 4 * SIZE
    assert Costs(program).of_steps([zero]).flops == 0
    norm = Step(kind=SectionKind.GRADNORM, optimizers=(0,), max_norm=1.0, reads=(1,), writes=(1, 5))
    assert update_flops(program, norm).other == 3 * SIZE
    reduce = Step(kind=SectionKind.REDUCE, reads=(1,), writes=(1,))
    assert Costs(program).of_steps([reduce]).nbytes == 0


def test_what_one_step_leaves_for_the_next_does_not_go_to_memory():
    program = updating(OptimizerKind.SGD)
    regions = (*program.regions, region("kept", Role.ACTIVATION), region("kept2", Role.ACTIVATION))
    first = Step(kind=SectionKind.ZEROGRAD, writes=(6, 7))
    second = Step(kind=SectionKind.ZEROGRAD, reads=(6,), writes=(1,))
    outside = Step(kind=SectionKind.ZEROGRAD, reads=(7,), writes=(0,))
    sections = tuple(
        Section(name=str(i), steps=(s,), twin=i) for i, s in enumerate((first, second, outside))
    )
    calls = (Call(call_id=0, section=0), Call(call_id=1, section=1))
    program = replace(
        program, regions=regions, sections=sections, schedules=(Schedule(graph=0, calls=calls),)
    )
    whole = schedule_cost(program, 0)
    assert (whole.bytes_read, whole.bytes_written) == (0, 2 * 4 * SIZE)  # kept2 and the gradient
    one, two = section_cost(program, 0), section_cost(program, 1)
    assert (one.bytes_written, two.bytes_read, two.bytes_written) == (80, 40, 40)
