"""Views that name places in memory are made to name elements of a value.

A graph has values, and a value has no strides: the device reads ``as_strided`` as if its input lay
row-major from place 0 on, and torch's functional form of a change through ``unfold`` forgets what
lies between the windows. While the exported graph still has torch's own memory, each of these views
is said again as one of a tensor that is so laid out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from samba.support.marks import mark, mark_of
from samba.tracer.errors import StridedViewError
from samba.tracer.nodes import call_like, changes_in_place, shown_by
from samba.tracer.torch_internals import (
    arguments_of,
    is_operation,
    replacing_nodes,
    returns_of,
    storage_of,
)
from samba.tracer.user_code import node_line

_STRIDED = torch.ops.aten.as_strided.default
_COPIED = torch.ops.aten.as_strided_copy.default
_SCATTER = torch.ops.aten.as_strided_scatter.default
_UNFOLD = torch.ops.aten.unfold.default
_FRESH = torch.ops.aten.lift_fresh_copy.default
"""What torch.tensor(...) in forward makes of a constant; on fake tensors it seems to be that."""
_OWN = "samba_own_scatter"
"""Key of what marks an ``as_strided_scatter`` of the model's own: its gradient is torch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where the elements of a tensor lie; axes of size 1 say nothing and are left out.

    ``axes`` are the positions of the others, outermost in memory first, in which order ``sizes``
    and ``strides`` are, too; ``offset`` is the place of the first element.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def is_dense(self) -> bool:
        """Whether every place from the first to the last is that of one element."""
        inner = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if stride != inner:
                return False
            inner *= size
        return True

    @property
    def is_in_order(self) -> bool:
        """Whether the axes lie in their own order."""
        return self.axes == tuple(sorted(self.axes))

    @property
    def is_nested(self) -> bool:
        """Whether the tensor is dense as soon as its axes are padded."""
        pairs = zip(self.strides, self.strides[1:], self.sizes[1:], strict=False)
        return all(stride > 0 for stride in self.strides) and all(
            outer % inner == 0 and outer // inner >= size for outer, inner, size in pairs
        )

    def has(self, places: np.ndarray) -> bool:
        """Whether all places are those of elements, where :attr:`is_nested`."""
        rest = places - self.offset
        if rest.min() < 0:
            return False
        for size, stride in zip(self.sizes, self.strides, strict=True):
            index = rest // stride
            if index.max() >= size:
                return False
            rest = rest - index * stride
        return not rest.any()


def _layout(tensor: torch.Tensor) -> _Layout:
    strides = tensor.stride()
    axes = [axis for axis, size in enumerate(tensor.shape) if size != 1]
    axes.sort(key=lambda axis: -strides[axis])
    return _Layout(
        axes=tuple(axes),
        sizes=tuple(tensor.shape[axis] for axis in axes),
        strides=tuple(strides[axis] for axis in axes),
        offset=int(tensor.storage_offset()),
    )


def name_elements(program: ExportedProgram, model: str) -> None:
    """Let views by strides name elements of values that lie row-major, as the device reads them.

    Args:
        program: As ``torch.export.export`` gives it, all in one graph; changed in place.
        model: Name of the model, for errors.

    Raises:
        StridedViewError: If a view reaches elements that no tensor of the graph has, or if several
            of its elements lie in one place and are changed.
    """
    graph = program.graph
    _refuse_repeated(graph, model)
    _show_unsaid(graph)
    strided = [n for n in graph.nodes if n.target in (_STRIDED, _COPIED, _SCATTER)]
    unfolded = [n for n in graph.nodes if n.target is _UNFOLD]
    if not strided and not unfolded:
        return
    storages, written = _changed(graph)
    for node in (n for n in unfolded if n in written):
        value = node.meta["val"]
        node.target, node.kwargs = _STRIDED, {}
        form = list(value.shape), list(value.stride()), value.storage_offset()
        node.args = (node.args[0], *form)
        strided.append(node)
    with replacing_nodes(program):
        for node in strided:
            view = _View(node, model, written=node in written, storages=storages)
            view.name_elements()
    program.graph_module.recompile()


def _show_unsaid(graph: torch.fx.Graph) -> None:
    """Say by strides what is a view without saying so, such as ``einsum("ij->ji", x)``.

    Torch's functional form takes it for a copy, and loses a change of it or of its tensor.
    """
    changed = {storage_of(_value(node)) for _, node in changes_in_place(graph)}
    for node in graph.nodes if changed else ():
        maker = node.args[0] if node.target is operator.getitem else node
        value = node.meta.get("val")
        if (
            not isinstance(value, torch.Tensor)
            or not is_operation(maker.target)
            or maker.target is _FRESH
            or any(each.alias_info is not None for each in returns_of(maker.target))
            or (storage := storage_of(value)) not in changed
        ):
            continue
        for base in maker.all_input_nodes:
            own = base.meta.get("val")
            if isinstance(own, torch.Tensor) and storage_of(own) == storage:
                form = list(value.shape), list(value.stride()), value.storage_offset()
                node.target, node.args, node.kwargs = _STRIDED, (base, *form), {}
                break


