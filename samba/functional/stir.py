"""Parallel patterns, and the operations that may stand in their functions.

They are compositions of torch functions: they run eagerly, are traced inside ``forward``, and
gradients flow through them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from samba.errors import ArgumentError, described
from samba.functional._windows import sn_gather, sn_scatter
from samba.support.given import callable_of, whole_of

__all__ = [
    "SNType",
    "sn_fma",
    "sn_gather",
    "sn_imm",
    "sn_iteridx",
    "sn_multinomial",
    "sn_reduce",
    "sn_scatter",
    "sn_select",
    "sn_zipmapreduce",
]

_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ADD": torch.sum,
    "SUM": torch.sum,
    "MEAN": torch.mean,
    "MAX": torch.amax,
    "MIN": torch.amin,
}
_LOW = (torch.bfloat16, torch.float16)


class SNType(enum.Enum):
    """A number type of the hardware."""

    BOOL = "bool"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @staticmethod
    def to_torch_reference_type(sn_type: SNType) -> torch.dtype:
        """The torch dtype that holds every value of a hardware type.

        Args:
            sn_type: The type.

        Returns:
            A dtype that torch computes with; UINT16 becomes int32, as torch has few operations
            on unsigned numbers.

        Example:
            >>> SNType.to_torch_reference_type(SNType.UINT16)
            torch.int32
        """
        return _TORCH[sn_type]


_TORCH = {
    SNType.BOOL: torch.bool,
    SNType.INT8: torch.int8,
    SNType.UINT8: torch.uint8,
    SNType.INT16: torch.int16,
    SNType.UINT16: torch.int32,
    SNType.INT32: torch.int32,
    SNType.INT64: torch.int64,
    SNType.BF16: torch.bfloat16,
    SNType.FP16: torch.float16,
    SNType.FP32: torch.float32,
}


def _torch_type(dtype: torch.dtype | SNType | None, default: torch.dtype) -> torch.dtype:
    """A torch dtype for either kind of type; ``default`` for None."""
    if dtype is None:
        return default
    return SNType.to_torch_reference_type(dtype) if isinstance(dtype, SNType) else dtype


def sn_zipmapreduce(
    func: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    reduce_func: str | None = None,
    reduce_dim: int | Sequence[int] | None = None,
    stoc_accum: bool = False,
) -> Any:
    """Broadcasts tensors together, applies a function to their elements, and reduces.

    Args:
        func: Called with an object for :func:`sn_iteridx` and one element of each input. It is
            called once, with whole tensors of equal rank, so it may use operators, torch's
            pointwise functions and the operations of this module.
        inputs: Tensors whose shapes broadcast.
        reduce_func: ``"ADD"`` (or ``"SUM"``), ``"MEAN"``, ``"MAX"`` or ``"MIN"``; None for no
            reduction.
        reduce_dim: Dimensions of the broadcast shape to reduce; they stay, with size 1.
        stoc_accum: Accepted; sums are as accurate as torch's and never round at random.

    Returns:
        What ``func`` gives, broadcast and reduced: a tensor, or a tuple of them.

    Raises:
        ArgumentError: An argument does not fit.
        RuntimeError: Shapes do not broadcast.

    Example:
        >>> a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0, 5.0]])
        >>> sn_zipmapreduce(lambda attrs, x, y: x * y, [a, b], reduce_func="ADD", reduce_dim=1)
        tensor([[12.],
                [24.]])
    """
    where = "sn_zipmapreduce"
    callable_of(func, f"{where}(func)")
    listed = isinstance(inputs, (list, tuple)) and bool(inputs)
    if not listed or not all(isinstance(t, torch.Tensor) for t in inputs):
        raise ArgumentError(
            where=f"{where}(inputs)",
            found=described(inputs),
            wanted="tensors, 1 or more, in a list",
        )
    shape = torch.broadcast_shapes(*(t.shape for t in inputs))
    dims = _reduced(where, reduce_func, reduce_dim, len(shape))
    elements = [t.reshape([1] * (len(shape) - t.dim()) + list(t.shape)) for t in inputs]
    result = func({"shape": shape, "device": inputs[0].device}, *elements)
    results = result if isinstance(result, tuple) else (result,)
    reduced = []
    for item in results:
        if not isinstance(item, torch.Tensor):
            raise ArgumentError(
                where=f"{where}(func)",
                found=f"a result of type {type(item).__name__}",
                wanted="a tensor, or a tuple of tensors",
                hint="Constants are made with sn_imm(value, dtype).",
            )
        whole = item.expand(shape)
        reduced.append(
            whole if reduce_func is None else _REDUCTIONS[reduce_func](whole, dims, keepdim=True)
        )
    return tuple(reduced) if isinstance(result, tuple) else reduced[0]


def sn_reduce(
    input: torch.Tensor,
    reduce_func: str,
    reduce_dim: int | Sequence[int],
    stoc_accum: bool = False,
) -> torch.Tensor:
    """Reduces dimensions of a tensor: :func:`sn_zipmapreduce` without a map.

    Args:
        input: The tensor.
        reduce_func: ``"ADD"`` (or ``"SUM"``), ``"MEAN"``, ``"MAX"`` or ``"MIN"``.
        reduce_dim: Dimensions to reduce; they stay, with size 1.
        stoc_accum: Accepted, as there.

    Raises:
        ArgumentError: An argument does not fit.

    Example:
        >>> sn_reduce(torch.tensor([[1, 5, 2]]), "MAX", 1)
        tensor([[5]])
    """
    dims = _reduced("sn_reduce", reduce_func, reduce_dim, input.dim())
    return _REDUCTIONS[reduce_func](input, dims, keepdim=True)


def _reduced(
    where: str, name: str | None, dims: int | Sequence[int] | None, rank: int
) -> list[int]:
    if name is None and dims is None:
        return []
    if name not in _REDUCTIONS:
        raise ArgumentError(
            where=f"{where}(reduce_func)",
            found=repr(name),
            wanted=f"one of {', '.join(_REDUCTIONS)}",
        )
    several = isinstance(dims, Iterable)
    axes = [] if dims is None else list(dims) if several else [dims]
    axes = [whole_of(d, f"{where}(reduce_dim)") for d in axes]
    if not axes or any(not -rank <= d < rank for d in axes):
        raise ArgumentError(
            where=f"{where}(reduce_dim)",
            found=str(dims),
            wanted=f"one or more dimensions from 0 to {rank - 1}",
        )
    return axes


def sn_fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Computes ``a * b + c``; half types are rounded once, at the end.

    Example:
        >>> sn_fma(torch.tensor(2.0), torch.tensor(3.0), torch.tensor(1.0)).item()
        7.0
    """
    result = a * b + c
    if result.dtype in _LOW:
        return (_wide(a) * _wide(b) + _wide(c)).to(result.dtype)
    return result


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if isinstance(x, torch.Tensor) else x


