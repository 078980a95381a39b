"""Selections by value, such as ``x[mask]`` or ``torch.where(mask)``, as tables of fixed length.

How many entries of a mask are set is data, but there are at most as many as it has entries. A
selection becomes a table with a row for each entry of the mask; the rows of entries that are not
set repeat the first one that is, or the first of all where none is. What is computed row by row
may then go on; where rows meet (``index_add_``, a sum), those that are not set are left out. No
gradient comes from these: what is 0 there is multiplied by finite slopes alone. A graph that does
anything else with a selection is left as it is, and refused.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from samba.tracer.data_dependent.rowwise import (
    GATHERS,
    arguments,
    finite_slope_at,
    row_axis_kept,
)
from samba.tracer.nodes import call_like, values_of
from samba.tracer.torch_internals import fake_mode_of
from samba.tracer.traced import carries_gradient

aten = torch.ops.aten

_CHECKS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten.sym_constrain_range_for_size.default",
        "aten.sym_constrain_range.default",
        "aten._assert_tensor_metadata.default",
    }
)
_SIZED = frozenset(
    {
        *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
        *("aten.expand.default", "aten.zeros.default", "aten.new_zeros.default"),
        *("aten.full.default", "aten.new_full.default", "aten.ones.default"),
    }
)
"""Operations that may take the number of rows, as a size."""


class _Refused(Exception):
    """The graph does something with a selection that has no form of fixed length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A selection as a table.

    Args:
        mask: The node of the mask.
        shape: Its shape.
        taken: bool (rows,): whether the entry of the mask is set.
        place: int64 (rows,): entry of the flattened mask.
    """

    mask: Node
    shape: tuple[int, ...]
    taken: Node
    place: Node

    @property
    def rows(self) -> int:
        """How many there are: as many as the mask has entries."""
        return math.prod(self.shape)


def bound_selections(module: torch.fx.GraphModule) -> None:
    """Give selections by value a fixed length, where all that is made of them allows it.

    Args:
        module: An exported functional graph; rewritten in place, or left as it is.
    """
    if not any(_rows_in(node) for node in module.graph.nodes):
        return
    trial = copy.deepcopy(module.graph)
    for before, after in zip(module.graph.nodes, trial.nodes, strict=True):
        after.meta = dict(before.meta)
    try:
        _Rewriter(trial).run()
    except _Refused:
        return
    _Rewriter(module.graph).run()
    module.recompile()


def _symbol(size: Any) -> Any:
    """The symbol of a size that is one number taken from data; None for others."""
    if not isinstance(size, torch.SymInt):
        return None
    expression = size.node.expr  # of sympy
    if not expression.is_Symbol:
        raise _Refused
    return expression


def _axis(value: Any) -> tuple[int, Any] | None:
    """Which axis of a value has a length that depends on data, and its symbol."""
    if not isinstance(value, torch.Tensor):
        return None
    axes = [(d, s) for d, s in enumerate(map(_symbol, value.shape)) if s is not None]
    if len(axes) > 1:
        raise _Refused
    return axes[0] if axes else None


def _rows_in(node: Node) -> bool:
    return any(
        isinstance(value, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in value.shape)
        for value in values_of(node)
    )


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tables: dict[Any, _Table] = {}
        self.of_mask: dict[Node, _Table] = {}
        self.old: dict[Node, Any] = {}
        self.now: Node | None = None

    def run(self) -> None:
        """Rewrite all nodes in order."""
        for node in list(self.graph.nodes):
            self.old[node] = node.meta.get("val")
            self.now = node
            if node.op == "output":
                self._finish(node)
            elif node.op == "call_function" and str(node.target) not in _CHECKS:
                self._node(node)
        for node in reversed(list(self.graph.nodes)):
            # Checks of the numbers that have gone.
            gone = str(node.target) in _CHECKS or isinstance(
                node.meta.get("val"), (torch.SymInt, torch.SymBool)
            )
            if gone and not node.users:
                self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def _finish(self, node: Node) -> None:
        if any(self._axis(source) for source in node.all_input_nodes):
            raise _Refused

    def _node(self, node: Node) -> None:
        if isinstance(self.old[node], (torch.SymInt, torch.SymBool, torch.SymFloat)):
            return
        if node.target is operator.getitem:
            source, position = arguments(node)
            node.meta["val"] = source.meta["val"][position]
            return
        axes = {source: self._axis(source) for source in node.all_input_nodes}
        sized = any(isinstance(self.old.get(s), torch.SymInt) for s in node.all_input_nodes)
        if not sized and not any(axes.values()):
            if any(_axis(value) for value in values_of(node)):
                self._select(node)
            return
        self._same_mask(a for a in axes.values() if a)
        if sized and str(node.target) not in _SIZED:
            raise _Refused
        results = [_axis(value) for value in values_of(node)]
        if all(results):
            self._same_mask([*(a for a in axes.values() if a), *(r for r in results if r)])
            if not row_axis_kept(node, self._shapes(node), {n: a[0] for n, a in axes.items() if a}):
                raise _Refused
            self._fix_sizes(node)
            self._keep_slopes_finite(node)
            node.meta["val"] = self._run(node.target, node.args, node.kwargs)
            if str(node.target) in GATHERS:
                self._gather(node)
        elif not any(results):
            self._meet(node)
        else:
            raise _Refused

    def _shapes(self, node: Node) -> dict[Node, Any]:
        """The values that the rules look at, with the symbol for the number of rows."""
        near = [node, *node.all_input_nodes]
        return {n: self.old.get(n, n.meta.get("val")) for n in near}

    def _axis(self, node: Node) -> tuple[int, Any] | None:
        axes = [_axis(value) for value in self._old_values(node)]
        if len(axes) > 1:
            return next((f for f in axes if f), None)
        return axes[0] if axes else None

    def _old_values(self, node: Node) -> list[Any]:
        value = self.old.get(node, node.meta.get("val"))
        return list(value) if isinstance(value, (tuple, list)) else [value]

    def _same_mask(self, axes: Any) -> None:
        masks = {self._table(symbol).mask for _, symbol in axes}
        if len(masks) > 1:
            raise _Refused

    def _table(self, symbol: Any) -> _Table:
        if symbol not in self.tables:
            raise _Refused
        return self.tables[symbol]

    def _fix_sizes(self, node: Node) -> None:
        """Numbers of rows among the arguments become those of the table."""

        def size(arg: Node) -> Any:
            value = self.old.get(arg)
            if not isinstance(value, torch.SymInt):
                return arg
            return self._table(_symbol(value)).rows

        node.args, node.kwargs = map_arg(node.args, size), map_arg(node.kwargs, size)

    # -- new nodes ----------------------------------------------------------

    def _run(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The value of a node, from those of its arguments."""
        args, kwargs = map_arg((args, kwargs), lambda n: n.meta["val"])
        mode = fake_mode_of((args, kwargs))
        if mode is None:
            raise _Refused
        with mode:
            return target(*args, **kwargs)

    def _emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        if self.now is None:
            raise _Refused
        with self.graph.inserting_before(self.now):
            return call_like(self.now, target, *args, **kwargs)

    # -- where a selection starts -------------------------------------------

    def _select(self, node: Node) -> None:
        op = str(node.target)
        if op in ("aten.where.default", "aten.nonzero.default"):
            mask = arguments(node)[0]
            table = self._make_table(mask, node)
            columns = self._columns(table)
            if not columns:  # the mask is a single number, which has no axes
                raise _Refused
            if op == "aten.where.default":
                node.meta["val"] = tuple(c.meta["val"] for c in columns)
                for user in list(node.users):
                    self._substitute(user, columns[arguments(user)[1]])
                return
            rows = self._emit(aten.stack.default, columns, 1)
        elif op == "aten.index.Tensor":
            source, indices = arguments(node)
            flat, table = self._flattened(source, indices, node)
            rows = self._rows(flat, table, indices.index(table.mask))
        elif op == "aten.masked_select.default":
            source, mask = arguments(node)
            if source.meta["val"].shape != mask.meta["val"].shape:
                raise _Refused
            flat, table = self._flattened(source, [mask], node)
            rows = self._rows(flat, table, 0)
        else:
            raise _Refused
        self._substitute(node, rows)

    def _substitute(self, node: Node, instead: Node) -> None:
        """Put a node in the place of another, which keeps its old shape for the rules."""
        self.old[instead] = node.meta.get("val") if node not in self.old else self.old[node]
        node.replace_all_uses_with(instead)

    def _make_table(self, mask: Any, node: Node) -> _Table:
        value = mask.meta["val"]
        if not value.numel():
            raise _Refused
        table = self.of_mask.get(mask)
        if table is None:
            rows = value.numel()
            flat = self._reshaped(mask, (rows,))
            taken = self._emit(aten.ne.Scalar, flat, 0)
            first = self._emit(
                aten.argmax.default, self._emit(aten._to_copy.default, taken, dtype=torch.int64), 0
            )
            every = self._emit(
                aten.cumsum.default, self._emit(aten.ones_like.default, taken, dtype=torch.int64), 0
            )
            number = self._emit(aten.sub.Scalar, every, 1)
            place = self._emit(aten.where.self, taken, number, first)
            table = _Table(mask=mask, shape=tuple(value.shape), taken=taken, place=place)
            self.of_mask[mask] = table
        for old in values_of(node):
            axis = _axis(old)
            if axis is None:
                raise _Refused
            self.tables[axis[1]] = table
        return table

    def _reshaped(self, node: Node, shape: Sequence[int]) -> Node:
        if tuple(node.meta["val"].shape) == tuple(shape):
            return node
        return self._emit(aten.reshape.default, node, list(shape))

    def _columns(self, table: _Table) -> list[Node]:
        """The coordinates of every row in the mask."""
        columns = []
        below = table.rows
        for size in table.shape:
            below //= size
            column = table.place
            if below > 1:
                column = self._emit(aten.div.Tensor_mode, column, below, rounding_mode="floor")
            if column is table.place or len(columns):
                column = self._emit(aten.remainder.Scalar, column, size)
            columns.append(column)
        return columns

    def _flattened(self, source: Any, indices: Any, node: Node) -> tuple[Node, _Table]:
        """A tensor whose axes under a mask are one."""
        given = [i for i in indices if i is not None]
        if len(given) != 1 or given[0].meta["val"].dtype != torch.bool:
            raise _Refused
        start = indices.index(given[0])
        table = self._make_table(given[0], node)
        shape = source.meta["val"].shape
        if tuple(shape[start : start + len(table.shape)]) != table.shape:
            raise _Refused
        flat = (*shape[:start], table.rows, *shape[start + len(table.shape) :])
        return self._reshaped(source, flat), table

    def _rows(self, flat: Node, table: _Table, axis: int) -> Node:
        """The rows of a tensor at the places of a table."""
        rows = self._emit(aten.index.Tensor, flat, [*[None] * axis, table.place])
        return self._without_gradient(rows, table, axis)

    def _gather(self, node: Node) -> None:
        """Take rows by an index as by a mask: without gradient where they are not taken."""
        axis = self._axis(node)
        if axis is None:
            raise _Refused
        rows = self._emit(node.target, *node.args, **node.kwargs)
        self._substitute(node, self._without_gradient(rows, self._table(axis[1]), axis[0]))

    def _without_gradient(self, rows: Node, table: _Table, axis: int) -> Node:
        """Rows as they are where they are taken; others are finite, and give no gradient.

        If no entry of the mask is set, all rows repeat the first one. If that were not a number, a
        weight that multiplies it would get a gradient that is none either.
        """
        value = rows.meta["val"]
        if not carries_gradient(value):
            return rows
        others = self._emit(aten.nan_to_num.default, self._emit(aten.detach.default, rows), 0, 0, 0)
        return self._emit(aten.where.self, self._spread(table, axis, value.dim()), rows, others)

    def _keep_slopes_finite(self, node: Node) -> None:
        """Replace the rows that are not taken by a number at which the operation's slope is finite.

        The gradient of these rows is 0, and 0 times an infinite slope is not a number.
        """
        within, axis = finite_slope_at(node.target), self._axis(node)
        if within is None or axis is None:
            return
        result = self.old[node]
        keep = self._spread(self._table(axis[1]), axis[0], result.dim())

        def filled(arg: Node) -> Node:
            value = arg.meta.get("val")
            if not isinstance(value, torch.Tensor) or not carries_gradient(value):
                return arg
            if not value.dim() and value.dtype != result.dtype:
                return arg  # rows in its place would change the type of the result
            return self._emit(aten.where.ScalarOther, keep, arg, within)

        node.args, node.kwargs = map_arg(node.args, filled), map_arg(node.kwargs, filled)

    # -- where rows meet ----------------------------------------------------

    def _meet(self, node: Node) -> None:
        op = str(node.target)
        if op == "aten.index_add.default":
            self._index_add(node)
        elif op == "aten.index_put.default":
            self._index_put(node)
        elif op in ("aten.sum.default", "aten.sum.dim_IntList"):
            self._zeroed(node, 0)
            node.meta["val"] = self._run(node.target, node.args, node.kwargs)
        elif op in ("aten.mean.default", "aten.mean.dim"):
            self._mean(node)
        else:
            raise _Refused

    def _zeroed(self, node: Node, position: int) -> _Table:
        """Make 0 of the rows of an argument that are not taken."""
        source = arguments(node)[position]
        axis = self._axis(source) if isinstance(source, Node) else None
        if axis is None:
            raise _Refused
        table = self._table(axis[1])
        value = source.meta["val"]
        keep = self._spread(table, axis[0], value.dim())
        none = self._emit(aten.zeros_like.default, source)
        node.update_arg(position, self._emit(aten.where.self, keep, source, none))
        return table

    def _spread(self, table: _Table, axis: int, ndim: int) -> Node:
        return self._reshaped(table.taken, [table.rows if d == axis else 1 for d in range(ndim)])

    def _index_add(self, node: Node) -> None:
        target, dim, index, source = arguments(node)[:4]
        axis = self._axis(source)
        ndim = self.old[node].dim()
        if self._axis(target) or axis is None or axis[0] != dim % ndim or not self._axis(index):
            raise _Refused
        self._zeroed(node, 3)
        node.meta["val"] = self._run(node.target, node.args, node.kwargs)

    def _index_put(self, node: Node) -> None:
        target, indices, values, *rest = arguments(node)
        adds = bool(rest and rest[0]) or bool(node.kwargs.get("accumulate"))
        axis = self._axis(values)
        if self._axis(target) or axis is None or any(i is None for i in indices):
            raise _Refused
        table = self._table(axis[1])
        if list(indices) == [table.mask]:
            self._write_back(node, table, target, values, adds)
            return
        if not adds or axis[0] != 0 or not all(self._axis(i) for i in indices):
            raise _Refused
        self._zeroed(node, 2)
        node.meta["val"] = self._run(node.target, node.args, node.kwargs)

    def _write_back(self, node: Node, table: _Table, target: Any, values: Any, adds: bool) -> None:
        """``x[mask] = rows``: each row is where its entry of the mask is."""
        shape = target.meta["val"].shape
        if values.meta["val"].shape != (table.rows, *shape[len(table.shape) :]):
            raise _Refused
        if values.meta["val"].dtype != target.meta["val"].dtype:
            raise _Refused
        spread = self._reshaped(values, shape)
        if adds:
            spread = self._emit(aten.add.Tensor, target, spread)
        keep = self._reshaped(table.taken, [*table.shape, *(1,) * (len(shape) - len(table.shape))])
        node.replace_all_uses_with(self._emit(aten.where.self, keep, spread, target))

    def _mean(self, node: Node) -> None:
        source = arguments(node)[0]
        if node.kwargs.get("dtype") is not None:
            raise _Refused
        before = source.meta["val"]
        table = self._zeroed(node, 0)
        args = arguments(node)[1:] if str(node.target) == "aten.mean.dim" else ()
        overload = aten.sum.dim_IntList if args else aten.sum.default
        total = self._emit(overload, node.args[0], *args)
        others = before.numel() // max(total.meta["val"].numel(), 1) // table.rows
        count = self._emit(aten.sum.default, table.taken)
        count = self._emit(aten.mul.Scalar, count, others)
        count = self._emit(aten._to_copy.default, count, dtype=before.dtype)
        node.replace_all_uses_with(self._emit(aten.div.Tensor, total, count))
