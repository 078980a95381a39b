"""Numbers at which pointwise operations are finite, which stand for rows that are not selected."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emulator.op_facts.table import op_facts
from samba.tracer.data_dependent.rowwise import finite_slope_at
from samba.tracer.torch_internals import arguments_of

NUMBERS = (-30.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 30.0)


def operation(name: str) -> Any:
    """An operation of torch; None where this version has it under another name only."""
    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet, None), overload, None)


def is_finite_at(found: Any, number: float) -> bool | None:
    """Whether a pointwise operation and its slopes are; None where it takes no such numbers."""
    needed = [str(a.type) for a in arguments_of(found) if not a.has_default_value()]
    if torch.Tag.pointwise not in found.tags or not {*needed} <= {"Tensor", "number", "float"}:
        return None
    tensors = [torch.full((2,), number, requires_grad=True) for kind in needed if kind == "Tensor"]
    given = iter(tensors)
    try:
        result = found(*(next(given) if kind == "Tensor" else number for kind in needed))
    except (RuntimeError, NotImplementedError):  # of booleans, or of whole numbers
        return None
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return None
    finite = bool(result.isfinite().all())
    if result.requires_grad:
        try:
            gradients = torch.autograd.grad(result.sum(), tensors, allow_unused=True)
        except (RuntimeError, NotImplementedError):  # torch has none
            return finite
        finite &= all(g is None or bool(g.isfinite().all()) for g in gradients)
    return finite


def test_operations_are_finite_at_their_number() -> None:
    """Those that have none are finite everywhere."""
    found = {}
    for name in op_facts():
        each = operation(name) if name.startswith("aten.") else None
        if each is not None:
            at = finite_slope_at(each)
            found[name] = [is_finite_at(each, n) for n in (NUMBERS if at is None else (at,))]
    looked_at = [name for name, finite in found.items() if None not in finite]
    assert len(looked_at) > 120
    assert [name for name in looked_at if not all(found[name])] == []
    assert is_finite_at(torch.ops.aten.sqrt.default, 0.0) is False  # as it is told of others
