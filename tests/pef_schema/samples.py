"""Programs that the tests of this folder write, read and break."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping

from pef_schema import (
    Argin,
    ArginKind,
    Call,
    DType,
    Gradient,
    Graph,
    Node,
    Optimizer,
    OptimizerKind,
    OptimizerParam,
    Output,
    OutputGrad,
    Program,
    Ref,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
    Symbol,
    Update,
    Value,
)
from pef_schema.optimizer_rules import OPTIMIZER_RULES, counts_steps, state_rules

F32 = DType.FLOAT32


def _region(name: str, shape: tuple[int, ...], role: Role, dtype: DType = F32, segment: int = -1):
    return Region(name=name, shape=shape, dtype=dtype, role=role, segment=segment)


def _sections(steps: dict[str, Step]) -> tuple[Section, ...]:
    """Sections of one step each, by name; each is a structure of its own."""
    return tuple(
        Section(name=name, steps=(step,), twin=i) for i, (name, step) in enumerate(steps.items())
    )


def training() -> Program:
    """A linear layer with a bias constant, a loss, SGD and all kinds of arguments."""
    regions = (
        _region("x", (2, 3), Role.INPUT),
        _region("w", (4, 3), Role.WEIGHT),
        _region("w__grad", (4, 3), Role.GRADIENT),
        _region("c", (4,), Role.CONSTANT, segment=0),
        _region("h", (2, 4), Role.ACTIVATION),
        _region("loss", (), Role.OUTPUT),
        _region("loss__grad", (), Role.OUTPUT_GRADIENT),
        _region("w__momentum", (4, 3), Role.OPTIMIZER_STATE),
        _region("lr", (), Role.ARGIN, DType.FLOAT64),
        _region("seed", (2,), Role.SEED, DType.UINT32),
        _region("norm", (), Role.METRIC),
        _region("spare", (), Role.ARGIN, DType.FLOAT64),
        _region("mask", (300,), Role.CONSTANT, DType.BOOL, segment=1),
    )
    values = (
        Value(name="x", shape=(2, 3), dtype=F32, region=0),
        Value(name="w", shape=(4, 3), dtype=F32, region=1, grad_region=2, needs_grad=True),
        Value(name="c", shape=(4,), dtype=F32, region=3),
        Value(name="h", shape=(2, 4), dtype=F32, region=4, needs_grad=True),
        Value(name="loss", shape=(), dtype=F32, needs_grad=True),
        Value(name="seed", shape=(2,), dtype=DType.UINT32, region=9),
        Value(name="seed2", shape=(2,), dtype=DType.UINT32),
    )
    nodes = (
        Node(
            op="aten.linear.default",
            args=(Ref(0), Ref(1), Ref(2)),
            outputs=(3,),
            module="net__fc",
            source="model.py:12",
        ),
        Node(
            op="test.all_kinds.default",
            args=(Ref(3), (0, -1), (), ((None, Ref(3)), "sum"), -(2**63), 2**63 - 1),
            kwargs=(("dtype", F32), ("eps", float("-inf")), ("keep", True), ("p", -0.0)),
            outputs=(4, -1),
            module="net__loss",
        ),
        Node(op="test.advance.default", args=(Ref(5), 1.5), outputs=(6,)),
    )
    graph = Graph(
        name="net",
        values=values,
        nodes=nodes,
        inputs=(0,),
        outputs=(
            Output(name="loss", value=4, region=5, grad_region=6, grad=OutputGrad.ONES),
            Output(name="h", value=3, region=4),
        ),
        updates=(Update(value=6, region=9),),
    )
    steps = {
        "net.fwd": Step(
            kind=SectionKind.FWD, graph=0, nodes=(0, 1, 2), reads=(0, 1, 3, 9), writes=(4, 5, 9)
        ),
        "net.bckwd": Step(
            kind=SectionKind.BCKWD,
            graph=0,
            nodes=(0, 1),
            recompute=(0,),
            reads=(0, 4, 6),
            writes=(2,),
            accumulates=(2,),
        ),
        "gradnorm": Step(
            kind=SectionKind.GRADNORM, optimizers=(0,), max_norm=1.0, reads=(2,), writes=(2, 10)
        ),
        "opt": Step(kind=SectionKind.OPT, optimizers=(0,), reads=(1, 2, 7, 8), writes=(1, 7)),
    }
    return Program(
        name="net",
        mapping="section",
        inference=False,
        regions=regions,
        symbols=(
            Symbol(name="net__fc__weight", region=1, grad_region=2),
            Symbol(name="x", region=0),
        ),
        graphs=(graph,),
        optimizers=(
            Optimizer(
                name="sgd0",
                kind=OptimizerKind.SGD,
                params=(OptimizerParam(weight=1, grad=2, states=(7,)),),
                argins=(("lr", 8),),
                options=(("dampening", 0.0), ("nesterov", 1.0)),
            ),
        ),
        argins=(
            Argin(name="lr", region=8, kind=ArginKind.LR, default=0.1),
            Argin(name="dropout_seed", region=9, kind=ArginKind.DROPOUT_SEED, default=0.0),
        ),
        sections=_sections(steps),
        schedules=(
            Schedule(graph=0, calls=tuple(Call(call_id=10 * i, section=i) for i in range(4))),
        ),
        segments=(struct.pack("<4f", 1.0, 2.0, 3.0, 4.0), bytes([0, 1, 1] * 100)),
        metadata=(("created_by", "tests"), ("model", "Net(\n  fc: 3 -> 4\n) \u00e9")),
    )


def nothing() -> Program:
    """No graph, no memory: the least that a PEF can hold."""
    return Program(
        name="nothing",
        mapping="section",
        inference=True,
        regions=(),
        symbols=(),
        graphs=(),
        optimizers=(),
        argins=(),
        sections=(),
        schedules=(),
    )


def constant(size: int, segment: bytes = b"") -> Program:
    """One constant of so many bytes, and nothing else."""
    region = _region("c", (size,), Role.CONSTANT, DType.UINT8, segment=0)
    return dataclasses.replace(nothing(), name="big", regions=(region,), segments=(segment,))


def inference() -> Program:
    """The forward half alone, without constants: a file that fits in one page."""
    return dataclasses.replace(
        nothing(),
        name="tiny",
        mapping="spatial",
        regions=(
            _region("x", (2, 3), Role.INPUT),
            _region("y", (2, 3), Role.OUTPUT),
            _region("z", (0, 3), Role.BUFFER, DType.BFLOAT16),
        ),
        symbols=(Symbol(name="x", region=0), Symbol(name="y", region=1)),
        graphs=(
            Graph(
                name="tiny",
                values=(
                    Value(name="x", shape=(2, 3), dtype=F32, region=0),
                    Value(name="y", shape=(2, 3), dtype=F32),
                ),
                nodes=(
                    Node(
                        op="aten.mul.Tensor",
                        args=(Ref(0), 2.0),
                        outputs=(1,),
                        module="tiny",
                        source="tiny.py:3",
                    ),
                ),
                inputs=(0,),
                outputs=(Output(name="y", value=1, region=1),),
            ),
        ),
        sections=_sections(
            {"tiny.fwd": Step(kind=SectionKind.FWD, graph=0, nodes=(0,), reads=(0,), writes=(1,))}
        ),
        schedules=(Schedule(graph=0, calls=(Call(call_id=0, section=0),)),),
    )


def small() -> Program:
    """The training sample without its constants: under 4 KiB, with every other kind of table."""
    full = training()
    regions = tuple(
        dataclasses.replace(region, segment=-1, role=Role.BUFFER) if region.segment >= 0 else region
        for region in full.regions
    )
    return dataclasses.replace(full, regions=regions, segments=())


def custom() -> Program:
    """A graph whose gradient is its own: version 2 of the format."""
    regions = (
        _region("x", (2, 3), Role.INPUT),
        _region("y", (2, 3), Role.OUTPUT),
        _region("x__grad", (2, 3), Role.GRADIENT),
        _region("y__grad", (2, 3), Role.OUTPUT_GRADIENT),
    )
    plain = {"shape": (2, 3), "dtype": F32}
    gradient = Gradient(
        name="Sign.backward",
        source="net.py:7",
        values=tuple(Value(name=f"v{i}", **plain) for i in range(3)),
        nodes=(Node(op="aten.mul.Tensor", args=(Ref(0), Ref(1)), outputs=(2,), source="net.py:8"),),
        inputs=(0, 1),
        outputs=(2,),
    )
    graph = Graph(
        name="net",
        values=(
            Value(name="x", region=0, grad_region=2, needs_grad=True, **plain),
            Value(name="apart", **plain),
            Value(name="sign", **plain),
            Value(name="y", needs_grad=True, **plain),
        ),
        nodes=(
            Node(op="aten.detach.default", args=(Ref(0),), outputs=(1,)),
            Node(op="aten.sign.default", args=(Ref(1),), outputs=(2,)),
            Node(
                op="samba.custom_gradient",
                args=(0, (Ref(2),), (Ref(0),), (Ref(1),)),
                outputs=(3,),
                module="net",
                source="net.py:12",
            ),
        ),
        inputs=(0,),
        outputs=(Output(name="y", value=3, region=1, grad_region=3, grad=OutputGrad.ONES),),
        gradients=(gradient,),
    )
    steps = {
        "s0": Step(kind=SectionKind.FWD, graph=0, nodes=(0, 1, 2), reads=(0,), writes=(1,)),
        "s1": Step(
            kind=SectionKind.BCKWD, graph=0, nodes=(2,), recompute=(0,), reads=(0, 3), writes=(2,)
        ),
    }
    return dataclasses.replace(
        nothing(),
        name="net",
        inference=False,
        regions=regions,
        symbols=(Symbol(name="x", region=0, grad_region=2),),
        graphs=(graph,),
        sections=_sections(steps),
        schedules=(
            Schedule(graph=0, calls=(Call(call_id=0, section=0), Call(call_id=1, section=1))),
        ),
    )


def renamed(program: Program) -> Program:
    """The same program under another name."""
    return dataclasses.replace(program, name=program.name + "_2")


def moments() -> Program:
    """The small sample under NAdam, which has a state that is a number: version 3 of the format."""
    options = {"beta1": 0.9, "beta2": 0.999, "decoupled_weight_decay": 1.0, "eps": 1e-8}
    options |= {"maximize": 0.0, "momentum_decay": 4e-3}
    return updated_by(OptimizerKind.NADAM, options)


def updated_by(kind: OptimizerKind, options: Mapping[str, float] | None = None) -> Program:
    """The small sample under an optimizer of another kind, with a step count if it has one.

    Args:
        kind: The kind.
        options: Its options; where none are given, all that it has, its switches on.
    """
    if options is None:
        rule = OPTIMIZER_RULES[kind]
        options = {name: 1.0 if fits(1.0) else 0.5 for name, (fits, _) in rule.options.items()}
    base, name = small(), f"{kind.name.lower()}0"
    regions, states, step = list(base.regions), [], -1
    for state in state_rules(kind, options):
        if not states and not state.is_number:
            states.append(7)  # the sample's own, of the name momentum
            continue
        states.append(len(regions))
        shape = () if state.is_number else (4, 3)
        own = "w__momentum_2" if state.name == "momentum" else f"w__{state.name}"
        regions.append(_region(own, shape, Role.OPTIMIZER_STATE))
    if counts_steps(kind, options):
        step = len(regions)
        regions.append(_region(f"{name}__step", (), Role.OPTIMIZER_STATE))
    written = (1, *states, *((step,) if step >= 0 else ()))
    opt = dataclasses.replace(
        base.sections[3].steps[0], reads=tuple(sorted({2, 8, *written})), writes=written
    )
    optimizer = Optimizer(
        name=name,
        kind=kind,
        params=(OptimizerParam(weight=1, grad=2, states=tuple(states)),),
        argins=(("lr", 8),),
        options=tuple(sorted(options.items())),
        step=step,
    )
    return dataclasses.replace(
        base,
        regions=tuple(regions),
        sections=(*base.sections[:3], dataclasses.replace(base.sections[3], steps=(opt,))),
        optimizers=(optimizer,),
    )


def complex_numbers() -> Program:
    """The inference sample over complex numbers, as tensors, arguments and a dtype: version 4."""
    base = inference()
    kinds = (DType.COMPLEX64, DType.COMPLEX64, DType.COMPLEX128)
    graph = base.graphs[0]
    scaled = dataclasses.replace(graph.nodes[0], args=(Ref(0), 1.5 - 2j))
    cast = Node(
        op="aten._to_copy.default",
        args=(Ref(1),),
        kwargs=(("dtype", DType.COMPLEX128), ("parts", (-0.0 + 0j, (1j,)))),
        outputs=(-1,),
    )
    return dataclasses.replace(
        base,
        regions=tuple(
            dataclasses.replace(region, dtype=kind)
            for region, kind in zip(base.regions, kinds, strict=True)
        ),
        graphs=(
            dataclasses.replace(
                graph,
                values=tuple(dataclasses.replace(v, dtype=DType.COMPLEX64) for v in graph.values),
                nodes=(scaled, cast),
            ),
        ),
        sections=(
            dataclasses.replace(
                base.sections[0],
                steps=(dataclasses.replace(base.sections[0].steps[0], nodes=(0, 1)),),
            ),
        ),
    )
