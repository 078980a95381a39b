"""Hypothesis strategies for valid programs."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from pef_schema import (
    Arg,
    Argin,
    ArginKind,
    Call,
    DType,
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

NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1, max_size=9
).filter(lambda name: name not in (".", ".."))
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
DTYPES = st.sampled_from(DType)
FLOATS = st.floats(allow_nan=False)


def _args(known: list[int]) -> st.SearchStrategy[Arg]:
    """Return arguments that refer to known values at most two lists deep."""
    plain: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        DTYPES,
        st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    )
    leaf = st.one_of(plain, st.sampled_from(known).map(Ref)) if known else plain
    inner = st.lists(leaf, max_size=3).map(tuple)
    deep = st.recursive(plain, lambda arg: st.lists(arg, max_size=2).map(tuple), max_leaves=4)
    nested = st.lists(st.one_of(leaf, inner), max_size=3).map(tuple)
    return st.one_of(leaf, inner, nested, deep.map(lambda arg: (arg,)))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw a program that ``verify`` accepts."""
    regions: list[Region] = []
    segments: list[bytes] = []

    def region(shape: tuple[int, ...], dtype: DType, role: Role, segment: int = -1) -> int:
        name = f"r{len(regions)}{draw(NAMES)}"
        regions.append(Region(name=name, shape=shape, dtype=dtype, role=role, segment=segment))
        return len(regions) - 1

    values: list[Value] = []

    def value(home: int = -1, like: Region | None = None) -> int:
        shape = like.shape if like else draw(SHAPES)
        dtype = like.dtype if like else draw(DTYPES)
        grad = region(shape, dtype, Role.GRADIENT) if draw(st.booleans()) else -1
        values.append(
            Value(
                name=f"v{len(values)}{draw(NAMES)}",
                shape=shape,
                dtype=dtype,
                region=home,
                grad_region=grad,
                needs_grad=draw(st.booleans()),
            )
        )
        return len(values) - 1

    inputs = []
    for _ in range(draw(st.integers(0, 3))):
        home = region(draw(SHAPES), draw(DTYPES), Role.INPUT)
        inputs.append(value(home, regions[home]))
    sources = list(inputs)
    for _ in range(draw(st.integers(0, 2))):
        shape, dtype = draw(SHAPES), draw(DTYPES)
        size = math.prod(shape) * dtype.itemsize
        segments.append(draw(st.binary(min_size=size, max_size=size)))
        home = region(shape, dtype, Role.CONSTANT, len(segments) - 1)
        sources.append(value(home, regions[home]))
    nodes = []
    for _ in range(draw(st.integers(0, 5))):
        args = draw(st.lists(_args(sources), max_size=4))
        kwargs = draw(st.dictionaries(NAMES, _args(sources), max_size=3))
        outputs = tuple(
            [value() if draw(st.booleans()) else -1 for _ in range(draw(st.integers(0, 2)))]
        )
        sources += [output for output in outputs if output >= 0]
        nodes.append(
            Node(
                op=draw(NAMES),
                args=tuple(args),
                kwargs=tuple(sorted(kwargs.items())),
                outputs=outputs,
                module=draw(st.one_of(st.just(""), NAMES)),
                source=draw(st.one_of(st.just(""), NAMES)),
            )
        )
    outputs, updates = [], []
    for index in draw(st.lists(st.sampled_from(sources), max_size=3)) if sources else []:
        shape, dtype = values[index].shape, values[index].dtype
        grad = draw(st.sampled_from(OutputGrad))
        outputs.append(
            Output(
                name=draw(NAMES),
                value=index,
                region=region(shape, dtype, Role.OUTPUT),
                grad_region=-1
                if grad is OutputGrad.ABSENT
                else region(shape, dtype, Role.GRADIENT),
                grad=grad,
            )
        )
        if draw(st.booleans()):
            updates.append(Update(value=index, region=region(shape, dtype, Role.BUFFER)))
    graph = Graph(
        name=draw(NAMES),
        values=tuple(values),
        nodes=tuple(nodes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        updates=tuple(updates),
    )
    optimizers, argins = _optimizers(draw, region)
    return Program(
        name=draw(NAMES),
        mapping=draw(st.sampled_from(["section", "spatial"])),
        inference=False,
        symbols=tuple(
            Symbol(name=f"s{i}{draw(NAMES)}", region=i, grad_region=draw(st.integers(-1, i)))
            for i in range(min(len(regions), 3))
        ),
        graphs=(graph,),
        optimizers=optimizers,
        argins=argins,
        sections=(sections := _sections(draw, graph, regions, len(optimizers))),
        schedules=_schedules(draw, len(sections)),
        regions=tuple(regions),
        segments=tuple(segments),
        metadata=tuple(
            sorted(draw(st.dictionaries(NAMES, st.text(max_size=9), max_size=3)).items())
        ),
    )


def _optimizers(draw: st.DrawFn, region: Any) -> tuple[tuple[Optimizer, ...], tuple[Argin, ...]]:
    optimizers, argins = [], []
    for index in range(draw(st.integers(0, 2))):
        params = []
        count = draw(st.integers(0, 2))
        for _ in range(draw(st.integers(0, 2))):
            shape = draw(SHAPES)
            states = [region(shape, DType.FLOAT32, Role.OPTIMIZER_STATE) for _ in range(count)]
            params.append(
                OptimizerParam(
                    weight=region(shape, DType.FLOAT32, Role.WEIGHT),
                    grad=region(shape, DType.FLOAT32, Role.GRADIENT),
                    states=tuple(states),
                )
            )
        home = region((), DType.FLOAT64, Role.ARGIN)
        kind = draw(st.sampled_from([k for k in ArginKind if k is not ArginKind.DROPOUT_SEED]))
        argins.append(Argin(name=f"a{index}", region=home, kind=kind, default=draw(FLOATS)))
        options = draw(st.dictionaries(NAMES, FLOATS, max_size=2))
        optimizers.append(
            Optimizer(
                name=f"o{index}",
                kind=draw(st.sampled_from(OptimizerKind)),
                params=tuple(params),
                argins=((draw(NAMES), home),),
                options=tuple(sorted(options.items())),
                step=region((), DType.FLOAT32, Role.OPTIMIZER_STATE) if draw(st.booleans()) else -1,
            )
        )
    return tuple(optimizers), tuple(argins)


def _sections(
    draw: st.DrawFn, graph: Graph, regions: list[Region], optimizers: int
) -> tuple[Section, ...]:
    def some(indices: list[int]) -> tuple[int, ...]:
        return tuple(sorted(draw(st.sets(st.sampled_from(indices))))) if indices else ()

    nodes = list(range(len(graph.nodes)))
    everything = list(range(len(regions)))
    writable = [
        i
        for i, region in enumerate(regions)
        if region.role not in (Role.INPUT, Role.CONSTANT, Role.ARGIN, Role.WEIGHT)
    ]
    gradients = [i for i, region in enumerate(regions) if region.role is Role.GRADIENT]
    sections = []
    for index in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(SectionKind))
        on_graph = kind in (SectionKind.FWD, SectionKind.BCKWD)
        writes, reads = some(writable), some(everything)
        if kind is SectionKind.REDUCE:
            if not gradients:
                continue
            reads = writes = (gradients.pop(),)
        step = Step(
            kind=kind,
            graph=0 if on_graph else -1,
            nodes=some(nodes) if on_graph else (),
            recompute=some(nodes) if kind is SectionKind.BCKWD else (),
            optimizers=some(list(range(optimizers)))
            if kind in (SectionKind.GRADNORM, SectionKind.OPT)
            else (),
            max_norm=draw(st.floats(0.0, allow_nan=False)),
            reads=reads,
            writes=writes,
            accumulates=some(list(writes)),
        )
        name = f"{draw(NAMES)}{index}"
        sections.append(Section(name=name, steps=(step,), twin=len(sections)))
    return tuple(sections)


def _schedules(draw: st.DrawFn, sections: int) -> tuple[Schedule, ...]:
    if not sections or draw(st.booleans()):
        return ()
    ids = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=5)))
    calls = [Call(call_id=i, section=draw(st.integers(0, sections - 1))) for i in ids]
    return (Schedule(graph=0, calls=tuple(calls)),)
