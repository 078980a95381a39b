"""Values of another type than device memory has: cast, which is told, or refused."""

from __future__ import annotations

import numpy as np
import torch

from emulator.errors import RegionMismatch
from pef_schema.program import Region
from samba.support.deviations import Deviations
from samba.tracer.traced import FROM_DTYPE

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types of which torch has no smallest and largest number."""


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as users write it, without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def cast_input(
    tensor: torch.Tensor, wanted: torch.dtype, *, name: str, deviations: Deviations
) -> torch.Tensor:
    """A tensor that a run is given in the type of its input, where that is of the same kind.

    Args:
        tensor: The tensor, which has values.
        wanted: The type.
        name: Name of the input.
        deviations: What has been told.

    Raises:
        RegionMismatch: One is a floating type and the other is not, or a number is out of range.
    """
    if _kind(tensor.dtype) != _kind(wanted):
        raise _other_kind(tensor, wanted, name)
    return _cast(tensor, wanted, name, f"input {name}", deviations)


def fitting(
    tensor: torch.Tensor, region: Region, *, name: str, deviations: Deviations
) -> torch.Tensor:
    """A tensor that a script copies to the device in the type of a region, of whatever kind.

    One of another shape is returned as it is: it is refused with its shape.

    Args:
        tensor: The tensor, which has values.
        region: Where it goes.
        name: Name of the place.
        deviations: What has been told.

    Raises:
        RegionMismatch: The type cannot hold a number: it is not a whole number, is out of range, or
            is complex.
    """
    dtype = FROM_DTYPE[region.dtype]
    if tensor.dtype is dtype or tuple(tensor.shape) != tuple(region.shape):
        return tensor
    if tensor.dtype.is_complex and not dtype.is_complex:
        raise _other_kind(tensor, dtype, name)
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    if is_whole and tensor.dtype.is_floating_point and not bool((tensor.double() % 1 == 0).all()):
        raise RegionMismatch(
            name=name,
            found=f"{dtype_name(tensor.dtype)} numbers that are not whole",
            wanted=dtype_name(dtype),
            hint=f"round them, and pass them as .to(torch.{dtype_name(dtype)}).",
        )
    return _cast(tensor, dtype, name, f"tensor {name}", deviations)


def _cast(
    tensor: torch.Tensor, dtype: torch.dtype, name: str, what: str, deviations: Deviations
) -> torch.Tensor:
    """A tensor in another type, which is told; refused where it does not have a number."""
    if not (dtype.is_floating_point or dtype.is_complex):
        _check_range(tensor, dtype, name)
    form = dtype_name(dtype)
    deviations.tell(
        "cast-input",
        f"{what}: a tensor of {dtype_name(tensor.dtype)} is cast to {form}, for which the program "
        f"was compiled; pass it as .to(torch.{form}) to avoid this",
    )
    return tensor.to(dtype)


def _check_range(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """Refuse numbers that a whole type does not have."""
    if not tensor.numel() or tensor.dtype is torch.bool:
        return
    least, most = _extent(tensor)
    limits = (0, 1) if dtype is torch.bool else _limits(dtype)
    if not limits[0] <= least <= most <= limits[1]:
        raise RegionMismatch(
            name=name,
            found=f"{dtype_name(tensor.dtype)} numbers from {least} to {most}",
            wanted=f"{dtype_name(dtype)}, {limits[0]} to {limits[1]}",
            hint="compile again with an input of the larger dtype.",
        )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.dtype in _UNSIGNED:
        array = tensor.detach().contiguous().numpy()
        return int(np.min(array)), int(np.max(array))
    return int(tensor.min()), int(tensor.max())


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def _other_kind(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> RegionMismatch:
    form = dtype_name(dtype)
    return RegionMismatch(
        name=name,
        found=dtype_name(tensor.dtype),
        wanted=form,
        hint=f"pass it as .to(torch.{form}), or compile again for the new dtype.",
    )


def _kind(dtype: torch.dtype) -> str:
    """Dtypes of one kind are cast into each other."""
    if dtype.is_floating_point:
        return "floating"
    if dtype.is_complex:
        return "complex"
    return "other" if dtype is torch.bool else "whole"
