"""Inputs of a program whose ``forward`` has views of them, which torch refuses of some layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pef_schema.program import Program
from samba.session.feeding import Feed, Feeder, InputSlot
from samba.session.index_checks import FedIndices
from samba.support.nesting import Constant
from samba.support.tracing import tracing
from samba.tensor.views import host_of, strides_of
from samba.tracer.capture import trace_model
from samba.tracer.inputs import NamedInput, TraceInputs, ViewCheck
from samba.tracer.traced import Traced

__all__ = ["ViewedFeeder", "with_views"]


def with_views(
    given: TraceInputs, traced: Traced, model: torch.nn.Module, *, inference: bool
) -> TraceInputs:
    """Inputs that know whom to ask how they may lie, where ``forward`` has views of them.

    Args:
        given: What ``forward`` was traced with.
        traced: What it was traced to.
        model: The model, which is traced again with inputs that lie otherwise than row-major.
        inference: As for :func:`samba.tracer.capture.trace_model`.
    """
    if not traced.viewed or traced.looks is not None:
        return given  # where forward asks for strides, they have to be those of the trace

    def refuse(tensors: Mapping[int, torch.Tensor]) -> None:
        entries = enumerate(given.tensors)
        lying = tuple([replace(n, tensor=tensors.get(i, n.tensor)) for i, n in entries])
        with tracing():
            trace_model(model, replace(given, tensors=lying), inference=inference)

    named = [
        replace(n, views=ViewCheck(place=i, refuse=refuse)) if i in traced.viewed else n
        for i, n in enumerate(given.tensors)
    ]
    return replace(given, tensors=tuple(named))


class ViewedFeeder(Feeder):
    """A feeder that asks torch once for each way in which inputs lie otherwise than row-major.

    Args:
        program, given, graph_number, constants, checks: As for :class:`Feeder`; ``given`` knows
            whom to ask.
    """

    def __init__(
        self,
        program: Program,
        given: Sequence[NamedInput],
        graph_number: int = 0,
        *,
        constants: Sequence[tuple[str, Constant]] = (),
        checks: Mapping[int, tuple[FedIndices, ...]],
    ) -> None:
        super().__init__(program, given, graph_number, constants=constants, checks=checks)
        pairs = zip(given, self.slots, strict=False)
        self._viewed = [
            (slot.name, entry, entry.views) for entry, slot in pairs if entry.views is not None
        ]
        self._taken: set[object] = set()

    def arrays(self, inputs: Any) -> Feed:
        """As :meth:`Feeder.arrays`.

        Raises:
            ShapeMismatch: If torch refuses a view of inputs that lie so, too.
        """
        feed = super().arrays(inputs)
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(inputs, torch.Tensor):
                lie_usually = _lies_usually(inputs)
            elif isinstance(inputs, (tuple, list)):
                lie_usually = all(map(_lies_usually, inputs))
            else:
                lie_usually = False
            if not lie_usually:
                self._ask(self._matched(inputs))
        return feed

    def _ask(self, matched: Sequence[tuple[InputSlot, torch.Tensor]]) -> None:
        fed = {slot.name: tensor for slot, tensor in matched}
        lying = [(fed.get(name, n.tensor), views) for name, n, views in self._viewed]
        key = tuple([_strides(tensor) for tensor, _ in lying])
        if key in self._taken or all(_lies_usually(tensor) for tensor, _ in lying):
            return
        for refuse in dict.fromkeys([views.refuse for _, views in lying]):
            refuse({views.place: t for t, views in lying if views.refuse is refuse})
        self._taken.add(key)


def _lies_usually(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and getattr(tensor, "_has_data", True)
        and host_of(tensor).is_contiguous()
    )


def _strides(tensor: torch.Tensor) -> object:
    return strides_of(host_of(tensor))[0] if getattr(tensor, "_has_data", True) else None
