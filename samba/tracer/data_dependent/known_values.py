"""Values in ``forward`` that are known though the exporter computes on tensors without values.

* What follows from constants, and from buffers that ``forward`` does not change: the part of the
  graph that depends on no input, parameter or random number is computed beside it, when the value
  of a tensor is asked for.
* What a condition is that only asks whether numbers are finite: its value where all of them are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx.node import map_arg

from samba.tracer.errors import DataDependentBranch
from samba.tracer.nodes import written_by
from samba.tracer.torch_internals import (
    FakeTensor,
    is_operation,
    node_of,
    outside_of_trace,
    tree_leaves,
)
from samba.tracer.user_code import calling_line

_MOST = 1 << 26
"""Elements of a tensor that is computed here; a larger one counts as unknown."""


class _Unknown(Exception):
    """A value depends on more than what is known."""


def _refuse_others(node: torch.fx.Node) -> None:
    """Raise unless a node calls an operation that gives the same whenever it is called."""
    target = node.target
    is_call = node.op == "call_function" and (is_operation(target) or target is operator.getitem)
    if not is_call or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        raise _Unknown


class KnownValues:
    """Values of tensors that are the same in every run, of one trace.

    Args:
        model: The model, with tensors that have values.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._real = dict(model.named_buffers(remove_duplicate=False))
        self._stand_ins: Mapping[str, torch.Tensor] = {}
        self._graph: Any = None
        self._last: torch.fx.Node | None = None
        self._values: dict[torch.fx.Node, Any] = {}
        self._from: dict[torch.fx.Node, frozenset[str]] = {}
        self._own: dict[int, str] = {}
        self._changed: set[int] = set()
        self.read: dict[str, str] = {}
        """Paths of the buffers whose values were asked for, each with the first line that did."""

    def begin(self) -> None:
        """``forward`` is about to be called: its model has a stand-in for each buffer."""
        self._stand_ins = dict(self._model.named_buffers(remove_duplicate=False))

    def of(self, tensor: torch.Tensor, *, counts: bool = True) -> torch.Tensor | None:
        """The values of a tensor; None if they are not the same in every run.

        Args:
            tensor: A tensor of the ``forward`` that is being traced.
            counts: Whether the graph depends on them.
        """
        node = node_of(tensor)
        if node is None:
            # A constant that the graph has not met yet: one that is written to is refused.
            with outside_of_trace():
                return None if isinstance(tensor, FakeTensor) else tensor.detach().clone()
        if node[0].graph is not self._graph:
            self._start(node[0].graph)
        with outside_of_trace(), torch.no_grad():
            self._follow(node[1])
            value = self._values.get(node[0])
            if not isinstance(value, torch.Tensor) or _memory(value) in self._changed:
                return None
            if value.shape != tensor.shape or value.dtype is not tensor.dtype:
                return None
            for path in sorted(self._from.get(node[0], ())) if counts else ():
                self.read.setdefault(path, calling_line())
            return value.clone()

    def buffers(self) -> tuple[tuple[str, torch.Tensor], ...]:
        """Paths of the buffers whose values were asked for, with these values."""
        with outside_of_trace():
            return tuple(
                [
                    (path, self._real[path].detach().as_subclass(torch.Tensor).clone())
                    for path in sorted(self.read)
                ]
            )

    def refuse_changed(self, changed: Iterable[str]) -> None:
        """After a trace: refuse values of buffers that ``forward`` changes after all.

        Args:
            changed: Paths of the buffers that it changes.

        Raises:
            DataDependentBranch: If the value of one of them was asked for.
        """
        memory = {_memory(self._real[path]) for path in changed if path in self._real}
        for path in self.read:
            if _memory(self._real[path]) in memory:
                raise DataDependentBranch(
                    where=self.read[path],
                    reason=f"forward() depends on the value of a tensor: {path} is a buffer that "
                    "it also changes, so the value differs from run to run",
                    hint="A compiled graph is static. Use torch.where or masking, or do not "
                    "change the buffer in forward().",
                )

    # -- the graph, as far as it goes ------------------------------------------

    def _start(self, graph: torch.fx.Graph) -> None:
        """Begin with another graph, and with the buffers, for which it has stand-ins."""
        self._graph, self._last = graph, None
        self._values, self._from, self._changed, self._own = {}, {}, set(), {}
        for path, stand_in in self._stand_ins.items():
            real, node = self._real.get(path), node_of(stand_in)
            if real is None or node is None or node[0].op != "placeholder":
                continue
            if not getattr(real, "_has_data", True) or real.is_meta:
                continue
            with outside_of_trace():
                plain = real.detach().as_subclass(torch.Tensor)
            self._values[node[0]] = plain
            self._from[node[0]] = frozenset({path})
            self._own[_memory(plain)] = path

    def _follow(self, root: torch.nn.Module) -> None:
        """Compute what has come to the graph since the last time."""
        graph = self._graph
        entry = self._last.next if self._last is not None else next(iter(graph.nodes))
        while entry.op != "root":
            self._note(entry, root)
            self._last, entry = entry, entry.next

    def _note(self, node: torch.fx.Node, root: torch.nn.Module) -> None:
        if node.op == "get_attr":
            value = getattr(root, str(node.target), None)
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                plain = value.detach().as_subclass(torch.Tensor)
                self._values[node] = plain
                self._own.setdefault(_memory(plain), "")
        elif node.op == "call_function":
            try:
                self._values[node] = self._computed(node)
            except _Unknown:
                self._forget(node)
            except (RuntimeError, TypeError, ValueError, IndexError):
                self._forget(node)  # torch says so itself where the graph is traced
            else:
                nothing = frozenset[str]()
                given = [self._from.get(source, nothing) for source in node.all_input_nodes]
                self._from[node] = nothing.union(*given)

    def _computed(self, node: torch.fx.Node) -> Any:
        _refuse_others(node)
        if any(source not in self._values for source in node.all_input_nodes):
            raise _Unknown
        args, kwargs = map_arg((node.args, node.kwargs), self._values.__getitem__)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(_memory(tensor) in self._changed for tensor in given):
            raise _Unknown
        if any(_memory(written) in self._own for written in self._written(node)):
            raise _Unknown  # a buffer or constant of the user's, which stays as it is
        shapes = [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
        if any(not isinstance(n, int) for v in shapes for n in v.shape):
            raise _Unknown
        if any(v.numel() > _MOST for v in shapes):
            raise _Unknown
        return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  # an operation

    def _forget(self, node: torch.fx.Node) -> None:
        """What a node changes in place is not known any more, nor what shares its memory."""
        for written in self._written(node):
            self._changed.add(_memory(written))

    def _written(self, node: torch.fx.Node) -> list[torch.Tensor]:
        """The known tensors that a node changes in place."""
        leaves = [leaf for written in written_by(node) for leaf in tree_leaves(written)]
        values = [self._values.get(leaf) for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        return [value for value in values if isinstance(value, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins, which all its views share."""
    return tensor.untyped_storage().data_ptr()


# -- finite numbers -----------------------------------------------------------------

_FINITE: Mapping[str, bool] = {
    "isfinite": True,
    "isnan": False,
    "isinf": False,
    "isposinf": False,
    "isneginf": False,
}
"""Functions that ask whether numbers are finite, and what they say where all are."""

_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
"""Comparisons: with infinity, all finite numbers have the same outcome."""


def where_finite(node: torch.fx.Node) -> bool | None:
    """The truth of a condition where all numbers that it looks at are finite.

    Args:
        node: The node of the condition, of one element.

    Returns:
        None if the condition looks at more than that.

    Example:
        >>> graph = torch.fx.Graph()
        >>> x = graph.placeholder("x")
        >>> x.meta["val"] = torch.zeros(3)
        >>> nan = graph.call_function(torch.ops.aten.isnan.default, (x,))
        >>> nan.meta["val"] = torch.zeros(3, dtype=torch.bool)
        >>> found = graph.call_function(torch.ops.aten.any.default, (nan,))
        >>> where_finite(found)
        False
    """
    values: dict[torch.fx.Node, Any] = {}
    with outside_of_trace(), torch.no_grad():
        try:
            value = _value(node, values)
            return bool(value) if values and value.numel() == 1 else None
        except (_Unknown, RuntimeError, TypeError, ValueError, AttributeError, RecursionError):
            return None


def _value(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    if node in values:
        return values[node]
    _refuse_others(node)
    asked = _asked(node)
    if asked is not None:
        # Without memory of its own: it may be as large as the tensor that is looked at.
        values[node] = torch.tensor(asked).expand(tuple(node.meta["val"].shape))
        return values[node]
    if not node.all_input_nodes:
        raise _Unknown
    for source in node.all_input_nodes:
        _value(source, values)
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    values[node] = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  # an operation
    return values[node]


def _asked(node: torch.fx.Node) -> bool | None:
    """What an operation says where all numbers are finite; None if that is not what it asks."""
    namespace, _, rest = str(node.target).partition(".")
    name = rest.partition(".")[0]
    if namespace != "aten":
        return None
    if name in ("ne", "eq") and len(node.args) == 2 and node.args[0] is node.args[1]:
        return name == "eq"  # only NaN differs from itself
    limit = node.args[1] if len(node.args) == 2 and name in _COMPARED else None
    if isinstance(limit, float) and math.isinf(limit):
        return _COMPARED[name](0.0, limit)
    return _FINITE.get(name)
