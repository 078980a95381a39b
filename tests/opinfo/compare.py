"""How closely the device must follow torch, and what is said when it does not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samba.comparison.sides import Tol, tolerance
from samba.tracer.traced import carries_gradient

SLACK = {
    torch.float32: 1e-4,
    torch.bfloat16: 3e-2,
    torch.float64: 1e-12,
    torch.complex64: 1e-4,
    torch.complex128: 1e-12,
}
"""How much of eager torch's own rounding counts, as a part of the largest entry."""


def difference(
    got: torch.Tensor, want: torch.Tensor, tol: Tol | None, exact: torch.Tensor | None = None
) -> str:
    """What is wrong with a result; empty if it is right.

    Args:
        got: From the device.
        want: From torch.
        tol: Largest distance, the dtype's own if None. NaN equals NaN; strides do not count.
        exact: The same in float64. An element is right, too, if it is as close to this as eager
            torch's own rounding is anywhere in the tensor, plus the tolerance.

    Returns:
        One line: dtype, shape, or how far off the values are.
    """
    if got.dtype != want.dtype:
        return f"dtype {got.dtype} instead of {want.dtype}"
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    if want.numel() == 0:
        return ""
    tol = tol or tolerance(want.dtype)
    right = _close(got, want, tol)
    if exact is not None and carries_gradient(want):
        right |= _close(got, exact.to(want.dtype), tol, _own_error(want, exact))
    if bool(right.all()):
        return ""
    distance = _distance(got, want).nan_to_num(nan=torch.inf)
    worst = int(torch.where(right, -1.0, distance).argmax())
    a, b = got.reshape(-1)[worst].item(), want.reshape(-1)[worst].item()
    return f"{int((~right).sum())} of {want.numel()} wrong; worst {a!r} instead of {b!r}"


def _distance(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if got.is_complex() else torch.float64
    return (got.to(wide) - want.to(wide)).abs()


def _own_error(want: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest rounding error of eager torch in a tensor."""
    finite = want.isfinite() & exact.isfinite()
    if not bool(finite.any()):
        return 0.0
    error = _distance(want, exact)[finite].max().item()
    return min(error, SLACK.get(want.dtype, 0.0) * exact[finite].abs().max().item())


def _close(got: torch.Tensor, want: torch.Tensor, tol: Tol, more: float = 0.0) -> torch.Tensor:
    equal = got == want
    if not carries_gradient(want):
        return equal
    size = want.to(torch.complex128 if want.is_complex() else torch.float64).abs()
    near = (_distance(got, want) <= tol.atol + tol.rtol * size + more) & want.isfinite()
    return near | equal | (got.isnan() & want.isnan())


def differences(
    got: Sequence[torch.Tensor | None],
    want: Sequence[torch.Tensor | None],
    tol: Tol | None,
    what: str,
    exact: Sequence[torch.Tensor | None] | None = None,
) -> str:
    """The first difference among several results; None stands for an absent one.

    Args:
        got, want, exact: From the device, from torch, from torch in float64.
        tol: Largest distance, the dtype's own if None.
        what: What they are called in the text.
    """
    if len(got) != len(want):
        return f"{len(got)} {what}(s) instead of {len(want)}"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a is None or b is None:
            continue
        text = difference(a, b, tol, None if exact is None else exact[i])
        if text:
            return f"{what} {i}: {text}"
    return ""
