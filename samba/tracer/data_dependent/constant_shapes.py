"""Results whose shape depends on values, where these are the same in every run.

A constant mask selects the same places in every run: it becomes the list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from samba.tracer.data_dependent.known_values import KnownValues
from samba.tracer.torch_internals import outside_of_trace, tree_leaves, tree_map

T = torch.Tensor
_MASKS = frozenset({torch.bool, torch.uint8})

_SELECTS = frozenset({torch.masked_select, T.masked_select})
_REPEATS = frozenset({torch.repeat_interleave, T.repeat_interleave})
_LISTS = frozenset(
    {
        *(torch.nonzero, T.nonzero, torch.argwhere, T.argwhere, torch.bincount, T.bincount),
        *(torch.unique, T.unique, torch.unique_consecutive, T.unique_consecutive),
        *_SELECTS,
        *_REPEATS,
    }
)
"""Functions whose result has as many entries as values say."""


def with_constant_shapes(
    func: Callable[..., Any], known: KnownValues, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """What to call in the place of a function, with the same arguments.

    Args:
        func: A function of torch.
        known: The values that are the same in every run.
        args, kwargs: What it is called with.

    Returns:
        The function itself where no shape follows from known values.
    """
    if func is T.__getitem__ or func is T.__setitem__:
        index = _sliced(args[1], known)
        index = _unmasked(index, known, args[2:])
        if index is args[1]:
            return func
        return lambda tensor, _, *rest: func(tensor, index, *rest)
    listing = func in _LISTS or (func is torch.where and len(args) + len(kwargs) == 1)
    if not listing:
        return func
    values = _all_known((args, kwargs), known)
    if values is not None:
        return lambda *_, **__: _constant(func, *values)
    if func in _SELECTS:
        return _selecting(func, known)
    if func in _REPEATS:
        return _repeating(func, known)
    return func


def _all_known(arguments: Any, known: KnownValues) -> tuple[Any, Any] | None:
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, T)]
    values = {id(tensor): known.of(tensor) for tensor in tensors}
    if not tensors or any(value is None for value in values.values()):
        return None
    return tree_map(lambda leaf: values.get(id(leaf), leaf), arguments)


def _constant(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A result that is a constant of the graph; a copy, as ``forward`` may change it."""
    with outside_of_trace():
        result = func(*args, **kwargs)
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, T) else leaf, result)


# -- numbers among sizes --------------------------------------------------------------

_MAKES = frozenset(
    ("zeros", "ones", "empty", "full", "rand", "randn", "eye", "arange", "randint", "randperm")
)
"""Names of functions that take sizes alone."""

_SIZED = frozenset(
    {
        *_MAKES,
        *("pad", "view", "reshape", "expand", "broadcast_to", "repeat", "tile", "unflatten"),
        *("new_zeros", "new_ones", "new_empty", "new_full"),
        *("split", "chunk", "roll", "unfold", "interpolate", "tril", "triu", "topk"),
    }
)
"""Names of functions that take sizes and places: torch reads them out of tensors by itself."""


def with_known_sizes(
    func: Callable[..., Any], known: KnownValues, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with numbers in place of known tensors among sizes.

    Args:
        func: A function of torch.
        known: The values that are the same in every run.
        args, kwargs: What it is called with.
    """
    name = getattr(func, "__name__", "")
    if name not in _SIZED:
        return args, kwargs
    data = 0 if name in _MAKES else 1
    return (*args[:data], *_numbers(args[data:], known)), _numbers(kwargs, known)


def _numbers(given: Any, known: KnownValues) -> Any:
    """Arguments with numbers in place of known whole ones of one element."""
    if type(given) in (tuple, list):
        return type(given)([_numbers(item, known) for item in given])
    if type(given) is dict:
        return {key: _numbers(item, known) for key, item in given.items()}
    if isinstance(given, T) and given.dim() == 0 and given.dtype in _WHOLE:
        value = known.of(given)
        if value is not None:
            with outside_of_trace():
                return int(value)
    return given


_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


def _sliced(index: Any, known: KnownValues) -> Any:
    """An index whose slices have numbers in place of known tensors."""
    if type(index) is tuple:
        sliced = tuple([_sliced(entry, known) for entry in index])
        return index if all(n is o for n, o in zip(sliced, index, strict=True)) else sliced
    if not isinstance(index, slice):
        return index
    given = index.start, index.stop, index.step
    bounds = [_numbers(bound, known) for bound in given]
    return index if all(n is o for n, o in zip(bounds, given, strict=True)) else slice(*bounds)


# -- masks among indices ------------------------------------------------------------


def _unmasked(index: Any, known: KnownValues, values: tuple[Any, ...]) -> Any:
    """An index with lists of places instead of constant masks; itself if there are none."""
    entries = index if isinstance(index, tuple) else (index,)
    if not any(_is_mask(entry) for entry in entries):
        return index
    if values and _is_single(values[0]):
        return index  # a mask that is filled with one number has no shape that depends on it
    entries_now: list[Any] = []
    any_known = False
    for entry in entries:
        mask = _mask(entry, known) if _is_mask(entry) else None
        if mask is None:
            entries_now.append(entry)
        else:
            any_known = True
            with outside_of_trace():
                entries_now += mask.nonzero(as_tuple=True)
    return tuple(entries_now) if any_known else index


def _is_mask(entry: Any) -> bool:
    if isinstance(entry, T):
        return entry.dtype in _MASKS and entry.dim() > 0
    if isinstance(entry, np.ndarray):
        return entry.dtype == np.bool_ and entry.ndim > 0
    return isinstance(entry, list) and bool(entry) and all(type(item) is bool for item in entry)


def _mask(entry: Any, known: KnownValues) -> T | None:
    if isinstance(entry, T):
        return known.of(entry)
    with outside_of_trace():
        return torch.as_tensor(entry)


def _is_single(value: Any) -> bool:
    return not isinstance(value, (T, np.ndarray, list, tuple)) or (
        isinstance(value, T) and value.numel() == 1
    )


# -- masks and counts beside data ---------------------------------------------------


SELECTED = "selected_by_mask"
"""Attribute of a selection by a mask: the tensor and the mask."""


def _selecting(func: Callable[..., Any], known: KnownValues) -> Callable[..., Any]:
    def select(input: T, mask: T, *, out: T | None = None) -> T:
        value = known.of(mask) if out is None else None
        if value is None:
            selection = func(input, mask) if out is None else func(input, mask, out=out)
            setattr(selection, SELECTED, (input, mask))
            return selection
        shape = torch.broadcast_shapes(input.shape, value.shape)
        with outside_of_trace():
            places = value.expand(shape).nonzero(as_tuple=True)
        return input.expand(shape)[places]

    return select


def _repeating(func: Callable[..., Any], known: KnownValues) -> Callable[..., Any]:
    def repeat(input: T, repeats: Any = None, dim: int | None = None, **kwargs: Any) -> T:
        value = known.of(repeats) if isinstance(repeats, T) else None
        if value is None:
            given = () if repeats is None else (repeats,)
            return func(input, *given, **({} if dim is None else {"dim": dim}), **kwargs)
        rows = input.flatten() if dim is None else input
        with outside_of_trace():
            counts = value.expand(rows.shape[dim or 0]) if value.numel() == 1 else value
            places = torch.arange(rows.shape[dim or 0]).repeat_interleave(counts)
        return rows.index_select(dim or 0, places)

    return repeat
