"""The distance of two tensors, and whether it is too large."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from pef_schema.program import DType
from samba.comparison.report import Gap, Statistics, Status
from samba.tracer.traced import TO_DTYPE, carries_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Tol:
    """How closely a result must match torch: ``|a - b| <= atol + rtol * |b|``."""

    rtol: float
    atol: float


DEFAULT_TOL: Mapping[DType, Tol] = MappingProxyType(
    {
        # torch.testing.assert_close's own defaults for each dtype.
        DType.FLOAT64: Tol(rtol=1e-7, atol=1e-7),
        DType.FLOAT32: Tol(rtol=1.3e-6, atol=1e-5),
        DType.BFLOAT16: Tol(rtol=1.6e-2, atol=1e-5),
        DType.FLOAT16: Tol(rtol=1e-3, atol=1e-5),
        DType.COMPLEX64: Tol(rtol=1.3e-6, atol=1e-5),
        DType.COMPLEX128: Tol(rtol=1e-7, atol=1e-7),
    }
)

EXACT = Tol(rtol=0.0, atol=0.0)

OWN_ERRORS = 4.0
"""How many times as far from the float64 result the device may be as torch is anywhere in the
tensor. Both round in their own order; neither is exact."""

Exactly = Callable[[], torch.Tensor | None]
"""Gives the same tensor computed in float64, None where that cannot be."""


def widest(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, or in complex128 if it is complex, without its history."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(wide)


def tolerance(dtype: torch.dtype) -> Tol:
    """The tolerance of an op's results of a dtype; 0 for integers and bool."""
    found = TO_DTYPE.get(dtype)
    return EXACT if found is None else DEFAULT_TOL.get(found, EXACT)


def gap(got: torch.Tensor, want: torch.Tensor, tol: Tol, more: float = 0.0) -> Gap:
    """The distance of two tensors of one shape.

    Args:
        got: The device's.
        want: Torch's.
        tol: What is allowed for an element.
        more: Allowed in addition, for every element.

    Returns:
        The distance; NaN is equal to NaN and an infinity to itself.
    """
    a, b = widest(got).reshape(-1), widest(want).reshape(-1)
    if b.numel() == 0:
        return Gap(
            largest=0.0,
            relative=0.0,
            index=(),
            device=0.0,
            torch=0.0,
            wrong=0,
            elements=0,
            allowed=0.0,
        )
    same = (a == b) | (a.isnan() & b.isnan())
    if not carries_gradient(want):
        same = got.reshape(-1) == want.reshape(-1)  # 64-bit integers do not fit float64
    distance = torch.where(same, 0.0, (a - b).abs())
    allowed = torch.where(b.isfinite(), tol.atol + tol.rtol * b.abs() + more, 0.0)
    wrong = ~same & ~(distance <= allowed)
    excess = torch.where(wrong, (distance - allowed).nan_to_num(nan=torch.inf), -1.0)
    worst = int(
        excess.argmax() if bool(wrong.any()) else distance.nan_to_num(nan=torch.inf).argmax()
    )
    norm = b[b.isfinite()].norm().item()
    off = distance.norm().item()
    position = torch.unravel_index(torch.tensor(worst), want.shape)
    return Gap(
        largest=distance.max().item(),
        relative=off / norm if norm else off,
        index=tuple(int(i) for i in position),
        device=a[worst].item(),
        torch=b[worst].item(),
        wrong=int(wrong.sum()),
        elements=b.numel(),
        allowed=allowed[worst].item(),
    )


def judge(
    got: torch.Tensor, want: torch.Tensor, tol: Tol, exactly: Exactly
) -> tuple[Status, Gap | None]:
    """Whether the device's tensor is right.

    Args:
        got: The device's.
        want: Torch's.
        tol: The op's tolerance.
        exactly: The same in float64; asked only if the tolerance alone does not do.

    Returns:
        The verdict and the distance, None for other shapes.
    """
    if got.shape != want.shape:
        return Status.SHAPE, None
    found = gap(got, want, tol)
    if got.dtype != want.dtype:
        return Status.DTYPE, found
    if not found.wrong:
        return Status.OK, found
    if bool((got.isfinite() != want.isfinite()).any()):
        return Status.NOT_FINITE, found
    exact = exactly() if carries_gradient(want) else None
    if exact is not None and exact.shape == want.shape:
        own = gap(want, exact, EXACT).largest
        more = OWN_ERRORS * own if own < torch.inf else 0.0
        ours = gap(got, widest(exact), tol, more)
        if not ours.wrong:
            return Status.OK, replace(found, wrong=0)
    return Status.BEYOND, found


def nonfinite(tensor: torch.Tensor) -> int:
    """How many elements are NaN or infinite."""
    return int((~tensor.isfinite()).sum()) if carries_gradient(tensor) else 0


def statistics(name: str, tensor: torch.Tensor) -> Statistics:
    """A tensor in numbers; NaN and infinities do not count for them.

    A complex tensor is described by its absolute values.
    """
    plain = widest(tensor)
    plain = plain.abs() if plain.is_complex() else plain
    finite = plain[plain.isfinite()]
    none = float("nan")
    return Statistics(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        minimum=finite.min().item() if finite.numel() else none,
        maximum=finite.max().item() if finite.numel() else none,
        mean=finite.mean().item() if finite.numel() else none,
        std=finite.std(correction=0).item() if finite.numel() else none,
        nans=int(plain.isnan().sum()),
        infs=int(plain.isinf().sum()),
    )