def _refuse_repeated(graph: torch.fx.Graph, model: str) -> None:
    """Refuse changes through ``expand`` and its like, which torch refuses when they run."""
    for node, changed in changes_in_place(graph):
        value = changed.meta.get("val")
        if not isinstance(value, torch.Tensor) or _is_any(value.shape, 0):
            continue
        axes = zip(value.shape, value.stride(), strict=True)
        if any(_is_any([step], 0) and not _is_any([size], 1) for size, step in axes):
            raise StridedViewError(
                where=node_line(node, f"module {model}"),
                reason=f"{node.target} changes a view of sizes {list(value.shape)} and strides "
                f"{list(value.stride())}, whose elements overlap in memory",
                hint="Torch refuses that, too: change a copy (x.clone()).",
            )


def _is_any(sizes: Sequence[Any], number: int) -> bool:
    """Whether a size is a number; of one that depends on data that is not asked."""
    return any(type(size) is int and size == number for size in sizes)


def exact_writes(program: ExportedProgram) -> None:
    """Give changes through views by strides the gradient of a change in place.

    Torch's gradient of ``as_strided_scatter`` is another; one that the model calls keeps it.

    Args:
        program: A functional program; changed in place.
    """
    graph = program.graph
    writes = [
        node
        for node in graph.find_nodes(op="call_function", target=_SCATTER)
        if not mark_of(node, _OWN)
    ]
    with replacing_nodes(program):
        for node in writes:
            _only_write(node)
    if writes:
        program.graph_module.recompile()


def _only_write(node: torch.fx.Node) -> None:
    """Let the gradient of what a node writes to be that of the places that it leaves alone."""
    graph = node.graph
    base, source, *form = node.args
    with graph.inserting_before(node):
        detached = call_like(node, torch.ops.aten.detach.default, base)
        mask = _mask(node, list(_value(base).shape), list(_value(source).shape), *form)
    with graph.inserting_after(node):
        result = call_like(node, torch.ops.aten.where.self, mask, node, base)
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)
    node.args = (detached, source, *form)


def _mask(like: torch.fx.Node, shape: list[int], part: list[int], *form: Any) -> torch.fx.Node:
    """Which elements of a tensor those of a view by strides are."""
    of_bools = {"dtype": torch.bool, "device": torch.device("cpu")}
    nowhere = call_like(like, torch.ops.aten.full.default, shape, False, **of_bools)
    here = call_like(like, torch.ops.aten.full.default, part, True, **of_bools)
    return call_like(like, _SCATTER, nowhere, here, *form)


def _value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _changed(graph: torch.fx.Graph) -> tuple[set[int], set[torch.fx.Node]]:
    """Storages that are changed in place, and the tensors through which they are."""
    storages: set[int] = set()
    written: set[torch.fx.Node] = set()
    for _, changed in changes_in_place(graph):
        shown: torch.fx.Node | None = changed
        storages.add(storage_of(_value(changed)))
        while shown is not None:
            written.add(shown)
            shown = shown_by(shown)
    return storages, written


