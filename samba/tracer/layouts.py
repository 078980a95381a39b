"""How tensors lie in memory, which a graph does not know: what ``forward`` asks and views of it.

A model is traced with inputs that lie row-major, so that a program fits however a later tensor
lies. Two kinds of ``forward`` need more than that:

* One that asks for strides is traced with those that were given, and its program takes no others.
* One that takes views, such as ``x.view(...)``: of a transposed or a channels-last tensor that may
  be impossible, and torch raises. So where a view may be of an input's own memory, and that one
  lies otherwise, the model is traced once more with inputs that lie so: if torch refuses that, it
  is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram

from samba.tensor.views import host_of, strides_of
from samba.tracer.errors import ShapeMismatch, TraceError
from samba.tracer.inputs import Layout, TraceInputs
from samba.tracer.torch_internals import is_operation, versions_of
from samba.tracer.user_code import called_in_users_code, calling_line

_T = torch.Tensor
_STRIDES = frozenset({_T.stride, _T.is_contiguous, _T.dim_order})
_OFFSETS = frozenset({_T.storage_offset})
_BY_PLACE = MappingProxyType(
    {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
)
"""Functions that name places in memory: where among their arguments the first place is."""
_MAYBE_COPIES = frozenset({"reshape", "reshape_as", "flatten", "ravel", "contiguous", "to"})
"""Functions that return their tensor's memory if its strides allow that, and a copy if not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MaybeCopy:
    """A tensor, one that shares its memory or is its copy, and how often each had been changed."""

    both: tuple[torch.Tensor, torch.Tensor]
    versions: tuple[int, ...]
    line: str


@dataclass(slots=True)
class Looks:
    """What ``forward`` asks of tensors while it is traced.

    Args:
        lines: The user's lines that ask, in order.
        offsets: Whether one asks for the place of a tensor in its storage, too.
        viewed: Places of the inputs that may have a view that hangs on how they lie.
    """

    lines: tuple[str, ...] = ()
    offsets: bool = False
    viewed: frozenset[int] = frozenset()
    _maybe_copies: list[_MaybeCopy] = field(default_factory=lambda: list[_MaybeCopy]())

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a function of torch that is being called, if it asks for strides.

        Args:
            func: The function.
            args, kwargs: Its arguments.
        """
        # By name: a method, a function and torch.ops.aten's operator are three objects.
        start = _BY_PLACE.get(str(getattr(func, "__name__", "")).partition(".")[0])
        if func not in _STRIDES and func not in _OFFSETS and start is None:
            return
        tensor = args[0] if args else None
        if isinstance(tensor, torch.nn.Parameter) or not called_in_users_code():
            return
        self.lines = tuple(dict.fromkeys((*self.lines, calling_line())))
        by_place = start is not None and (
            len(args) > start or kwargs.get("storage_offset") is not None
        )
        self.offsets = self.offsets or func in _OFFSETS or by_place

    def note_result(self, func: Any, tensor: Any, result: Any) -> None:
        """Note what a function returned, if strides say whether that is a copy.

        Args:
            func: The function.
            tensor: Its first argument.
            result: What it returned.
        """
        if str(getattr(func, "__name__", "")).partition(".")[0] not in _MAYBE_COPIES:
            return
        both = tensor, result
        if isinstance(tensor, torch.nn.Parameter):
            return
        if not all(isinstance(each, torch.Tensor) for each in both):
            return
        versions = versions_of(both)
        if versions is not None:
            self._maybe_copies.append(_MaybeCopy(both=both, versions=versions, line=calling_line()))

    def ask_of_changed(self) -> None:
        """Count as asking what was maybe a copy, where it or its tensor was then changed in place.

        Elsewhere a copy and a view are the same to a graph.
        """
        noted, self._maybe_copies = self._maybe_copies, []
        lines = [each.line for each in noted if each.versions != versions_of(each.both)]
        self.lines = tuple(dict.fromkeys((*self.lines, *lines)))

    def of(self, tensor: torch.Tensor) -> Layout:
        """How a tensor lies, as far as ``forward`` asks.

        Args:
            tensor: The tensor; one without values lies row-major.
        """
        shape = tuple(tensor.shape)
        strides, offset = _row_major(shape), 0
        if getattr(tensor, "_has_data", True):
            strides, offset = strides_of(host_of(tensor))
        return Layout(
            strides=tuple([s if n > 1 else 0 for n, s in zip(shape, strides, strict=True)]),
            offset=offset if self.offsets else 0,
            asks_offset=self.offsets,
            line=", ".join(self.lines),
        )


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor that lies row-major."""
    strides: list[int] = []
    inner = 1
    for size in reversed(shape):
        strides.append(inner)
        inner *= max(size, 1)
    return tuple(reversed(strides))


def with_layouts(given: TraceInputs, looks: Looks | None) -> TraceInputs:
    """Inputs that say how they lie, where ``forward`` asks for it.

    Args:
        given: What ``forward`` was traced with.
        looks: What it asked; None for nothing.
    """
    if looks is None:
        return given
    tensors = [replace(entry, layout=looks.of(entry.tensor)) for entry in given.tensors]
    return replace(given, tensors=tuple(tensors))


