"""RDU arithmetic as a pass over a traced graph: explicit rounding to bfloat16.

Nodes that round are inserted before and after operations, as :mod:`samba.compiler.arithmetic` says.
So a PEF holds them, the fingerprint knows them, and the device needs one more operation and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from emulator.op_facts.names import CAST_INPUT, CAST_RESULT, NEXT_SEED
from emulator.op_facts.table import facts_of
from pef_schema.program import CUSTOM_GRADIENT, Arg, DType, Gradient, Node, Ref, Role, Value
from samba.compiler.arithmetic import Arithmetic, Bf16Cast, Preset
from samba.support.naming import Namer
from samba.tracer.traced import Source, Traced, TracedOutput

_FIRST_STREAM = 1 << 20
"""Streams of the rounding: apart from those of a model's own random numbers."""


def apply_arithmetic(traced: Traced, arithmetic: Arithmetic) -> Traced:
    """Insert the rounding that an arithmetic asks for.

    Values that are state, such as BatchNorm statistics, stay in float32, as do weights between
    updates: a weight is rounded where it is used. What was traced inside of
    ``session.disable_graphamp()`` is left alone. Values of other dtypes are, too.

    Args:
        traced: A traced model.
        arithmetic: What to round, and how.

    Returns:
        The graph with its rounding; the same one if nothing is to be rounded.
    """
    if arithmetic.as_written:
        return traced
    return _Rounding(traced, arithmetic).run()


