"""From backward passes that a model defines itself to plain graph data."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace

import torch

from pef_schema.program import Arg, DType, Gradient, Ref, Value
from samba.tracer.errors import TraceError
from samba.tracer.gradient_parts import GradientPart, passed_on
from samba.tracer.plain_nodes import PlainNodes, plain_dtype
from samba.tracer.random_draws import drawing_nodes


class GradientGraphs:
    """The custom gradients of a graph; equal ones are one.

    Args:
        around: The conversion of the graph.
    """

    def __init__(self, around: PlainNodes) -> None:
        self._around = around
        self._numbers: dict[Gradient, int] = {}
        self._all: list[Gradient] = []

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
        gradient, reads = _BackwardPass(part, self._around).run()
        bare = replace(gradient, name="", source="")
        if bare not in self._numbers:
            self._numbers[bare] = len(self._all)
            self._all.append(gradient)
        return self._numbers[bare], reads

    def all(self) -> tuple[Gradient, ...]:
        """All of them."""
        return tuple(self._all)


class _BackwardPass(PlainNodes):
    """One backward pass, in the making.

    Args:
        part: The backward pass.
        around: The conversion of the graph that it is of.
    """

    def __init__(self, part: GradientPart, around: PlainNodes) -> None:
        super().__init__(part.record.source, part.record.source)
        self._part, self._around = part, around
        self._reads: dict[int, int] = {}
        self.random = drawing_nodes(part.nodes, ())

    def run(self) -> tuple[Gradient, tuple[Ref, ...]]:
        """Convert all nodes; give the gradient and what it reads."""
        part = self._part
        cotangents = [self.new_value("", result) for result in part.marker.meta["val"]]
        for node, position in part.given.items():
            self.of[node] = cotangents[position]
        for node in part.nodes:
            if node.target is operator.getitem:
                self.part(node)
            else:
                self.operation(node)
        outputs = [self._number(node) for node in part.gradients]
        gradient = Gradient(
            name=part.record.name,
            source=part.record.source,
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            inputs=(*cotangents, *self._reads.values()),
            outputs=tuple(outputs),
        )
        return gradient, tuple(Ref(value) for value in self._reads)

    def new_value(self, name: str, tensor: torch.Tensor) -> int:
        return self._add(tuple(tensor.shape), plain_dtype(tensor.dtype, self.where))

    def _add(self, shape: tuple[int, ...], dtype: DType) -> int:
        # Names that say nothing about the graph, so that equal layers have equal gradients.
        self.values.append(Value(name=f"v{len(self.values)}", shape=shape, dtype=dtype))
        return len(self.values) - 1

    def _read(self, outer: int) -> int:
        """The value by which a value of the graph around is read."""
        if outer not in self._reads:
            value = self._around.values[outer]
            self._reads[outer] = self._add(value.shape, value.dtype)
        return self._reads[outer]

    def ref(self, node: torch.fx.Node) -> Arg:
        node = passed_on(node)
        if node not in self.of:
            outer = self._around.of.get(node)
            if isinstance(outer, tuple):
                return tuple([Ref(self._read(each)) for each in outer])
            return None if outer is None else Ref(self._read(outer))  # None: an absent input
        return super().ref(node)

    def _number(self, node: torch.fx.Node) -> int:
        value = self.ref(node)
        if not isinstance(value, Ref):
            raise TraceError(
                where=self.where,
                reason=f"{self._part.record.name} gives {node}, which is not a tensor",
                hint="Gradients are tensors or None.",
            )
        return value.value

    def draw(
        self, node: torch.fx.Node, args: list[Arg], kwargs: dict[str, Arg], prefix: str
    ) -> None:
        """Draw of the stream of the graph around; its rate is a number."""
        seed = self._around.seed
        if seed is None:
            raise TraceError(
                where=self.where,
                reason=f"{self._part.record.name} draws random numbers without a seed",
                hint="This is a defect of the tracer: the graph has no random stream.",
            )
        kwargs.update(seed=Ref(self._read(seed.value)), stream=self._around.streams)
        self._around.streams += 1
