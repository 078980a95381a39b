"""From nodes of an exported graph, and of backward passes of a model, to nodes of a PEF."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from pef_schema.program import Arg, DType, Gradient, Node, Ref, Value
from samba.tracer.errors import TraceError
from samba.tracer.gradient_parts import GradientPart, passed_on
from samba.tracer.random_draws import drawing_nodes, is_training, rate_position
from samba.tracer.torch_internals import arguments_of, is_operation
from samba.tracer.traced import TO_DTYPE
from samba.tracer.user_code import node_line

_DROPPED_KWARGS = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
"""Keyword arguments that mean nothing on the device."""


class PlainNodes:
    """Nodes of a PEF, made of those of an exported graph one after another.

    Args:
        where: What to name in an error about a node that has no line of the user's.
        line: The line of such a node.

    Attributes:
        of: The values of nodes, by node.
        values: All values.
        nodes: All nodes so far.
        random: Nodes of the exported graph that draw random numbers.
        seed: The state of the random stream, if there is one.
        streams: How many operations have drawn so far.
    """

    def __init__(self, where: str, line: str = "") -> None:
        self.where, self.line = where, line
        self.of: dict[torch.fx.Node, int | tuple[int, ...]] = {}
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.random: frozenset[torch.fx.Node] = frozenset()
        self.seed: Ref | None = None
        self.streams = 0

    # -- what the graphs differ in --------------------------------------------

    def new_value(self, name: str, tensor: torch.Tensor) -> int:
        """A new value of the form of a tensor."""
        raise NotImplementedError

    def ref(self, node: torch.fx.Node) -> Arg:
        """What stands for a node among arguments; None for an absent optional input."""
        value = self.of.get(node)
        if isinstance(value, tuple):
            return tuple(map(Ref, value))
        return None if value is None else Ref(value)

    def draw(
        self, node: torch.fx.Node, args: list[Arg], kwargs: dict[str, Arg], prefix: str
    ) -> None:
        """Say to an operation that draws which random numbers are its own."""
        raise NotImplementedError

    # -- what they have in common ---------------------------------------------

    def part(self, node: torch.fx.Node) -> None:
        """Note one of several results of an operation."""
        parent, position = cast("tuple[torch.fx.Node, int]", node.args)
        self.of[node] = cast("tuple[int, ...]", self.of[parent])[position]

    def operation(self, node: torch.fx.Node, *, module: str = "", prefix: str = "") -> None:
        """Convert a node that calls an operation.

        Args:
            node: The node.
            module: The path of its module.
            prefix: First part of the names of its results.

        Raises:
            TraceError: A PEF cannot hold it.
        """
        op = str(node.target)
        if not is_operation(node.target):
            raise TraceError(
                where=node_line(node, self.where),
                reason=f"the Python function {op} stays in the graph",
                hint="Compute on tensors with torch operations only.",
            )
        args = [self.argument(a, node) for a in node.args]
        kwargs = {
            k: self.argument(a, node) for k, a in node.kwargs.items() if k not in _DROPPED_KWARGS
        }
        position = rate_position(op)
        if node in self.random:
            self.draw(node, args, kwargs, prefix)
        elif position is not None and not is_training(node):
            # Nothing is dropped, whatever the rate.
            key = arguments_of(node.target)[position].name
            if position < len(args):
                args[position] = 0.0
            elif key in kwargs:
                kwargs[key] = 0.0
        self.add(node, op, args, kwargs, self.results(node, prefix), module)

    def results(self, node: torch.fx.Node, prefix: str) -> tuple[int, ...]:
        """Add a value for each result of a node; -1 stands for one that nothing takes."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self.of[node] = index = self.new_value(f"{prefix}__outputs__0", value)
            return (index,)
        self.of[node] = outputs = tuple(
            -1 if each is None else self.new_value(f"{prefix}__outputs__{i}", each)
            for i, each in enumerate(_used_results(node))
        )
        return outputs

    def add(
        self,
        node: torch.fx.Node,
        op: str,
        args: Sequence[Arg],
        kwargs: Mapping[str, Arg],
        outputs: tuple[int, ...],
        module: str,
    ) -> None:
        """Add a node that has the line of one of the exported graph."""
        self.nodes.append(
            Node(
                op=op,
                args=tuple(args),
                kwargs=tuple(sorted(kwargs.items())),
                outputs=outputs,
                module=module,
                source=node_line(node, self.line),
            )
        )

    def argument(self, arg: Any, node: torch.fx.Node) -> Arg:
        """An argument of a node as a PEF holds it.

        Args:
            arg: The argument.
            node: Whose argument it is.

        Raises:
            TraceError: A PEF cannot hold it.
        """
        if isinstance(arg, torch.fx.Node):
            return self.ref(arg)
        if isinstance(arg, (list, tuple)):
            return tuple(self.argument(a, node) for a in arg)
        if arg is None or isinstance(arg, (bool, int, float, complex, str)):
            return arg
        if isinstance(arg, torch.dtype):
            return plain_dtype(arg, str(node.target))
        if isinstance(arg, (torch.device, torch.layout, torch.memory_format)):
            return None
        raise TraceError(
            where=node_line(node, self.where),
            reason=f"{node.target} takes {type(arg).__name__} {arg!r}, which a PEF cannot hold",
            hint="Shapes and settings must be fixed numbers when the model is compiled.",
        )


def _used_results(node: torch.fx.Node) -> Iterator[torch.Tensor | None]:
    """The results of a node that has several; None for those that nothing takes."""
    used = {cast(int, user.args[1]) for user in node.users if user.target is operator.getitem}
    for i, value in enumerate(node.meta["val"]):
        yield value if i in used and isinstance(value, torch.Tensor) else None


def plain_dtype(dtype: torch.dtype, where: str) -> DType:
    """An element type as a PEF holds it.

    Raises:
        TraceError: The device does not have it.
    """
    try:
        return TO_DTYPE[dtype]
    except KeyError:
        raise TraceError(
            where=where,
            reason=f"dtype {dtype} is not supported",
            hint=f"Supported: {', '.join(sorted(str(d) for d in TO_DTYPE))}.",
        ) from None


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
