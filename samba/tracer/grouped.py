"""Grouped products of types that torch's kernel takes on a CPU, and its exporter does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

_TYPES = (torch.float32, torch.float16)
"""Types that only the kernel takes. bfloat16 is taken by both."""

_ALIGNED = 16
"""Bytes of which the stride of a row has to be a multiple."""


@cache
def _operation() -> Callable[..., torch.Tensor]:
    """``samba::grouped_mm``.

    Made when it is first needed, since importing must leave torch as it is.
    """

    def grouped_mm(
        mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None
    ) -> torch.Tensor:
        return F.grouped_mm(mat_a, mat_b, offs=offs)

    operation = torch.library.custom_op("samba::grouped_mm", grouped_mm, mutates_args=())
    operation.register_fake(_result)
    return operation


def _result(mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    groups = () if offs is None else (offs.shape[0],)
    if mat_a.dim() == mat_b.dim():
        return mat_a.new_empty(*(groups or mat_a.shape[:-2]), mat_a.shape[-2], mat_b.shape[-1])
    return mat_a.new_empty(mat_a.shape[-2], mat_b.shape[-1])


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm``, also of float32 and float16.

    Args:
        mat_a: (rows, in), or (groups, rows, in).
        mat_b: (in, columns), or (groups, in, columns).
        offs: int32 (groups,): where each group ends along an axis that both are cut along.
        bias, out_dtype: As torch takes them.

    Returns:
        (rows, columns), with a group's axis before them where torch has one.

    Raises:
        RuntimeError: Where torch raises it: if sizes do not fit, or strides are not aligned.
    """
    if mat_a.dtype not in _TYPES or mat_b.dtype != mat_a.dtype or bias is not None:
        return F.grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)
    if out_dtype not in (None, mat_a.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    _check(mat_a, mat_b, offs)
    return _operation()(mat_a, mat_b, offs)


def _check(mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor | None) -> None:
    """Raise what torch's kernel raises of shapes, strides and the type of offsets."""
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        if matrix.dim() not in (2, 3):
            raise RuntimeError(f"{name} has to be 2 or 3d")
    flat = [matrix for matrix in (mat_a, mat_b) if matrix.dim() == 2]
    if (offs is None) == bool(flat):
        raise RuntimeError(
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        )
    if offs is not None and offs.dtype != torch.int32:
        raise RuntimeError("Offsets have to be int32")
    if len(flat) < 2 and mat_a.shape[-1] != mat_b.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    groups = [matrix.shape[0] for matrix in (mat_a, mat_b) if matrix.dim() == 3]
    if offs is not None and any(count != offs.shape[0] for count in groups):
        raise RuntimeError("matrix batch sizes have to match")
    if not flat and mat_a.shape[0] != mat_b.shape[0]:
        raise RuntimeError("batched dimension has to match")
    for matrix in (mat_a, mat_b):
        _check_strides(matrix)


def _check_strides(matrix: torch.Tensor) -> None:
    for inner, outer in ((-2, -1), (-1, -2)):
        stride = matrix.stride(outer)
        if matrix.stride(inner) == 1 and stride >= max(1, matrix.shape[inner]):
            if stride * matrix.element_size() % _ALIGNED:
                raise RuntimeError("strides should be multiple of 16 bytes")
            return
    strides, sizes = [*matrix.stride()], [*matrix.shape]
    raise RuntimeError(f"Invalid strides/sizes, got {strides} for strides and {sizes} for sizes")
