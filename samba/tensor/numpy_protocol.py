"""NumPy functions on SambaTensors.

Where torch has the same function, torch computes it, so that bfloat16 and autograd work as
everywhere else. All others run in NumPy on the values. Arrays and numbers among the results
become SambaTensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samba.support.nesting import flat, mapped

_SAME_NAME = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_not
    bitwise_or bitwise_xor ceil cos cosh deg2rad divide equal exp exp2 expm1 float_power floor
    floor_divide fmax fmin fmod greater greater_equal hypot isfinite isinf isnan less less_equal
    log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor matmul
    maximum minimum multiply negative nextafter not_equal positive rad2deg remainder sign signbit
    sin sinh sqrt square subtract tan tanh trunc
"""
_UFUNCS: dict[np.ufunc, Callable[..., torch.Tensor]] = {
    getattr(np, name): getattr(torch, name) for name in _SAME_NAME.split()
}
_UFUNCS[np.power] = torch.pow

_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.concatenate: lambda arrays, axis=0: torch.cat(tuple(arrays), dim=axis),
    np.mean: lambda a, axis=None, keepdims=False: torch.mean(a, dim=axis, keepdim=keepdims),
    np.reshape: lambda a, shape: torch.reshape(a, shape),
    np.squeeze: lambda a, axis=None: torch.squeeze(a, **({} if axis is None else {"dim": axis})),
    np.stack: lambda arrays, axis=0: torch.stack(tuple(arrays), dim=axis),
    np.sum: lambda a, axis=None, keepdims=False: torch.sum(a, dim=axis, keepdim=keepdims),
    np.where: lambda condition, x, y: torch.where(condition, x, y),
}
"""Functions for which torch is asked first; these have no more parameters than torch knows."""


def array_ufunc(cls: type, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Runs a NumPy ufunc on operands among which are SambaTensors.

    Args:
        cls: The SambaTensor class.
        ufunc: The ufunc.
        method: What of it was called: ``__call__``, ``reduce``, ...
        inputs: Its operands.
        kwargs: Its keywords.

    Returns:
        SambaTensors where NumPy would give arrays; the arrays given as ``out``.
    """
    function = _UFUNCS.get(ufunc) if method == "__call__" and not kwargs else None
    if function is None or not all(map(_torch_can, inputs)):
        return _in_numpy(cls, getattr(ufunc, method), inputs, kwargs)
    first = next(item for item in inputs if isinstance(item, cls))
    return function(*(_operand(item, first) for item in inputs))


def array_function(
    cls: type, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs a NumPy function on arguments among which are SambaTensors.

    Args:
        cls: The SambaTensor class.
        func: The function.
        args: Its arguments.
        kwargs: Its keywords.

    Returns:
        What it returns, with SambaTensors for new arrays.
    """
    function = _FUNCTIONS.get(func)
    if function is not None and all(map(_torch_takes, flat((args, kwargs)))):
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError:  # a parameter that only NumPy has
            return _in_numpy(cls, func, args, kwargs)
        return function(*bound.args, **bound.kwargs)
    return _in_numpy(cls, func, args, kwargs)


def _torch_can(item: Any) -> bool:
    if isinstance(item, np.ndarray):
        return item.dtype.kind in "biuf" and item.dtype.itemsize <= 8
    return isinstance(item, (torch.Tensor, bool, int, float, np.bool_, np.integer, np.floating))


def _torch_takes(item: Any) -> bool:
    """Whether the functions above take an argument: NumPy adds whole numbers in int64."""
    if isinstance(item, torch.Tensor):
        return item.is_floating_point() or item.dtype is torch.bool
    return item is None or isinstance(item, (bool, int, float))


def _operand(item: Any, like: torch.Tensor) -> Any:
    if isinstance(item, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(item))
    if isinstance(item, torch.Tensor):
        return item
    # Torch functions that take no numbers are given one that decides no type.
    number = item.item() if isinstance(item, np.generic) else item
    return torch.tensor(number, device=like.device)


def _in_numpy(
    cls: type, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    arrays = [out for out in flat((args, kwargs)) if isinstance(out, np.ndarray)]
    args, kwargs = mapped((args, kwargs), lambda v: v.numpy() if isinstance(v, cls) else v)
    result = func(*args, **kwargs)
    return _wrap(cls, result, arrays)


def _wrap(cls: type, value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        known = any(value is item for item in arrays)
        if known or value.dtype.kind not in "biufc" or value.dtype.itemsize > 16:
            return value  # the caller's own, or text and objects, which torch does not hold
        return cls(torch.from_numpy(np.array(value)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_wrap(cls, item, arrays) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_wrap(cls, item, arrays) for item in value)
    return value
