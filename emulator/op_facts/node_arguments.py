"""Arguments of a node by position, with the shapes of those that are tensors."""

from __future__ import annotations

from pef_schema.program import Arg, DType, Gradient, Graph, Node, Ref

Place = tuple[int, int]
"""Where a tensor stands among the arguments: its position, and that in its list or 0."""

Shape = tuple[int, ...]


class NamedArgs:
    """Arguments of a node by position, with the shapes of those that are tensors.

    Args:
        graph: Where its values are.
        node: The node.
    """

    def __init__(self, graph: Graph | Gradient, node: Node) -> None:
        self._values, self._node = graph.values, node

    @property
    def op(self) -> str:
        """The node's op."""
        return self._node.op

    def argument(self, position: int, name: str = "", default: Arg = None) -> Arg:
        """An argument as it is, by position or keyword; the default if it was left out."""
        if 0 <= position < len(self._node.args):
            return self._node.args[position]
        return dict(self._node.kwargs).get(name, default) if name else default

    def shape(self, position: int, item: int = 0) -> Shape:
        """The shape of a tensor argument; of anything else, none: a scalar's."""
        arg = self.argument(position)
        if isinstance(arg, tuple):
            arg = arg[item] if item < len(arg) else None
        return self._values[arg.value].shape if isinstance(arg, Ref) else ()

    def size(self, position: int, dim: int) -> int:
        """The size of a tensor argument along a dimension; 1 if it has none of that number."""
        shape = self.shape(position)
        return shape[dim] if -len(shape) <= dim < len(shape) else 1

    def shapes(self, position: int) -> list[Shape]:
        """The shapes of a list of tensors."""
        arg = self.argument(position)
        items = arg if isinstance(arg, tuple) else (arg,)
        return [self._values[a.value].shape for a in items if isinstance(a, Ref)]

    def dtype(self, position: int, item: int = 0) -> DType:
        """The type of a tensor argument."""
        arg = self.argument(position)
        if isinstance(arg, tuple):
            arg = arg[item] if item < len(arg) else None
        return self._values[arg.value].dtype if isinstance(arg, Ref) else DType.FLOAT32

    def wanted(self) -> frozenset[Place]:
        """Where arguments stand that want a gradient."""
        places: set[Place] = set()
        for position, arg in enumerate(self._node.args):
            for item, one in enumerate(arg if isinstance(arg, tuple) else (arg,)):
                if isinstance(one, Ref) and self._values[one.value].needs_grad:
                    places.add((position, item))
        return frozenset(places)

    @property
    def results(self) -> list[Shape]:
        """The shapes of the results that are used."""
        return [self._values[v].shape for v in self._node.outputs if v >= 0]

    @property
    def result(self) -> Shape:
        """The shape of the first result that is used."""
        return next(iter(self.results), ())

    @property
    def result_dtype(self) -> DType | None:
        """The type of the first result that is used; None if none is."""
        return next((self._values[v].dtype for v in self._node.outputs if v >= 0), None)

    @property
    def is_projected(self) -> bool:
        """Whether the h of a recurrent layer is narrower than its c: position 1 holds both."""
        states = self.shapes(1)
        return len(states) == 2 and states[0][-1:] != states[1][-1:]
