"""What objects of types in C consist of, where Python or their library says it in another way."""

from __future__ import annotations

import array
import datetime
import decimal
import functools
import operator
import random
import re
import types
import weakref
from collections import namedtuple
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from samba.remembering.code_origins import is_users
from samba.remembering.incomparable import Incomparable

__all__ = ["BY_NAME", "PLAIN", "parts_of"]

PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)),
    *(range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(torch.finfo, torch.iinfo),
)
"""Types whose objects are what their ``repr`` says."""

BY_NAME = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, np.ufunc, type(np.dot), type(np.random.seed)),
)
"""Types whose objects are known by their module and name."""


def parts_of(value: Any) -> tuple[Any, ...] | None:
    """What an object of a type in C consists of.

    Args:
        value: The object.

    Returns:
        Its parts; None if its type has no entry here.

    Raises:
        Incomparable: If its parts are not all that it gives.

    Example:
        >>> parts_of(bytearray(b"ab"))
        (b'ab',)
    """
    parts = _PARTS.get(type(value))
    if parts is not None:
        return (parts(value),)
    # A subclass has attributes beside the parts, which only Python's own types are sure to lack.
    if isinstance(value, np.dtype):
        return (value.str, value.names, value.descr)
    if isinstance(value, types.GenericAlias):
        return value.__origin__, value.__args__
    if isinstance(value, property):
        return (_of_property(value), getattr(value, "__dict__", None))
    if type(type(value)).__name__ == "pybind11_type" and hasattr(value, "__members__"):
        return (int(value),)  # an enumeration in C++
    return None


def _of_property(value: property) -> tuple[Any, ...]:
    return value.fget, value.fset, value.fdel


def _uncached(function: Any) -> Any:
    """The function under ``functools.lru_cache``, which gives what it once computed."""
    if function.cache_info().currsize and is_users(function.__wrapped__):
        raise Incomparable(function.__qualname__, "has results in its cache")
    return function.__wrapped__


def _reduced(value: Any) -> Any:
    """What pickle would keep of an object that never changes."""
    return value.__reduce__()


_PARTS: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {
        types.MethodType: lambda m: (m.__func__, m.__self__),
        functools.partial: lambda p: (p.func, p.args, p.keywords, vars(p)),
        functools.cached_property: lambda p: (p.func, p.attrname),
        type(functools.lru_cache(len)): _uncached,
        staticmethod: lambda m: m.__func__,
        classmethod: lambda m: m.__func__,
        types.SimpleNamespace: vars,
        types.UnionType: lambda u: u.__args__,
        types.CellType: lambda c: c.cell_contents,
        MappingProxyType: dict,
        torch.Size: tuple,
        weakref.ref: lambda r: r(),
        re.Pattern: lambda p: (p.pattern, p.flags),
        bytearray: bytes,
        array.array: lambda a: (a.typecode, a.tobytes()),
        random.Random: lambda r: r.getstate(),
        np.random.RandomState: lambda r: r.get_state(legacy=False),
        np.random.Generator: lambda g: g.bit_generator.state,
    }
    | dict.fromkeys(
        (
            *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
            *(datetime.timezone, decimal.Decimal),
            *(operator.itemgetter, operator.attrgetter, operator.methodcaller),
            type(vars(namedtuple("_Point", "x"))["x"]),
        ),
        _reduced,
    )
)
