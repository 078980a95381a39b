"""From nodes of an exported graph to nodes of a PEF: operations, arguments, results."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from pef_schema.program import Arg, DType, Node, Ref, Value
from samba.tracer.errors import TraceError
from samba.tracer.random_draws import is_training, rate_position
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
        """New values for the results of a node; -1 for those that nothing takes."""
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
