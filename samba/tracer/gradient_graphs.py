"""From backward passes that a model defines itself to plain graph data."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import torch

from pef_schema.program import Arg, DType, Gradient, Node, Ref, Value
from samba.tracer.arguments import DROPPED_KWARGS, plain_argument, plain_dtype, used_results
from samba.tracer.dropout_rates import drawing_nodes, is_training, rate_position
from samba.tracer.errors import TraceError
from samba.tracer.gradient_parts import GradientPart, passed_on
from samba.tracer.names import node_line
from samba.tracer.torch_internals import is_operation


class Surroundings(Protocol):
    """The conversion of the graph that the backward passes are of.

    Attributes:
        of: Values by node.
        values: All values.
        seed: The state of the random stream, if there is one.
        streams: How many random operations there are.
        root: First part of every name.
    """

    of: dict[torch.fx.Node, int | tuple[int, ...]]
    values: list[Value]
    seed: Ref | None
    streams: int
    root: str


class GradientGraphs:
    """The custom gradients of a graph; equal ones are one.

    Args:
        around: The conversion of the graph.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._index: dict[Gradient, int] = {}
        self._found: list[Gradient] = []

    def draw(self, parts: Iterable[GradientPart]) -> bool:
        """Whether any of some backward passes draws random numbers."""
        return any(drawing_nodes(part.nodes, ()) for part in parts)

    def add(self, part: GradientPart) -> tuple[int, tuple[Ref, ...]]:
        """Convert a backward pass.

        Args:
            part: The backward pass; what it reads has been converted.

        Returns:
            The number of its gradient, and the values that it reads.
        """
        gradient, reads = _Conversion(part, self._around).run()
        bare = replace(gradient, name="", source="")
        if bare not in self._index:
            self._index[bare] = len(self._found)
            self._found.append(gradient)
        return self._index[bare], reads

    def found(self) -> tuple[Gradient, ...]:
        """All of them."""
        return tuple(self._found)


class _Conversion:
    """One backward pass, in the making.

    Args:
        part: The backward pass.
        around: The conversion of the graph that it is of.
    """

    def __init__(self, part: GradientPart, around: Surroundings) -> None:
        self._part, self._around = part, around
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._of: dict[torch.fx.Node, int | tuple[int, ...]] = {}
        self._reads: dict[int, int] = {}
        self._random = drawing_nodes(part.nodes, ())

    def run(self) -> tuple[Gradient, tuple[Ref, ...]]:
        """Convert all nodes; give the gradient and what it reads."""
        part = self._part
        cotangents = [self._value(result) for result in part.marker.meta["val"]]
        for node, position in part.given.items():
            self._of[node] = cotangents[position]
        for node in part.nodes:
            self._node(node)
        outputs = [self._number(node) for node in part.gradients]
        gradient = Gradient(
            name=part.record.name,
            source=part.record.source,
            values=tuple(self._values),
            nodes=tuple(self._nodes),
            inputs=(*cotangents, *self._reads.values()),
            outputs=tuple(outputs),
        )
        return gradient, tuple(Ref(value) for value in self._reads)

    def _add(self, shape: tuple[int, ...], dtype: DType) -> int:
        # Names that say nothing about the graph, so that equal layers have equal gradients.
        self._values.append(Value(name=f"v{len(self._values)}", shape=shape, dtype=dtype))
        return len(self._values) - 1

    def _value(self, tensor: torch.Tensor) -> int:
        return self._add(tuple(tensor.shape), plain_dtype(tensor.dtype, self._part.record.source))

    def _read(self, outer: int) -> int:
        """The value by which a value of the graph around is read."""
        if outer not in self._reads:
            value = self._around.values[outer]
            self._reads[outer] = self._add(value.shape, value.dtype)
        return self._reads[outer]

    def _ref(self, node: torch.fx.Node) -> Arg:
        node = passed_on(node)
        found = self._of.get(node)
        if found is None:
            outer = self._around.of.get(node)
            if outer is None:
                return None  # an absent optional input
            found = tuple(map(self._read, outer)) if isinstance(outer, tuple) else self._read(outer)
        return tuple(map(Ref, found)) if isinstance(found, tuple) else Ref(found)

    def _number(self, node: torch.fx.Node) -> int:
        found = self._ref(node)
        if not isinstance(found, Ref):
            raise TraceError(
                where=self._part.record.source,
                reason=f"{self._part.record.name} gives {node}, which is no tensor",
                hint="Gradients are tensors or None.",
            )
        return found.value

    def _node(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            parent, position = node.args
            results = self._of[parent]  # pyright: ignore[reportArgumentType]  # getitem's first argument is a node
            self._of[node] = results[position]  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue]  # of a multi-result op
            return
        line = node_line(node) or self._part.record.source
        if not is_operation(node.target):
            raise TraceError(
                where=line,
                reason=f"the Python function {node.target} stays in the graph",
                hint="Compute on tensors with torch operations only.",
            )
        op = str(node.target)
        args = [plain_argument(a, node, self._ref, where=line) for a in node.args]
        kwargs = {
            k: plain_argument(a, node, self._ref, where=line)
            for k, a in node.kwargs.items()
            if k not in DROPPED_KWARGS
        }
        position = rate_position(op)
        if node in self._random:
            kwargs.update(self._draw())
        elif position is not None and position < len(args) and not is_training(node):
            args[position] = 0.0  # nothing is dropped, whatever the rate
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            outputs = (self._value(value),)
            self._of[node] = outputs[0]
        else:
            outputs = tuple(-1 if v is None else self._value(v) for v in used_results(node))
            self._of[node] = outputs
        self._nodes.append(
            Node(
                op=op,
                args=tuple(args),
                kwargs=tuple(sorted(kwargs.items())),
                outputs=outputs,
                source=line,
            )
        )

    def _draw(self) -> dict[str, Arg]:
        """What tells random numbers apart from all others of the graph."""
        seed = self._around.seed
        if seed is None:
            raise TraceError(
                where=self._part.record.source,
                reason=f"{self._part.record.name} draws random numbers without a seed",
                hint="This is a defect of the tracer: the graph has no random stream.",
            )
        stream, self._around.streams = self._around.streams, self._around.streams + 1
        return {"seed": Ref(self._read(seed.value)), "stream": stream}
