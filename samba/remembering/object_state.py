"""What a Python object holds, as far as Python knows: attributes, slots and a built-in value."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

__all__ = ["attributes_of", "built_in_base", "holds_no_more"]

_BASES: tuple[Any, ...] = (
    *(OrderedDict, defaultdict, dict, list, tuple, deque, set, frozenset),
    *(int, float, complex, str, bytes),
)


def built_in_base(kind: type) -> Any:
    """The built-in class of values that a class is one of; ``object`` if it is none.

    Example:
        >>> built_in_base(OrderedDict).__name__
        'OrderedDict'
    """
    return next((base for base in _BASES if issubclass(kind, base)), object)


@functools.cache
def holds_no_more(kind: type, base: type) -> bool:
    """Whether objects of a class hold what their base, dict and slots say, and nothing in C.

    Args:
        kind: The class.
        base: What :func:`built_in_base` gives for it.

    Example:
        >>> import itertools
        >>> holds_no_more(BaseException, object), holds_no_more(itertools.count, object)
        (False, False)
    """
    slots = sum(len(_slots(of)) for of in kind.__mro__)
    names = tuple(f"s{i}" for i in range(slots))
    if base.__itemsize__ == 0:
        names += ("__dict__", "__weakref__") if base.__dictoffset__ == 0 else ()
    try:
        most = type("most", (base,), {"__slots__": names}).__basicsize__
    except TypeError:  # one of a variable length has no slots
        most = base.__basicsize__ + 16 + 8 * slots
    if kind is base:
        return True
    return kind.__basicsize__ <= most and all(
        of.__flags__ & 1 << 9 or of in base.__mro__ for of in kind.__mro__
    )


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    listed = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in listed if name not in ("__dict__", "__weakref__"))


def attributes_of(value: Any, kind: type) -> list[tuple[str, Any]]:
    """What an object holds in its dict and in its slots, by Python's own descriptors.

    Args:
        value: The object.
        kind: Its class.

    Returns:
        Names and values; no code of the class runs.

    Example:
        >>> attributes_of(Ellipsis, type(Ellipsis))
        []
    """
    found: list[tuple[str, Any]] = []
    for of in kind.__mro__:
        members = vars(of)
        for name in ("__dict__", *_slots(of)):
            mangled = name
            if name.startswith("__") and not name.endswith("__"):
                mangled = f"_{of.__name__.lstrip('_')}{name}"
            member = members.get(mangled)
            if not isinstance(member, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                continue
            try:
                held = member.__get__(value, kind)
            except AttributeError:  # a slot that is empty
                continue
            found += held.items() if name == "__dict__" else [(mangled, held)]
    return found
