"""What tracing a model can depend on, as data that can be compared.

Whoever wants to know whether a model still traces to the same graph describes it twice. Equal
descriptions say that its modules, their attributes, the code of its methods and all that this
code reaches are the same. Code of installed packages counts as constant. What cannot be described
is an error, never a guess.
"""

from __future__ import annotations

import enum
import functools
import sys
import sysconfig
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

_LIMIT = 200_000
"""Objects looked at: a description must cost less than what it saves."""

_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
_NUMBERS = (float, complex)
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_SEQUENCES = (tuple, list, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
_SETS = (set, frozenset)
_BUILT_ON = (tuple, list, dict, set, frozenset, int, float, complex, str, bytes, bytearray)
_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)
_MACHINERY = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__parameters__"}
    | {"__abstractmethods__", "_abc_impl", "__dataclass_params__", "__dataclass_fields__"}
    | {"__orig_bases__", "__static_attributes__", "__firstlineno__", "__qualname__"}
)


class Undescribed(Exception):
    """Something that ``forward`` may read cannot be compared."""


class _Same:
    """An object that is only equal to itself, and not kept alive."""

    __slots__ = ("_reference",)

    def __init__(self, value: Any) -> None:
        try:
            self._reference = weakref.ref(value)
        except TypeError:
            raise Undescribed(type(value).__qualname__) from None

    def __eq__(self, other: object) -> bool:
        mine = self._reference()
        return isinstance(other, _Same) and mine is not None and mine is other._reference()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # what is described is compared, never looked up


def describe(*values: Any) -> tuple[Any, ...]:
    """Describe objects.

    Args:
        values: Modules, tensors, functions, plain data and what holds them.

    Returns:
        What compares equal to a later description if nothing has changed: the same objects,
        holding equal data. Values of parameters and registered buffers do not count, since a
        graph cannot depend on them.

    Raises:
        Undescribed: Something is of a kind whose state cannot be seen.

    Example:
        >>> settings = {"depth": 2}
        >>> before = describe(settings)
        >>> before == describe(settings)
        True
        >>> settings["depth"] = 3
        >>> before == describe(settings)
        False
    """
    return tuple(map(_Walk().of, values))


def surroundings() -> tuple[Any, ...]:
    """Settings of torch that change what a model traces to."""
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
    )


class _Bare:
    """As large as every object whose state is in its ``__dict__``."""


class _Walk:
    """One description: what was seen before is named by its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an id means something as long as its object lives
        self._reached: set[Any] = set()

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or kind in _TORCH or isinstance(value, enum.Enum):
            return kind, value
        if kind in _NUMBERS:
            return kind, repr(value)
        number = self._numbers.get(id(value))
        if number is not None:
            return "seen", number
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        if len(self._alive) > _LIMIT:
            raise Undescribed("too much")
        return self._new(kind, value)

    def _new(self, kind: type, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value), self._contents(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if kind in _SEQUENCES:
            return kind, self._all(value)
        if kind in _MAPPINGS:
            return kind, self._items(value.items())
        if kind in _SETS:
            return kind, self._all(sorted(value, key=repr))
        if isinstance(value, type):
            return self._class(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            return "method", self.of(value.__self__), self.of(value.__func__)
        if kind in _BUILTINS:
            return "builtin", repr(value)
        if kind is types.ModuleType:
            return _Same(value)
        if kind is functools.partial:
            return kind, self.of(value.func), self.of(value.args), self.of(value.keywords)
        if kind in (staticmethod, classmethod):
            return kind, self.of(value.__func__)
        if kind is property:
            return kind, self._all((value.fget, value.fset, value.fdel))
        if kind.__module__.partition(".")[0] == "torch" and callable(value):
            return _Same(value)  # operators and their like
        return self._object(value)

    def _all(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([self.of(value) for value in values])

    def _items(self, items: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
        return tuple([(self.of(key), self.of(value)) for key, value in items])

    def _tensor(self, tensor: torch.Tensor) -> Any:
        own = {k: v for k, v in vars(tensor).items() if isinstance(v, _PLAIN)}
        facts = (tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.layout)
        return _Same(tensor), type(tensor), facts, own

    def _contents(self, tensor: torch.Tensor) -> Any:
        """What tells that the values of a constant are what they were."""
        if not getattr(tensor, "_has_data", True):
            return None
        try:
            return tensor._version, tensor.data_ptr()
        except RuntimeError as error:
            raise Undescribed(type(tensor).__qualname__) from error

    def _module(self, module: torch.nn.Module) -> Any:
        state = dict(vars(module))
        registered = []
        for holder in ("_parameters", "_buffers"):
            for name, tensor in (state.pop(holder, None) or {}).items():
                registered.append((name, None if tensor is None else self._registered(tensor)))
        return _Same(module), self.of(type(module)), registered, self._items(state.items())

    def _registered(self, tensor: torch.Tensor) -> Any:
        self._alive.append(tensor)
        number = self._numbers.setdefault(id(tensor), len(self._numbers))
        return number, self._tensor(tensor)

    def _object(self, value: Any) -> Any:
        kind = type(value)
        bare = kind.__basicsize__ == _Bare.__basicsize__ and not isinstance(value, _BUILT_ON)
        if not hasattr(value, "__dict__") or not (bare or kind is types.SimpleNamespace):
            raise Undescribed(kind.__qualname__)  # it holds more than its attributes
        return self.of(kind), self._items(vars(value).items())

    def _class(self, cls: type) -> Any:
        if _is_installed_module(cls.__module__):
            return _Same(cls)
        members = [
            (name, self.of(member))
            for name, member in vars(cls).items()
            if name not in _MACHINERY and not isinstance(member, types.GetSetDescriptorType)
        ]
        return _Same(cls), self._all(cls.__bases__), members

    def _function(self, function: types.FunctionType) -> Any:
        if _is_installed_file(function.__code__.co_filename):
            return _Same(function)
        cells = [content for cell in function.__closure__ or () for content in _contents(cell)]
        return (
            _Same(function),
            function.__code__,
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            self._all(cells),
            self.of(vars(function)),
            self._globals(function.__globals__, _names(function.__code__)),
        )

    def _globals(self, space: dict[str, Any], names: tuple[str, ...]) -> Any:
        """What code can reach by name, through modules of the user's as well."""
        found = []
        for name in names:
            value = space.get(name)
            found.append((name, self.of(value)))
            if not isinstance(value, types.ModuleType) or _is_installed_module(value.__name__):
                continue
            if (value.__name__, names) not in self._reached:
                self._reached.add((value.__name__, names))
                found.append((name, self._globals(vars(value), names)))
        return tuple(found)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """What a variable of an outer function holds; nothing before it is assigned."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


@cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Names that code and the code within it look up in modules."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(sorted({*code.co_names, *(n for c in inner for n in _names(c))}))


@cache
def _roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return (*{f"{paths[kind]}/" for kind in kinds}, f"{Path(__file__).parents[1]}/", "<frozen")


def _is_installed_file(path: str) -> bool:
    return path.startswith(_roots())


@cache
def _is_installed_module(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    path = getattr(module, "__file__", None)
    return path is None or _is_installed_file(path)