def laid_out(given: TraceInputs, looks: Looks) -> TraceInputs | None:
    """Inputs for a trace that lie as those that were given.

    Args:
        given: What was given.
        looks: What ``forward`` asks.

    Returns:
        The inputs; None if those that were given lie row-major, as far as ``forward`` asks.
    """
    stand_ins: list[torch.Tensor] = []
    layouts = [looks.of(entry.tensor) for entry in given.tensors]
    usual = True
    for entry, layout in zip(given.tensors, layouts, strict=True):
        shape = tuple(entry.tensor.shape)
        pairs = zip(shape, layout.strides, _row_major(shape), strict=True)
        strides = [stride if n > 1 else own for n, stride, own in pairs]
        usual = usual and not layout.offset and tuple(strides) == _row_major(shape)
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        memory = torch.empty(layout.offset + last + 1, dtype=entry.tensor.dtype, device="cpu")
        stand_in = memory.as_strided(shape, strides, layout.offset)
        stand_ins.append(stand_in.requires_grad_(entry.requires_grad))
    if usual:
        return None
    args, kwargs = given.call_with(stand_ins)
    return replace(given, args=args, kwargs=kwargs)


# -- views of inputs ----------------------------------------------------------------

_aten = torch.ops.aten

_NONE: frozenset[int] = frozenset()

_VIEWS = frozenset(
    {
        *(_aten.view.default, _aten.view.dtype, _aten.view_as.default, _aten._unsafe_view.default),
        *(_aten.view_as_complex.default, _aten.view_copy.default, _aten.view_copy.dtype),
    }
)
"""Operations that torch refuses of tensors that lie in a way that does not fit."""

_ROW_MAJOR = frozenset(
    {
        *(_aten.linear.default, _aten.mm.default, _aten.bmm.default, _aten.addmm.default),
        *(_aten.embedding.default, _aten.layer_norm.default),
    }
)
"""Operations whose results lie row-major, however their arguments lie."""


def viewed_inputs(program: ExportedProgram) -> frozenset[int]:
    """Which inputs may have a view whose form hangs on how they lie in memory.

    Args:
        program: As ``torch.export.export`` gives it, before it is functional.

    Returns:
        Their places among the tensors that the model is given.
    """
    graph = program.graph
    users = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    places = {name: place for place, name in enumerate(users)}
    reached: dict[torch.fx.Node, frozenset[int]] = {}
    viewed = _NONE
    for node in graph.nodes:
        if node.op == "placeholder":
            own = places.get(node.name)
            reached[node] = frozenset() if own is None else frozenset({own})
            continue
        sources = _NONE.union(*[reached[source] for source in node.all_input_nodes])
        reached[node] = _NONE if node.target in _ROW_MAJOR else sources
        if sources and _has_views(program, node):
            viewed |= sources
    return viewed


def _has_views(program: ExportedProgram, node: torch.fx.Node) -> bool:
    """Whether a node is a view, or a part of the graph with one in it."""
    if is_operation(node.target) or node.op == "output":
        return node.target in _VIEWS
    parts = [a for a in node.all_input_nodes if a.op == "get_attr"]
    modules = [getattr(program.graph_module, str(part.target), None) for part in parts]
    return any(
        inner.target in _VIEWS
        for module in modules
        if isinstance(module, torch.fx.GraphModule)
        for own in module.modules()
        if isinstance(own, torch.fx.GraphModule)
        for inner in own.graph.nodes
    )


def has_noncontiguous_view(given: TraceInputs, viewed: frozenset[int]) -> bool:
    """Whether one of the inputs that have views does not lie row-major.

    Args:
        given: What the model is traced with.
        viewed: What :func:`viewed_inputs` gives.
    """
    return any(
        place in viewed and not _lies_row_major(entry.tensor)
        for place, entry in enumerate(given.tensors)
    )


def _lies_row_major(tensor: torch.Tensor) -> bool:
    if not getattr(tensor, "_has_data", True):
        return True
    shape, (strides, _) = tuple(tensor.shape), strides_of(host_of(tensor))
    pairs = zip(shape, strides, _row_major(shape), strict=True)
    return 0 in shape or all(n <= 1 or own == usual for n, own, usual in pairs)


def refuse_views(trace: Callable[[], Any], given: TraceInputs) -> None:
    """Raise if torch refuses a view of inputs that lie as those given.

    Args:
        trace: Traces the model with inputs that lie so.
        given: The inputs.

    Raises:
        ShapeMismatch: With torch's words, and how the inputs lie.
    """
    try:
        trace()
    except TraceError as error:
        if not any(word in error.reason for word in _WORDS):
            return  # the model is traced with inputs that lie row-major
        how = [
            f"{entry.name} has strides {strides_of(host_of(entry.tensor))[0]}"
            for entry in given.tensors
            if not _lies_row_major(entry.tensor)
        ]
        said = error.reason.splitlines()[0]
        if said.startswith(_OF_THE_EXPORTER):
            said = f"view size is not compatible with input tensor's size and stride: {said}"
        raise ShapeMismatch(
            where=error.where,
            reason=f"{said} ({', '.join(how)})",
            hint="Torch raises that, too, for inputs with these strides: pass x.contiguous(), or "
            "call reshape() in forward().",
        ) from None


_OF_THE_EXPORTER = "Cannot view a tensor"
_WORDS = (_OF_THE_EXPORTER, "view size is not compatible", "to view", "stride", "storage_offset")
"""Some of these are in what torch says of a view that cannot be."""
