"""Programs for what looks into PEFs, made without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pef_schema import (
    Call,
    DType,
    Graph,
    Node,
    Output,
    Program,
    Ref,
    Region,
    Role,
    Schedule,
    Section,
    SectionKind,
    Step,
    Symbol,
    Value,
)
from tests.pef_schema.samples import inference

_PLAIN = {"shape": (2, 3), "dtype": DType.FLOAT32}
_BY_NAME = {
    *("metadata", "operations", "inside", "outside", "precision", "options"),
    *("product_flops_by_dtype", "flops_per_second"),
}
"""Keys of objects whose own keys are names of the program, or of types."""


def chain(ops: Sequence[str], *, each: int = 1) -> Program:
    """Operations in a row, named as the tracer names them.

    Args:
        ops: What they are called, with the module before a dot where they have one: ``fc1.relu``.
        each: Nodes in a section; what passes from section to section has a region.

    Returns:
        A program for inference that the verifier accepts.
    """
    used: dict[str, int] = {}
    values = [Value(name="x", region=0, **_PLAIN)]
    regions = [Region(name="x", role=Role.INPUT, **_PLAIN)]
    nodes: list[Node] = []
    for i, item in enumerate(ops):
        part, _, op = item.rpartition(".")
        module = f"net__{part}" if part else "net"
        count = used[f"{module}.{op}"] = used.get(f"{module}.{op}", -1) + 1
        name = f"{module}__{op}{f'_{count}' if count else ''}__outputs__0"
        home = -1
        if (i + 1) % each == 0 and i + 1 < len(ops):
            home = len(regions)
            regions.append(Region(name=name, role=Role.ACTIVATION, **_PLAIN))
        values.append(Value(name=name, region=home, **_PLAIN))
        nodes.append(
            Node(
                op=f"aten.{op}.default",
                args=(Ref(i),),
                outputs=(i + 1,),
                module=module,
                source=f"net.py:{i + 10}",
            )
        )
    regions.append(Region(name="out", role=Role.OUTPUT, **_PLAIN))
    sections: list[Section] = []
    for start in range(0, len(nodes), each):
        run = tuple(range(start, min(start + each, len(nodes))))
        last = len(regions) - 1 if run[-1] == len(nodes) - 1 else values[run[-1] + 1].region
        step = Step(
            kind=SectionKind.FWD,
            graph=0,
            nodes=run,
            reads=(values[start].region,),
            writes=(last,),
        )
        sections.append(Section(name=f"fwd_{len(sections)}", steps=(step,), twin=len(sections)))
    calls = tuple(Call(call_id=i, section=i) for i in range(len(sections)))
    return Program(
        name="net",
        mapping="section",
        inference=True,
        regions=tuple(regions),
        symbols=(Symbol(name="x", region=0),),
        graphs=(
            Graph(
                name="net",
                values=tuple(values),
                nodes=tuple(nodes),
                inputs=(0,),
                outputs=(Output(name="out", value=len(nodes), region=len(regions) - 1),),
            ),
        ),
        optimizers=(),
        argins=(),
        sections=tuple(sections),
        schedules=(Schedule(graph=0, calls=calls),),
    )


def two_graphs() -> Program:
    """Two graphs over the same input, each with a section and an output of its own."""
    base = inference()
    graph, section = base.graphs[0], base.sections[0]
    other = dataclasses.replace(
        graph,
        name="second",
        outputs=(dataclasses.replace(graph.outputs[0], name="z", region=3),),
    )
    step = dataclasses.replace(section.steps[0], graph=1, writes=(3,))
    return dataclasses.replace(
        base,
        regions=(*base.regions, dataclasses.replace(base.regions[1], name="second_y")),
        graphs=(graph, other),
        sections=(section, Section(name="second.fwd", steps=(step,), twin=1)),
        schedules=(*base.schedules, Schedule(graph=1, calls=(Call(call_id=0, section=1),))),
        mapping="section",
    )


def keys_of(item: Any) -> set[str]:
    """Keys of the objects in a description, but for those that are names."""
    if isinstance(item, list):
        return set().union(*map(keys_of, item))
    if not isinstance(item, dict):
        return set()
    found = set(item)
    for key, value in item.items():
        if key not in _BY_NAME and (key != "hyperparameters" or isinstance(value, list)):
            found |= keys_of(value)
    return found