def sn_imm(input: float | int | bool, dtype: torch.dtype | SNType) -> torch.Tensor:
    """A constant.

    Args:
        input: Its value.
        dtype: Its type.

    Returns:
        A tensor without dimensions.

    Example:
        >>> sn_imm(3, SNType.INT32)
        tensor(3, dtype=torch.int32)
    """
    return torch.full((), input, dtype=_torch_type(dtype, torch.float32))


def sn_iteridx(
    attrs: Mapping[str, Any], dim: int, dtype: torch.dtype | SNType | None = None
) -> torch.Tensor:
    """The place of an element along a dimension, inside a function of :func:`sn_zipmapreduce`.

    Args:
        attrs: What the function got as its first argument.
        dim: Dimension of the broadcast shape.
        dtype: Type of the result, int32 if None.

    Returns:
        0 to size - 1 along ``dim``; it broadcasts with the other elements.

    Raises:
        ArgumentError: There is no such dimension.

    Example:
        >>> rows = torch.zeros(3, 2)
        >>> sn_zipmapreduce(lambda attrs, x: sn_iteridx(attrs, 1), [rows])[0]
        tensor([0, 1], dtype=torch.int32)
    """
    shape = attrs["shape"]
    if not -len(shape) <= dim < len(shape):
        raise ArgumentError(
            where="sn_iteridx(dim)", found=str(dim), wanted=f"0 to {len(shape) - 1}"
        )
    places = torch.arange(shape[dim], dtype=_torch_type(dtype, torch.int32), device=attrs["device"])
    return places.view([-1 if i == dim % len(shape) else 1 for i in range(len(shape))])


def sn_select(
    cond: torch.Tensor, true_val: torch.Tensor | float, false_val: torch.Tensor | float
) -> torch.Tensor:
    """Takes elements of ``true_val`` where ``cond`` holds, of ``false_val`` elsewhere.

    Example:
        >>> sn_select(torch.tensor([True, False]), torch.tensor(1), torch.tensor(2))
        tensor([1, 2])
    """
    return torch.where(cond, true_val, false_val)


def sn_multinomial(probs: torch.Tensor, randoms: torch.Tensor) -> torch.Tensor:
    """Draws an index from each row of weights, with random numbers that are given.

    The index is the first at which the running sum of the weights passes the random number's
    share of their total.

    Args:
        probs: Weights of shape [n, V], not negative.
        randoms: Uniform numbers in [0, 1) of shape [n, 1].

    Returns:
        Indices of shape [n, 1], int64.

    Raises:
        ArgumentError: Shapes do not fit.

    Example:
        >>> weights = torch.tensor([[0.1, 0.0, 0.9]]).expand(3, 3)
        >>> sn_multinomial(weights, torch.tensor([[0.05], [0.1], [0.99]])).flatten()
        tensor([0, 2, 2])
    """
    if probs.dim() != 2 or tuple(randoms.shape) != (probs.shape[0], 1):
        raise ArgumentError(
            where="sn_multinomial(probs, randoms)",
            found=f"shapes {list(probs.shape)} and {list(randoms.shape)}",
            wanted="[n, V] and [n, 1]",
        )
    sums = probs.float().cumsum(1)
    passed = (sums <= randoms.float() * sums[:, -1:]).sum(1, keepdim=True)
    return passed.clamp(max=probs.shape[1] - 1)
