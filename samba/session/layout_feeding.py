"""Inputs of a program whose ``forward`` asked how they lie in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pef_schema.program import Program
from samba.errors import ArgumentError
from samba.session.feeding import Feed, Feeder
from samba.session.index_checks import FedIndices
from samba.session.viewed_feeding import ViewedFeeder
from samba.support.nesting import Constant
from samba.tensor.views import host_of, strides_of
from samba.tracer.inputs import Layout, NamedInput


class LayoutFeeder(Feeder):
    """A feeder that takes tensors only if they lie in memory as those of the trace.

    Args:
        program, given, graph_number, constants, checks: As for :class:`Feeder`; ``given`` has the
            layouts.
    """

    def __init__(
        self,
        program: Program,
        given: Sequence[NamedInput] = (),
        graph_number: int = 0,
        *,
        constants: Sequence[tuple[str, Constant]] = (),
        checks: Mapping[int, tuple[FedIndices, ...]],
    ) -> None:
        super().__init__(program, given, graph_number, constants=constants, checks=checks)
        pairs = zip(given, self.slots, strict=False)
        self._layouts = {slot.name: n.layout for n, slot in pairs if n.layout is not None}

    def arrays(self, inputs: Any) -> Feed:
        """As :meth:`Feeder.arrays`.

        Raises:
            ArgumentError: If a tensor lies otherwise, too.
        """
        for slot, tensor in self._matched(inputs):
            layout = self._layouts.get(slot.name)
            if layout is not None and getattr(tensor, "_has_data", True):
                _check(host_of(tensor), layout, slot.name)
        return super().arrays(inputs)


def _check(tensor: torch.Tensor, layout: Layout, name: str) -> None:
    if tensor.dim() != len(layout.strides):
        return  # told with its shape
    strides, offset = strides_of(tensor)
    same = all(
        n <= 1 or own == seen
        for n, own, seen in zip(tensor.shape, strides, layout.strides, strict=True)
    )
    if same and (not layout.asks_offset or offset == layout.offset):
        return
    raise ArgumentError(
        where=f"input {name}",
        found=f"strides {strides}" + (f", offset {offset}" if layout.asks_offset else ""),
        wanted=f"strides {layout.strides}"
        + (f", offset {layout.offset}" if layout.asks_offset else "")
        + " (0 where an axis has one element), with which forward() was traced",
        hint=f"forward() asks for them ({layout.line}), so its graph is for them alone: pass a "
        "tensor that lies so (x.contiguous() if it was traced with one), or trace with one that "
        "lies as this.",
        deviation="traced-layout",
    )


def feeder_of(
    program: Program,
    given: Sequence[NamedInput],
    graph_number: int = 0,
    *,
    constants: Sequence[tuple[str, Constant]] = (),
    checks: Mapping[int, tuple[FedIndices, ...]],
) -> Feeder:
    """The feeder of a graph; it looks at layouts only where ``forward`` hangs on them.

    Args:
        program, given, graph_number, constants, checks: As for :class:`Feeder`.
    """
    asks = any(entry.layout is not None for entry in given)
    views = any(entry.views is not None for entry in given)
    kind = LayoutFeeder if asks else ViewedFeeder if views else Feeder
    return kind(program, given, graph_number, constants=constants, checks=checks)
