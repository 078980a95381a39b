"""Inputs of a program whose ``forward`` depends on how they lie in memory.

Either it asks how they lie, and then its graph is for inputs that lie so alone. Or it has views of
them, which torch refuses of some layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from pef_schema.program import Program
from samba.errors import ArgumentError
from samba.session.feeding import Feed, Feeder, slots_of
from samba.session.index_checks import FedIndices
from samba.support.nesting import Constant
from samba.tensor.views import host_of, strides_of
from samba.tracer.capture import trace_model
from samba.tracer.inputs import Layout, NamedInput, TraceInputs, ViewCheck
from samba.tracer.layouts import with_layouts
from samba.tracer.traced import Traced


def with_layouts_and_views(
    given: TraceInputs, traced: Traced, model: torch.nn.Module, *, inference: bool
) -> TraceInputs:
    """Inputs that know how they have to lie, or whom to ask, where ``forward`` depends on it.

    Args:
        given: What ``forward`` was traced with.
        traced: What it was traced to.
        model: The model, which is traced again with inputs that lie otherwise than row-major.
        inference: As for :func:`samba.tracer.capture.trace_model`.
    """
    if traced.looks is not None:
        return with_layouts(given, traced.looks)  # those of the trace, whatever the views
    if not traced.viewed:
        return given

    def refuse(tensors: Mapping[int, torch.Tensor]) -> None:
        entries = enumerate(given.tensors)
        lying = tuple([replace(n, tensor=tensors.get(i, n.tensor)) for i, n in entries])
        trace_model(model, replace(given, tensors=lying), inference=inference)

    named = [
        replace(n, views=ViewCheck(place=i, refuse=refuse)) if i in traced.viewed else n
        for i, n in enumerate(given.tensors)
    ]
    return replace(given, tensors=tuple(named))


def feeder_of(
    program: Program,
    given: Sequence[NamedInput],
    graph_number: int = 0,
    *,
    constants: Sequence[tuple[str, Constant]] = (),
    checks: Mapping[int, tuple[FedIndices, ...]],
) -> Feeder:
    """The feeder of a graph; it looks at layouts only where ``forward`` depends on them.

    Args:
        program, given, constants: As for :class:`Feeder`.
        graph_number: Number of the graph.
        checks: As for :func:`samba.session.feeding.slots_of`.
    """
    depends = any(entry.layout is not None or entry.views is not None for entry in given)
    kind = _LayoutFeeder if depends else Feeder
    slots = slots_of(program.graphs[graph_number], checks)
    return kind(program, slots, given, constants=constants)


class _LayoutFeeder(Feeder):
    """A feeder that looks how the tensors lie which it is given.

    Where ``forward`` has views of inputs, it asks torch once for each way in which they lie.
    """

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        """How inputs have to lie, by name."""
        return {slot.name: n.layout for n, slot in self.named if n.layout is not None}

    @cached_property
    def _viewed(self) -> list[tuple[str, torch.Tensor, ViewCheck]]:
        """The inputs that are viewed: names, tensors of the trace, and whom to ask."""
        return [(slot.name, n.tensor, n.views) for n, slot in self.named if n.views is not None]

    @cached_property
    def _accepted(self) -> set[object]:
        """Strides of viewed inputs that torch has taken."""
        return set()

    def arrays(self, inputs: Any) -> Feed:
        """As :meth:`Feeder.arrays`.

        Raises:
            ArgumentError: If a tensor lies otherwise than in the trace, and ``forward`` asks, too.
            ShapeMismatch: If torch refuses a view of inputs that lie so, too.
        """
        if self._layouts:
            for slot, tensor in self._matched(inputs):
                layout = self._layouts.get(slot.name)
                if layout is not None and getattr(tensor, "_has_data", True):
                    _check(host_of(tensor), layout, slot.name)
        feed = super().arrays(inputs)
        if self._viewed:
            with torch._C.DisableTorchFunctionSubclass():
                tensors = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
                is_plain = isinstance(tensors, (tuple, list))
                if not (is_plain and all(map(_is_row_major, tensors))):
                    self._check_views({slot.name: t for slot, t in self._matched(inputs)})
        return feed

    def _check_views(self, fed: Mapping[str, torch.Tensor]) -> None:
        lying = [(fed.get(name, tensor), views) for name, tensor, views in self._viewed]
        key = tuple([_strides(tensor) for tensor, _ in lying])
        if key in self._accepted or all(_is_row_major(tensor) for tensor, _ in lying):
            return
        for refuse in dict.fromkeys([views.refuse for _, views in lying]):
            refuse({views.place: t for t, views in lying if views.refuse is refuse})
        self._accepted.add(key)


def _is_row_major(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and getattr(tensor, "_has_data", True)
        and host_of(tensor).is_contiguous()
    )


def _strides(tensor: torch.Tensor) -> object:
    return strides_of(host_of(tensor))[0] if getattr(tensor, "_has_data", True) else None


def _check(tensor: torch.Tensor, layout: Layout, name: str) -> None:
    if tensor.dim() != len(layout.strides):
        return  # refused with its shape
    strides, offset = strides_of(tensor)
    same = all(
        n <= 1 or own == other
        for n, own, other in zip(tensor.shape, strides, layout.strides, strict=True)
    )
    if same and (not layout.asks_offset or offset == layout.offset):
        return
    raise ArgumentError(
        where=f"input {name}",
        found=f"strides {strides}" + (f", offset {offset}" if layout.asks_offset else ""),
        wanted=f"strides {layout.strides}"
        + (f", offset {layout.offset}" if layout.asks_offset else "")
        + " (0 where an axis has one element), with which forward() was traced",
        hint=f"forward() asks for them ({layout.line}), so its graph is valid only for them: pass "
        "a tensor with these strides (x.contiguous() if it was traced with a contiguous one), or "
        "trace with a tensor like this one.",
        deviation="traced-layout",
    )
