"""Tensors of a model that lie in the same memory: torch changes all of them when it changes one.

On the device each parameter, buffer and constant has a place of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from samba.tensor.views import foreign_layout, view_detached
from samba.tracer.errors import TraceError
from samba.tracer.torch_internals import FakeTensor


class SharedMemory(TraceError):
    """A tensor that a program changes shares memory with another one.

    Attributes:
        changes: Path of the tensor that changes.
        shares: Path of the other.
    """

    deviation = "shared-memory"

    def __init__(self, *, model: str, changes: str, shares: str) -> None:
        self.changes, self.shares = changes, shares
        super().__init__(
            where=f"model {model}",
            reason=f"{changes}, which the program changes, shares memory with {shares}. In torch "
            "both change, but on the device each has memory of its own",
            hint="Use one tensor in both places (b.weight = a.weight), compute the other one in "
            "forward(), or give it a copy (t.clone()).",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldTensor:
    """A parameter, a buffer or a constant of a graph.

    Args:
        path: Where it is, from the model on.
        tensor: The tensor.
        changes: Whether the program changes it.
    """

    path: str
    tensor: torch.Tensor
    changes: bool


def refuse_shared_memory(held: Iterable[HeldTensor], model: str) -> None:
    """Raise if torch would change a tensor of a model with another one.

    Args:
        held: All tensors of its graph that come from the model.
        model: Its name.

    Raises:
        SharedMemory: If one that changes shows elements of another one.
    """
    places: dict[int, list[tuple[HeldTensor, torch.Tensor]]] = {}
    for entry in held:
        tensor = _in_memory(entry.tensor)
        if tensor is not None:
            places.setdefault(tensor.untyped_storage().data_ptr(), []).append((entry, tensor))
    for place, entries in places.items():
        for (first, one), (second, other) in itertools.combinations(entries if place else (), 2):
            if first.tensor is second.tensor or not (first.changes or second.changes):
                continue
            if _overlap(one, other):
                changes, shares = (first, second) if first.changes else (second, first)
                raise SharedMemory(model=model, changes=changes.path, shares=shares.path)


def _in_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor with values in host memory, without its subclass; None for others."""
    if isinstance(tensor, FakeTensor) or not getattr(tensor, "_has_data", True):
        return None
    if foreign_layout(tensor):
        return None
    host = view_detached(tensor)
    return None if host.is_meta else host


Form = tuple[Sequence[int], Sequence[int], int]
"""Shape, strides and storage offset of a tensor."""


def have_common_element(one: Form, other: Form) -> bool:
    """Whether two tensors of one memory, with elements of one size, have an element in common.

    Args:
        one, other: Their forms.

    Example:
        >>> have_common_element(((2,), (2,), 0), ((2,), (2,), 1))
        False
    """
    if 0 in one[0] or 0 in other[0]:
        return False
    (first, last), (start, end) = _range(one), _range(other)
    if last <= start or end <= first:
        return False
    marks = torch.zeros(max(last, end), dtype=torch.bool)
    ours, theirs = [
        marks.as_strided([n if s else 1 for n, s in zip(shape, strides, strict=True)], strides, at)
        for shape, strides, at in (one, other)
    ]
    ours.fill_(True)
    return bool(theirs.any())


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same of two tensors with values; of sizes that differ by their first and last bytes."""
    forms = [(t.shape, t.stride(), int(t.storage_offset())) for t in (one, other)]
    if one.element_size() == other.element_size():
        return have_common_element(*forms)
    if not one.numel() or not other.numel():
        return False
    (first, last), (start, end) = [
        [place * tensor.element_size() for place in _range(form)]
        for form, tensor in zip(forms, (one, other), strict=True)
    ]
    return start < last and first < end


def _range(form: Form) -> tuple[int, int]:
    """The place of a tensor's first element in its memory, and the one behind its last."""
    shape, strides, first = form
    steps = zip(shape, strides, strict=True)
    return first, first + sum((size - 1) * step for size, step in steps) + 1