class _Rounding:
    """A graph with its rounding, in the making.

    Args:
        traced: The graph as it was traced.
        arithmetic: What to round, and how.
        first: The first stream of random numbers that is free.
    """

    def __init__(self, traced: Traced, arithmetic: Arithmetic, first: int = _FIRST_STREAM) -> None:
        self.arithmetic, self.first = arithmetic, first
        self.traced, self.preset, self.cast = traced, arithmetic.preset, arithmetic.cast
        self.values: list[Value] = list(traced.values)
        self.nodes: list[Node] = []
        self.sources: list[Source] = list(traced.sources)
        self.updates = list(traced.updates)
        self.exempt: list[int] = []
        self.rounded: dict[int, int] = {}
        """Rounded copies, by value."""
        self.coarse: set[int] = set()
        """Values that hold nothing but bfloat16 numbers."""
        self.replaced: dict[int, int] = {}
        """Rounded copies of results that all later operations take in their place, by value."""
        self.namer = Namer()
        for value in traced.values:
            self.namer.unique(value.name)
        self.seed: Ref | None = None
        self.streams = first
        self.seeded: set[int] = set()
        """Custom gradients that read the seed, by index."""
        self.state = {value for update in traced.updates for value in update}
        """Values of state, which keep their precision from run to run."""

    def run(self) -> Traced:
        """Walk the nodes in order and return the graph; the same one if nothing is rounded."""
        if self.cast is Bf16Cast.STOCHASTIC and self.seed is None:
            self._find_seed()
        gradients = [self._gradient(gradient) for gradient in self.traced.gradients]
        self.seeded = {i for i, gradient in enumerate(gradients) if gradient[1]}
        for i, node in enumerate(self.traced.nodes):
            if node.op == NEXT_SEED or i in self.traced.exempt:
                self.exempt.append(len(self.nodes))
                self.nodes.append(self._with(node, self._present))
            else:
                self._node(node)
        if self.streams == self.first:
            return self.traced  # nothing was rounded
        outputs = tuple(
            TracedOutput(
                value=self.replaced.get(o.value, o.value), name=o.name, region_name=o.region_name
            )
            for o in self.traced.outputs
        )
        return replace(
            self.traced,
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            sources=tuple(self.sources),
            outputs=outputs,
            updates=tuple(self.updates),
            exempt=frozenset(self.exempt),
            gradients=tuple(gradient for gradient, _ in gradients),
        )

    def _gradient(self, gradient: Gradient) -> tuple[Gradient, bool]:
        """A custom gradient with its rounding, and whether it reads the seed besides."""
        bare = Traced(
            name=gradient.name,
            values=gradient.values,
            nodes=gradient.nodes,
            inputs=(),
            sources=(),
            outputs=tuple(TracedOutput(value=v, name="") for v in gradient.outputs),
            updates=(),
            structure="tuple",
        )
        inner = _Rounding(bare, self.arithmetic, first=self.streams)
        seed = len(inner.values)
        if self.seed is not None:
            inner.values.append(Value(name="seed", shape=(2,), dtype=DType.UINT32))
            inner.seed = Ref(seed)
        traced, seeded = inner.run(), self.seed is not None and inner.streams > inner.first
        self.streams = inner.streams
        return replace(
            gradient,
            values=traced.values,
            nodes=traced.nodes,
            inputs=(*gradient.inputs, seed) if seeded else gradient.inputs,
            outputs=tuple(o.value for o in traced.outputs),
        ), seeded

    def _custom(self, node: Node) -> None:
        """A node that passes on values, and reads the seed where its gradient rounds with it."""
        node = self._with(node, self._present)
        index, results, inputs, reads = node.args
        if index in self.seeded and self.seed is not None and isinstance(reads, tuple):
            reads = (*reads, self.seed)
        self.nodes.append(replace(node, args=(index, results, inputs, reads)))
        if isinstance(results, tuple):
            pairs = zip(results, node.outputs, strict=True)
            self.coarse.update(
                v for r, v in pairs if v >= 0 and isinstance(r, Ref) and r.value in self.coarse
            )

    def _node(self, node: Node) -> None:
        if node.op == CUSTOM_GRADIENT:
            self._custom(node)
            return
        facts = facts_of(node.op)
        everything = self.preset is Preset.MP4
        if everything and facts.keeps:
            self.nodes.append(self._with(node, self._present))
            operands = [v for v in self.nodes[-1].refs() if self._is_float32(v)]
            if operands and all(v in self.coarse for v in operands):
                self.coarse.update(v for v in node.outputs if v >= 0)
            return
        positions: tuple[int, ...] | None = ()
        if everything:
            positions = None
        elif self.preset is Preset.MP1 and facts.rounds != ():
            positions = facts.rounds
        elif self._makes_bfloat16(node):
            positions = (0,)

        def rounded(value: int) -> int:
            return self._rounded(value, node, CAST_INPUT)

        args = tuple(
            mapped(arg, rounded if positions is None or p in positions else self._present)
            for p, arg in enumerate(node.args)
        )
        kwargs = tuple(
            (name, mapped(arg, rounded if positions is None else self._present))
            for name, arg in node.kwargs
        )
        self.nodes.append(replace(node, args=args, kwargs=kwargs))
        if everything:
            for v in node.outputs:
                if v >= 0 and v not in self.state and self._is_float32(v):
                    self.replaced[v] = self._rounded(v, node, CAST_RESULT)

    def _makes_bfloat16(self, node: Node) -> bool:
        """Whether a node is a cast of the model's own that must round in another way than torch."""
        return (
            self.cast is not Bf16Cast.NEAREST_EVEN
            and node.op == "aten._to_copy.default"
            and self.values[node.outputs[0]].dtype is DType.BFLOAT16
        )

    def _present(self, value: int) -> int:
        return self.replaced.get(value, value)

    def _is_float32(self, value: int) -> bool:
        return self.values[value].dtype is DType.FLOAT32

    def _rounded(self, value: int, node: Node, op: str) -> int:
        """The rounded copy of a value, made now if there is none."""
        value = self._present(value)
        if not self._is_float32(value) or value in self.coarse or value in self.state:
            return value
        copy = self.rounded.get(value)
        if copy is None:
            old = self.values[value]
            copy = len(self.values)
            self.values.append(replace(old, name=self.namer.unique(f"{old.name}__bf16")))
            kwargs: tuple[tuple[str, Arg], ...] = ()
            if self.seed is not None:
                kwargs = (("seed", self.seed), ("stream", self.streams))
            self.streams += 1
            self.nodes.append(
                Node(
                    op=op,
                    args=(Ref(value), self.cast.value),
                    kwargs=kwargs,
                    outputs=(copy,),
                    module=node.module,
                    source=node.source,
                )
            )
            self.rounded[value] = copy
            self.coarse.add(copy)
        return copy

    def _with(self, node: Node, change: Callable[[int], int]) -> Node:
        args = tuple(mapped(arg, change) for arg in node.args)
        kwargs = tuple((name, mapped(arg, change)) for name, arg in node.kwargs)
        return replace(node, args=args, kwargs=kwargs)

    def _find_seed(self) -> None:
        """The seed that the model has already, or one of its own."""
        for node in self.traced.nodes:
            if node.op == NEXT_SEED:
                self.seed = Ref(node.outputs[0])
                return
        root = self.traced.name
        before, after = len(self.values), len(self.values) + 1
        name = self.namer.unique(f"{root}__seed")
        for each in (name, self.namer.unique(f"{name}__next")):
            self.values.append(Value(name=each, shape=(2,), dtype=DType.UINT32))
        self.sources.append(Source(value=before, role=Role.SEED, name=name, region_name=name))
        self.exempt.append(len(self.nodes))
        self.nodes.append(Node(op=NEXT_SEED, args=(Ref(before),), outputs=(after,), module=root))
        self.updates.append((after, before))
        self.seed = Ref(after)


def mapped(arg: Arg, change: Callable[[int], int]) -> Arg:
    """An argument that refers to other values.

    Args:
        arg: The argument.
        change: The value that it refers to in the place of each.
    """
    if isinstance(arg, Ref):
        return Ref(change(arg.value))
    if isinstance(arg, tuple):
        return tuple(mapped(item, change) for item in arg)
    return arg
