"""Hypothesis strategies for valid programs."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from pef_schema import (
    Arg,
    Argin,
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
from pef_schema.optimizer_rules import OPTIMIZER_RULES, state_rules

NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1, max_size=9
).filter(lambda name: name not in (".", ".."))
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
DTYPES = st.sampled_from(DType)


def _args(known: list[int]) -> st.SearchStrategy[Arg]:
    """Return arguments that refer to known values at most two lists deep."""
    plain: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.complex_numbers(),
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
        if home < 0 and draw(st.booleans()):
            home = region(shape, dtype, Role.ACTIVATION)
        needs_grad = dtype.is_floating and draw(st.booleans())
        wanted = needs_grad or draw(st.booleans())
        grad = region(shape, dtype, Role.GRADIENT) if wanted else -1
        values.append(
            Value(
                name=f"v{len(values)}{draw(NAMES)}",
                shape=shape,
                dtype=dtype,
                region=home,
                grad_region=grad,
                needs_grad=needs_grad,
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
                else region(shape, dtype, Role.OUTPUT_GRADIENT),
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
        sections=(sections := _sections(draw, graph, regions, optimizers)),
        schedules=(_schedule(draw, sections),),
        regions=tuple(regions),
        segments=tuple(segments),
        metadata=tuple(
            sorted(draw(st.dictionaries(NAMES, st.text(max_size=9), max_size=3)).items())
        ),
    )


def _optimizers(draw: st.DrawFn, region: Any) -> tuple[tuple[Optimizer, ...], tuple[Argin, ...]]:
    optimizers, argins = [], []
    for index in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(OptimizerKind))
        rule = OPTIMIZER_RULES[kind]
        options = {
            name: draw(st.sampled_from([0.0, 1.0]) if name in _SWITCHES else st.floats(0.0, 0.999))
            for name in draw(st.sets(st.sampled_from(sorted(rule.options))))
        }
        params = []
        for _ in range(draw(st.integers(0, 2))):
            shape = draw(SHAPES)
            params.append(
                OptimizerParam(
                    weight=region(shape, DType.FLOAT32, Role.WEIGHT),
                    grad=region(shape, DType.FLOAT32, Role.GRADIENT),
                    states=tuple(
                        region(
                            () if state.is_number else shape, DType.FLOAT32, Role.OPTIMIZER_STATE
                        )
                        for state in state_rules(kind, options)
                    ),
                )
            )
        rows = []
        for name in draw(st.sets(st.sampled_from(sorted(rule.argins)))):
            home = region((), DType.FLOAT64, Role.ARGIN)
            default = draw(st.floats(allow_nan=False, allow_infinity=False))
            label = f"a{len(argins)}"
            argins.append(Argin(name=label, region=home, kind=rule.argins[name], default=default))
            rows.append((name, home))
        counts = rule.counts or options.get("dampening") or draw(st.booleans())
        optimizers.append(
            Optimizer(
                name=f"o{index}",
                kind=kind,
                params=tuple(params),
                argins=tuple(rows),
                options=tuple(sorted(options.items())),
                step=region((), DType.FLOAT32, Role.OPTIMIZER_STATE) if counts else -1,
            )
        )
    return tuple(optimizers), tuple(argins)


_SWITCHES = frozenset({"amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov"})


def _sections(
    draw: st.DrawFn, graph: Graph, regions: list[Region], optimizers: tuple[Optimizer, ...]
) -> tuple[Section, ...]:
    """A forward section for all nodes, and what else its memory allows."""
    made = {v for node in graph.nodes for v in node.outputs if v >= 0}
    copied = {item.value for item in (*graph.outputs, *graph.updates)}
    taken = ({v for node in graph.nodes for v in node.refs()} | copied) - made
    kept = {graph.values[v].region for v in made} - {-1}
    ends = {item.region for item in (*graph.outputs, *graph.updates)}
    nodes = tuple(range(len(graph.nodes)))
    steps = [
        Step(
            kind=SectionKind.FWD,
            graph=0,
            nodes=nodes,
            reads=_more(draw, regions, {graph.values[v].region for v in taken}),
            writes=tuple(sorted(kept | ends)),
        )
    ]
    gradients = [i for i, region in enumerate(regions) if region.role is Role.GRADIENT]
    wanting = [v for node in graph.nodes for v in node.refs() if v not in made]
    grads = {graph.values[v].grad_region for v in wanting if graph.values[v].needs_grad}
    if draw(st.booleans()):
        starts = {graph.values[v].grad_region for v in made} - {-1}
        starts |= {o.grad_region for o in graph.outputs if o.value in made and o.grad_region >= 0}
        adding = {grad for grad in grads if draw(st.booleans())}
        steps.append(
            Step(
                kind=SectionKind.BCKWD,
                graph=0,
                nodes=nodes,
                recompute=tuple(i for i in nodes if draw(st.booleans())),
                reads=_more(draw, regions, starts | adding),
                writes=tuple(sorted(grads)),
                accumulates=tuple(sorted(adding)),
            )
        )
    if gradients and draw(st.booleans()):
        zeroed = {grad for grad in gradients if draw(st.booleans())}
        steps.append(Step(kind=SectionKind.ZEROGRAD, writes=tuple(sorted(zeroed))))
        bucket = (draw(st.sampled_from(gradients)),)
        steps.append(Step(kind=SectionKind.REDUCE, reads=bucket, writes=bucket))
    for index, optimizer in enumerate(optimizers):
        params = [p for p in optimizer.params if draw(st.booleans())]
        every = tuple(sorted(p.grad for p in optimizer.params))
        norm = draw(st.floats(0.0, allow_nan=False))
        steps.append(
            Step(
                kind=SectionKind.GRADNORM,
                optimizers=(index,),
                max_norm=norm,
                reads=every,
                writes=every,
            )
        )
        writes = {r for p in params for r in (p.weight, *p.states)}
        reads = writes | {p.grad for p in params} | {region for _, region in optimizer.argins}
        count = {optimizer.step} - {-1}
        steps.append(
            Step(
                kind=SectionKind.OPT,
                optimizers=(index,),
                reads=_more(draw, regions, reads | count),
                writes=tuple(sorted(writes | (count if draw(st.booleans()) else set()))),
            )
        )
    return tuple(
        Section(name=f"{draw(NAMES)}{i}", steps=(step,), twin=i) for i, step in enumerate(steps)
    )


def _more(draw: st.DrawFn, regions: list[Region], needed: set[int]) -> tuple[int, ...]:
    """What a step reads, and something that it need not."""
    others = [i for i, region in enumerate(regions) if not region.role.is_transient]
    return tuple(sorted(needed | (draw(st.sets(st.sampled_from(others))) if others else set())))


def _schedule(draw: st.DrawFn, sections: tuple[Section, ...]) -> Schedule:
    """The forward section, then any."""
    more = draw(st.lists(st.integers(0, len(sections) - 1), max_size=4))
    ids = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=5, max_size=5)))
    pairs = zip(ids, (0, *more), strict=False)
    return Schedule(graph=0, calls=tuple(Call(call_id=i, section=s) for i, s in pairs))
