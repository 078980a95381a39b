"""What is said of the cost of programs that no device takes: their shapes may be any."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from emulator.op_facts.flops import gradient_flops, node_flops
from emulator.op_facts.index_uses import index_uses
from emulator.op_facts.scratch import scratch_of
from emulator.op_facts.table import Parameter, op_facts, signature_of
from pef_schema.program import CUSTOM_GRADIENT, DType, Graph, Node, Ref, Value

SEEDS = 60

ASKED: tuple[Callable[[Graph], Any], ...] = (
    lambda graph: node_flops(graph, graph.nodes[0]),
    lambda graph: gradient_flops(graph, graph.nodes[0]),
    lambda graph: scratch_of(graph, graph.nodes[0]),
    index_uses,
)


class _Drawn:
    """A graph of one node, whose arguments are of the kinds that its op takes."""

    def __init__(self, op: str, seed: int) -> None:
        self.rng = random.Random(f"{op}/{seed}")
        self.values: list[Value] = []
        signature = signature_of(op)
        assert signature is not None
        given = [p for p in signature.parameters if not p.default or self.rng.random() < 0.5]
        args = tuple(self.argument(p) for p in given if not p.keyword)
        kwargs = tuple(sorted((p.name, self.argument(p)) for p in given if p.keyword))
        count = self.rng.randrange(4) if signature.results < 0 else signature.results
        results = [self.tensor().value for _ in range(count)]
        outputs = tuple(-1 if self.rng.random() < 0.1 else result for result in results)
        node = Node(op=op, args=args, kwargs=kwargs, outputs=outputs)
        self.graph = Graph(
            name="g", values=tuple(self.values), nodes=(node,), inputs=(), outputs=()
        )

    def tensor(self) -> Ref:
        shape = tuple(self.rng.choices(range(4), k=self.rng.randrange(6)))
        dtype = self.rng.choice([DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.BOOL])
        name, wants = f"v{len(self.values)}", self.rng.random() < 0.5
        self.values.append(Value(name=name, shape=shape, dtype=dtype, needs_grad=wants))
        return Ref(len(self.values) - 1)

    def argument(self, parameter: Parameter) -> Any:
        if parameter.optional and self.rng.random() < 0.3:
            return None
        if not parameter.listed or (parameter.length and self.rng.random() < 0.3):
            return self.item(parameter.kind)
        return tuple(
            None
            if parameter.optional_items and self.rng.random() < 0.3
            else self.item(parameter.kind)
            for _ in range(self.rng.randrange(5))
        )

    def item(self, kind: str) -> Any:
        return _ITEMS[kind](self)


_ITEMS: dict[str, Callable[[_Drawn], Any]] = {
    "t": lambda drawn: drawn.tensor(),
    "i": lambda drawn: drawn.rng.choice([-3, -1, 0, 1, 2, 3, 9]),
    "f": lambda drawn: drawn.rng.choice([-1.5, 0.0, 0.5, 2.0]),
    "n": lambda drawn: drawn.rng.choice([-1, 0, 1, 0.5, 2.0]),
    "b": lambda drawn: drawn.rng.random() < 0.5,
    "s": lambda drawn: drawn.rng.choice(["", "mean", "ij,jk->ik", "ab,b", "reflect"]),
    "d": lambda drawn: drawn.rng.choice(["float32", "int64"]),
    "r": lambda drawn: drawn.rng.choice([-1, 0.5]),
    "x": lambda drawn: None,
}


def _problems(op: str) -> Iterator[str]:
    for seed in range(SEEDS):
        graph = _Drawn(op, seed).graph
        for ask in ASKED:
            try:
                ask(graph)
            except Exception as error:
                shapes = [value.shape for value in graph.values]
                yield f"{op}: {error!r} of {graph.nodes[0].args} {shapes}"


def test_no_shapes_are_too_odd_to_be_counted() -> None:
    ops = op_facts().keys() - {CUSTOM_GRADIENT}  # a reader checks that it names a gradient
    found = {op: problem for op in sorted(ops) for problem in _problems(op)}
    assert not found, "\n".join(found.values())