class _View:
    """A view by strides in an exported graph.

    Args:
        node: The view.
        model: Name of the model.
        written: Whether elements are changed through it.
        storages: Storages that are changed in place.
    """

    def __init__(
        self, node: torch.fx.Node, model: str, *, written: bool, storages: set[int]
    ) -> None:
        self.node, self.model, self.written = node, model, written
        names = [argument.name for argument in arguments_of(node.target)]
        args: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        self.base: torch.fx.Node = args["self"]
        self.source: torch.fx.Node | None = args.get("src")
        self.size, self.stride = [int(n) for n in args["size"]], [int(n) for n in args["stride"]]
        self.given_offset: int | None = args.get("storage_offset")
        value = _value(self.base)
        own = value.storage_offset() if self.given_offset is None else self.given_offset
        self.offset = int(own)
        self.moves = storage_of(value) in storages

    def name_elements(self) -> None:
        """Say the view again, as one of a tensor whose elements lie row-major from place 0 on.

        Raises:
            StridedViewError: If that cannot be.
        """
        if self.source is not None:
            mark(self.node, _OWN)
        if math.prod(self.size) == 0:
            return
        if self.written and np.unique(self._places()).size < math.prod(self.size):
            self._refuse(
                "whose elements overlap in memory is changed in place; torch does not define the "
                "result",
                "Change a copy, or a view whose elements do not overlap.",
            )
        bases = [(base, _layout(_value(base))) for base in self._bases()]
        if self.source is not None and not (bases[0][1].is_dense and bases[0][1].is_in_order):
            self._refuse(
                "is written into a tensor that is not contiguous, for which torch has no gradient",
                "Write into x.contiguous().",
            )
        # Torch makes a change functional only where its view is of the tensor that has the memory.
        order = reversed(bases) if self.written else bases
        within = [(b, at) for b, at in order if at.is_dense and self._lies_within(at)]
        within.sort(key=lambda each: not each[1].is_in_order)
        for base, layout in within:
            if self._is_of(base) or not (self.moves or self.source):
                self._read(base, layout)
                return
        if self.source is None and not self.moves:
            for base, layout in bases:
                if layout.is_nested and layout.has(self._places()):
                    self._read_padded(base, layout)
                    return
        self._refuse(
            "reaches memory outside of its tensor's elements, which the graph does not have",
            "Take the view of a tensor that has these elements, such as x.contiguous(), or select "
            "the elements with indices.",
        )

    def _bases(self) -> Iterator[torch.fx.Node]:
        """The tensor that the view is of, and those that it is a view of itself."""
        first = _value(self.base)
        base: torch.fx.Node | None = self.base
        while base is not None:
            value = base.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.dtype != first.dtype:
                return
            if storage_of(value) != storage_of(first):
                return
            yield base
            base = shown_by(base)

    def _lies_within(self, layout: _Layout) -> bool:
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return layout.offset <= self.offset and last < layout.offset + math.prod(layout.sizes)

    def _places(self) -> np.ndarray:
        """The places of the view's elements in memory."""
        return _places(self.size, self.stride, self.offset)

    def _is_of(self, base: torch.fx.Node) -> bool:
        """Whether all elements are of the tensor whose view it is, if ``base`` has them, too."""
        if base is self.base:
            return True
        own = _value(self.base)
        have = _places(own.shape, own.stride(), int(own.storage_offset()))
        return bool(np.isin(self._places(), have).all())

    def _read(self, base: torch.fx.Node, layout: _Layout) -> None:
        """Read a dense tensor, its axes in the order in which they lie."""
        offset = self.offset - layout.offset
        if base is self.base and layout.is_in_order and offset == (self.given_offset or 0):
            return  # it is said so already
        with self.node.graph.inserting_before(self.node):
            whole = self._in_order(base, layout)
            if not self._is_of(base):
                whole = self._with_own_gradient(whole, layout)
        self._set(whole, offset)

    def _in_order(self, base: torch.fx.Node, layout: _Layout) -> torch.fx.Node:
        if layout.is_in_order:
            return base
        order = _order(_value(base), layout)
        return call_like(self.node, torch.ops.aten.permute.default, base, order)

    def _with_own_gradient(self, whole: torch.fx.Node, layout: _Layout) -> torch.fx.Node:
        """A tensor that passes a gradient on only to elements that the view's own tensor has."""
        own = _value(self.base)
        strides = list(own.stride())
        sizes = [n if step else 1 for n, step in zip(own.shape, strides, strict=True)]
        form = sizes, strides, own.storage_offset() - layout.offset
        mask = _mask(self.node, list(_value(whole).shape), sizes, *form)
        detached = call_like(self.node, torch.ops.aten.detach.default, whole)
        return call_like(self.node, torch.ops.aten.where.self, mask, whole, detached)

    def _read_padded(self, base: torch.fx.Node, layout: _Layout) -> None:
        """Read a tensor with gaps: they are filled, and nothing is read there."""
        sizes, strides = (*layout.sizes, 1), (*layout.strides, 1)
        padding: list[int] = []
        for outer, inner, size in reversed(
            list(zip(strides, strides[1:], sizes[1:], strict=False))
        ):
            padding += [0, outer // inner - size]
        with self.node.graph.inserting_before(self.node):
            base = call_like(
                self.node, torch.ops.aten.permute.default, base, _order(_value(base), layout)
            )
            base = call_like(self.node, torch.ops.aten.reshape.default, base, list(sizes))
            base = call_like(self.node, torch.ops.aten.constant_pad_nd.default, base, padding)
        self._set(base, self.offset - layout.offset)

    def _set(self, base: torch.fx.Node, offset: int) -> None:
        tensors = (base,) if self.source is None else (base, self.source)
        self.node.args, self.node.kwargs = (*tensors, self.size, self.stride, offset), {}

    def _refuse(self, reason: str, hint: str) -> None:
        value = _value(self.base)
        form = f"sizes {self.size}, strides {self.stride}, offset {self.offset}"
        layout = f"{list(value.shape)}, {list(value.stride())}, {value.storage_offset()}"
        raise StridedViewError(
            where=node_line(self.node, f"module {self.model}"),
            reason=f"a view by strides ({form}; its tensor has {layout}) {reason}",
            hint=hint,
        )


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> np.ndarray:
    places = np.asarray(offset, np.int64)
    for n, s in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * s
    return places


def _order(value: torch.Tensor, layout: _Layout) -> list[int]:
    """All axes, outermost in memory first."""
    return [*layout.axes, *(axis for axis in range(value.dim()) if axis not in layout.axes)]
