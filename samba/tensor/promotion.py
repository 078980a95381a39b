"""Mixed dtypes that torch refuses and SambaFlow takes: a bfloat16 input, say, and float32 weights.

Eager calls with SambaTensors are promoted so, and what is traced is too: one model gives the same
both ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from samba.support.nesting import flat, mapped

_UNCHECKED = frozenset(
    {
        F.linear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
    }
)
"""Functions that refuse integers beside floats, but not for the exporter's fake tensors."""

_MIXED_FLOATS = _UNCHECKED | frozenset(
    {
        F.bilinear,
        F.layer_norm,
        F.group_norm,
        F.scaled_dot_product_attention,
        torch.addmm,
        torch.addbmm,
        torch.addmv,
        torch.baddbmm,
        torch.bmm,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.dot,
        torch.einsum,
        torch.lstm,
        torch.gru,
        torch.matmul,
        torch.mm,
        torch.mv,
        torch.Tensor.addmm,
        torch.Tensor.baddbmm,
        torch.Tensor.bmm,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.Tensor.__rmatmul__,
        torch.Tensor.mm,
        torch.Tensor.mv,
    }
)
"""Functions that eager torch refuses for mixed floating dtypes and that promote here."""

_LONG_ONLY = {F.one_hot: 0, F.multi_margin_loss: 1}
"""Functions whose labels are int64, except for the exporter's fake tensors: which argument."""

_REFUSED_TOO = frozenset(
    {
        F.batch_norm,
        torch.gru_cell,
        torch.lstm_cell,
        torch.rnn_relu_cell,
        torch.rnn_tanh_cell,
    }
)
"""Functions that eager torch refuses for mixed floating dtypes and that are traced as they are."""

_NOT_CAST = _REFUSED_TOO | {
    *(F.bilinear, F.layer_norm, F.group_norm, torch.addmv, torch.dot, torch.mv, torch.Tensor.mv)
}
"""Functions whose arguments ``torch.autocast`` leaves as they are, as it leaves all of float64."""

_NORMS = frozenset({F.batch_norm, F.group_norm, F.layer_norm})
_HALVES = frozenset({torch.bfloat16, torch.float16})
"""Types that a norm takes beside parameters of float32: it computes in float32 and rounds."""

_LABELS = {F.cross_entropy: 1, F.nll_loss: 1}
_INDICES = {F.embedding: 0}
_NARROW = (torch.int8, torch.uint8, torch.int16)


