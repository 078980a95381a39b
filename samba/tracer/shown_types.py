"""``type(x)`` and ``x.__class__`` in ``forward`` are those of the tensors that torch would see.

The exporter calls ``forward`` with tensors of a class of its own. Nothing tells it of a call of
``type``; so while a model is traced, the user's modules find another function of this name.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch

from samba.tracer.names import is_script_file, is_user_file
from samba.tracer.torch_internals import FakeTensor

_OWN = frozenset({"samba", "sambaflow", "emulator", "pef_schema"})
_lock = threading.Lock()
_open: dict[int, tuple[dict[str, Any], int]] = {}
"""Namespaces in which ``type`` is another at present, with how many traces want it."""


def _shown(value: Any) -> Any:
    """The class of a value; of one of the exporter's tensors, that of the tensor it stands for."""
    found = builtins.type(value)
    if found is FakeTensor:
        return torch.nn.Parameter if getattr(value, "_is_param", False) else torch.Tensor
    return ShownType if found is builtins.type else found


class _Meta(type):
    """Lets a class stand for ``type`` in all that a script does with that name."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            return _shown(args[0])
        return builtins.type(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, builtins.type)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, builtins.type)

    def __getitem__(cls, item: Any) -> Any:
        return builtins.type[item]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is builtins.type

    def __hash__(cls) -> int:
        return hash(builtins.type)


class ShownType(type, metaclass=_Meta):
    """What ``type`` is in the user's modules while a model is traced."""


class _ShownClass:
    """Tells the user's code another ``__class__`` than all other code."""

    __slots__ = ()

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # none sets it
        found = builtins.type(self)
        user = is_user_file(sys._getframe(1).f_code.co_filename)
        return _shown(self) if user and found is FakeTensor else found


@contextmanager
def shown_types(model: torch.nn.Module) -> Iterator[None]:
    """While active, the user's code is shown torch's own classes of tensors.

    Args:
        model: The model.
    """
    spaces = list({id(space): space for space in _namespaces(model)}.values())
    with _lock:
        if not _open:
            FakeTensor.__bases__ = (_ShownClass, *FakeTensor.__bases__)
        _open[0] = {}, _open.get(0, ({}, 0))[1] + 1
        for space in spaces:
            count = _open[id(space)][1] if id(space) in _open else 0
            if count or "type" not in space:
                _open[id(space)] = space, count + 1
                space["type"] = ShownType
    try:
        yield
    finally:
        with _lock:
            for key in (0, *map(id, spaces)):
                if key in _open:
                    space, count = _open.pop(key)
                    if count > 1:
                        _open[key] = space, count - 1
                    elif key:
                        space.pop("type", None)  # the state of before may have been put back
            if not _open:
                FakeTensor.__bases__ = tuple(
                    base for base in FakeTensor.__bases__ if base is not _ShownClass
                )


def _namespaces(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Global names of the user's code: of the model's classes, and of what is not installed."""
    for module in model.modules():
        own = vars(module).get("forward")
        functions = [own, *(vars(cls).get("forward") for cls in type(module).__mro__)]
        for function in functions:
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, FunctionType) and is_user_file(function.__code__.co_filename):
                yield function.__globals__
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _OWN and _is_script(module):
            yield vars(module)


def _is_script(module: Any) -> bool:
    """Whether a module is the user's own, and no installed package's."""
    if not isinstance(module, ModuleType):
        return False
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        return True
    return bool(file) and is_script_file(file)
