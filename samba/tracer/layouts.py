"""Where ``forward`` asks how its inputs lie in memory, which a graph does not know.

A model is traced with inputs that lie row-major, so that a program fits however a later tensor
lies. A ``forward`` that asks for strides, though, is traced with those that were given, and its
program takes no others.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from samba.tracer.inputs import TraceInputs
from samba.tracer.looks import Looks, row_major


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
        pairs = zip(shape, layout.strides, row_major(shape), strict=True)
        strides = [seen if n > 1 else own for n, seen, own in pairs]
        usual = usual and not layout.offset and tuple(strides) == row_major(shape)
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        memory = torch.empty(layout.offset + last + 1, dtype=entry.tensor.dtype, device="cpu")
        stand_in = memory.as_strided(shape, strides, layout.offset)
        stand_ins.append(stand_in.requires_grad_(entry.requires_grad))
    if usual:
        return None
    args, kwargs = given.call_with(stand_ins)
    return replace(given, args=args, kwargs=kwargs)