def promoted(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a torch function in types that it takes together.

    Args:
        func: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        Both, cast where eager torch refuses the mixture, else the same objects.
    """
    if func in _MIXED_FLOATS:
        dtypes = mixed_floats(func, args, kwargs)
        if dtypes:
            common = functools.reduce(torch.promote_types, dtypes)
            args, kwargs = mapped((args, kwargs), lambda value: _cast(value, common))
    elif func in _LABELS and len(args) > _LABELS[func]:
        labels = args[1]
        if labels.dtype in (*_NARROW, torch.int32) and not labels.is_floating_point():
            labels = _widen_labels(labels, kwargs.get("ignore_index", -100))
            args = (args[0], labels, *args[2:])
    elif func in _INDICES and args and args[0].dtype in _NARROW:
        args = (args[0].to(torch.int32), *args[1:])
    return args, kwargs


def integers_among_floats(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> frozenset[torch.dtype]:
    """Dtypes of a product's operands, where eager torch refuses integers beside floats.

    Args:
        func: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        All dtypes; none where torch takes the arguments.

    Example:
        >>> types = integers_among_floats(F.linear, (torch.ones(2, 2).long(), torch.ones(2, 2)), {})
        >>> sorted(map(str, types))
        ['torch.float32', 'torch.int64']
    """
    if func in _LONG_ONLY and len(args) > _LONG_ONLY[func]:
        labels = args[_LONG_ONLY[func]].dtype
        return frozenset() if labels is torch.int64 else frozenset({labels})
    if func not in _UNCHECKED:
        return frozenset()
    dtypes = frozenset(_dtypes((args, kwargs)))
    return dtypes if len({dtype.is_floating_point for dtype in dtypes}) > 1 else frozenset()


_IN_PLACE = frozenset(
    {
        *(torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.mul_, torch.Tensor.pow_),
        *(torch.Tensor.__iadd__, torch.Tensor.__isub__, torch.Tensor.__imul__),
        *(torch.Tensor.fmod_, torch.Tensor.remainder_, torch.Tensor.__ipow__),
    }
)


def lost_in_place(func: Callable[..., Any], args: tuple[Any, ...]) -> torch.dtype | None:
    """The type of an in-place operation's result that its tensor cannot hold: eager torch refuses.

    Args:
        func: The function.
        args: Its positional arguments.

    Returns:
        The type; None where torch takes them.

    Example:
        >>> lost_in_place(torch.Tensor.mul_, (torch.ones(2).long(), 0.5))
        torch.float32
    """
    if func not in _IN_PLACE or len(args) < 2 or not isinstance(args[0], torch.Tensor):
        return None
    if not isinstance(args[1], (torch.Tensor, int, float, complex)):
        return None
    dtype = torch.result_type(args[0], args[1])
    return None if torch.can_cast(dtype, args[0].dtype) else dtype


def mixed_floats(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> frozenset[torch.dtype]:
    """Floating dtypes of a function's arguments, where eager torch refuses that they differ.

    Args:
        func: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        Two or more; none where torch takes the arguments as they are.

    Example:
        >>> narrow, wide = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
        >>> sorted(map(str, mixed_floats(torch.mm, (narrow, wide), {})))
        ['torch.float32', 'torch.float64']
        >>> mixed_floats(torch.add, (narrow, wide), {})
        frozenset()
    """
    dtypes = frozenset[torch.dtype]()
    if func in _MIXED_FLOATS or func in _REFUSED_TOO:
        dtypes = frozenset(d for d in _dtypes((args, kwargs)) if d.is_floating_point)
    if len(dtypes) < 2 or (func in _NORMS and _taken_by_norm(args, kwargs)):
        return frozenset()
    is_cast = torch.is_autocast_enabled("cpu") and func not in _NOT_CAST
    return frozenset() if is_cast and torch.float64 not in dtypes else dtypes


def _taken_by_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a norm of half precision has parameters of float32, which torch takes."""
    inputs = [args[0] if args else kwargs.get("input")]
    parameters = set(_dtypes((args[1:], {k: v for k, v in kwargs.items() if k != "input"})))
    return _HALVES.issuperset(_dtypes(inputs)) and parameters == {torch.float32}


def widened(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.dtype | None:
    """The type of labels or indices that eager torch refuses and that are read as wider ones.

    Args:
        func: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        The type; None where torch takes them.

    Example:
        >>> widened(F.nll_loss, (torch.ones(2, 2), torch.ones(2).int()), {})
        torch.int32
    """
    new, _ = promoted(func, args, kwargs) if func in _LABELS or func in _INDICES else (args, kwargs)
    if new is args:
        return None
    place = _LABELS.get(func, 0)
    bytes_ = func in _LABELS and args[place].dtype is torch.uint8 and args[place].dim() < 2
    return None if bytes_ else args[place].dtype


def _dtypes(tree: Any) -> list[torch.dtype]:
    return [value.dtype for value in flat(tree) if isinstance(value, torch.Tensor)]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def _widen_labels(labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Narrow class labels as int64; negative int16 ones are an unsigned range's upper half."""
    wide = labels.to(torch.int64)
    if labels.dtype != torch.int16:
        return wide
    wrapped = (wide < 0) & (wide != ignore_index)
    return torch.where(wrapped, wide + 65536, wide)
