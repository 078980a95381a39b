"""A digest of Python objects that is the same in every process where they are.

Objects are walked by value: containers, attributes, closures, the code of functions, and the global
variables that this code names. What Python knows no state of, such as an iterator or an open file,
is :class:`Incomparable`: whoever asks cannot rely on it.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import logging
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from emulator.handler_errors import raise_error_of_handler
from samba.remembering.code_origins import is_users_file, is_users_module
from samba.remembering.object_state import attributes_of, built_in_base, holds_no_more
from samba.sambatensor import SambaTensor
from samba.tensor.views import host_of, strides_of
from samba.tracer.torch_internals import accumulation_hooks, gradient_hooks

__all__ = ["Incomparable", "StateDigest"]

_MOST_OBJECTS = 1_000_000
_MOST_BYTES = 1 << 28
"""Bytes of constants that are read; more take longer than a trace."""


class Incomparable(Exception):
    """The state of an object cannot be compared with that in another process.

    Attributes:
        place: Where it was found, as an expression.
        problem: Why not.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem
        super().__init__(f"{place} {problem}")


_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)),
    *(range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype),
)
_BY_NAME = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, PurePath),
)
_STATELESS = (type(threading.Lock()), type(threading.RLock()), logging.Logger)
"""Objects that no result of ``forward`` depends on."""
_OF_EVERY_CLASS = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__"),
        *("_abc_impl", "__abstractmethods__", "__slots__", "__static_attributes__"),
        *("__firstlineno__", "__orig_bases__", "__parameters__", "__match_args__"),
        *("__dataclass_fields__", "__dataclass_params__", "_autograd_function_id"),
    }
)
"""Attributes of a class that its source says, or that Python makes."""


class StateDigest:
    """Walks objects and digests what they hold.

    Args:
        known: Tensors whose values do not count, each by its identity with a name in the place of
            the values: the parameters and buffers of a model.

    Example:
        >>> one, two = StateDigest({}), StateDigest({})
        >>> one.add([1, {"a": 2.0}], "x")
        >>> two.add([1, {"a": 2.5}], "x")
        >>> one.hexdigest() == two.hexdigest()
        False
    """

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = known
        self._state = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        self._looked: set[tuple[str, str]] = set()
        self._storages: dict[int, int] = {}
        self._bytes = 0

    def hexdigest(self) -> str:
        """The digest of all that was added."""
        return self._state.hexdigest()

    def add(self, value: Any, place: str) -> None:
        """Add an object with everything that it holds.

        Args:
            value: The object.
            place: What it is called where somebody is told that it cannot be compared.

        Raises:
            Incomparable: If it holds something whose state cannot be had.
        """
        kind = type(value)
        if kind in _PLAIN:
            self._put(kind.__name__, repr(value))
        elif kind is tuple:  # often a new one, which has the identity of one that is gone
            self._put("tuple")
            self._items(value, place)
        elif self._is_new(value):
            self._object(value, kind, place)

    def _put(self, *texts: str) -> None:
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self._bytes += len(data) + 8
            if self._bytes > _MOST_BYTES:
                raise Incomparable("model", f"holds more than {_MOST_BYTES} bytes")
            self._state.update(len(data).to_bytes(8, "little"))
            self._state.update(data)

    def _is_new(self, value: Any) -> bool:
        """Whether it is met for the first time; later ones are told by their number."""
        number = self._seen.setdefault(id(value), len(self._alive))
        if number < len(self._alive):
            self._put("again", str(number))
            return False
        if number >= _MOST_OBJECTS:
            raise Incomparable("model", f"holds more than {_MOST_OBJECTS} objects")
        self._alive.append(value)
        return True

    def _object(self, value: Any, kind: type, place: str) -> None:
        # By type: `__class__` of a stand-in for another object says what that one is.
        if (walk := _CONTAINERS.get(kind)) is not None:
            self._put(kind.__name__)
            walk(self, value, place)
        elif issubclass(kind, torch.Tensor):
            self._tensor(value, place)
        elif issubclass(kind, torch.nn.Module):
            self._module(value, place)
        elif issubclass(kind, types.FunctionType):
            self._function(value, place)
        elif issubclass(kind, type):
            self._class(value, place)
        elif issubclass(kind, types.ModuleType):
            self._put("module", value.__name__)
            if is_users_module(value.__name__):
                self._variables(value, place)
        elif (special := _SPECIAL.get(kind)) is not None:
            self._put(kind.__qualname__)
            self.add(special(value), place)
        elif issubclass(kind, _BY_NAME) or kind.__module__ == "torch._ops":
            self._put("by name", type(value).__qualname__, *_name_of(value))
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, (type, types.ModuleType)):
                self.add(owner, f"{place}.__self__")
        elif issubclass(kind, enum.Enum):
            self.add(kind, place)
            for name, item in attributes_of(value, kind):
                self._put(name)
                self.add(item, f"{place}.{name}")
        elif kind is np.ndarray or issubclass(kind, np.generic):
            self._array(np.asarray(value), place)
        elif issubclass(kind, _STATELESS):
            self._put("stateless", kind.__qualname__)
        else:
            self._instance(value, kind, place)

    # -- containers and objects ----------------------------------------------------------

    def _items(self, values: Iterable[Any], place: str) -> None:
        listed = list(values)
        self._put("items", str(len(listed)))
        for number, item in enumerate(listed):
            self.add(item, f"{place}[{number}]")

    def _dict(self, values: dict[Any, Any], place: str) -> None:
        entries = list(dict.items(values))
        self._put("dict", str(len(entries)))
        for key, item in entries:
            self.add(key, f"a key of {place}")
            self.add(item, f"{place}[{key!r}]" if type(key) in _PLAIN else f"an entry of {place}")

    def _set(self, values: Iterable[Any], place: str) -> None:
        """Items of a set; in order where that is the same in each process, as texts have none."""
        digests: list[str] = []
        values = list(values)
        for item in values:
            if type(item) not in (*_PLAIN, tuple) and not isinstance(item, enum.Enum):
                raise Incomparable(f"an item of {place}", f"is a {type(item).__qualname__}")
            state = StateDigest({})
            state.add(item, f"an item of {place}")
            digests.append(state.hexdigest())
        ordered = all(type(item) in (int, float) for item in values)
        self._put("set", *(digests if ordered else sorted(digests)))

    def _instance(self, value: Any, kind: type, place: str) -> None:
        """An object of a class: what its built-in base holds, then its attributes."""
        base = built_in_base(kind)
        if base is deque:
            self._put(repr(value.maxlen))
        if not holds_no_more(kind, base):
            raise Incomparable(place, f"is a {kind.__qualname__}")
        self.add(kind, f"type({place})")
        if base in (dict, OrderedDict, defaultdict):
            self._dict(value, place)
            if base is defaultdict:
                self.add(value.default_factory, f"{place}.default_factory")
        elif base in (list, tuple, deque):
            self._items(base.__iter__(value), place)
        elif base in (set, frozenset):
            self._set(value, place)
        elif base is not object:
            self._put(base.__repr__(value))
        for name, item in attributes_of(value, kind):
            self._put(name)
            self.add(item, f"{place}.{name}")

    # -- tensors and modules -------------------------------------------------------------

    def _tensor(self, tensor: torch.Tensor, place: str) -> None:
        names = getattr(tensor, "sn_name", ""), getattr(tensor, "sn_region_name", "")
        form = tuple(tensor.shape), tensor.dtype, tensor.device, bool(tensor.requires_grad)
        has_values = bool(getattr(tensor, "_has_data", True)) and not tensor.is_meta
        if has_values and tensor.layout is torch.strided:
            memory = host_of(tensor).untyped_storage().data_ptr()
            shared = self._storages.setdefault(memory, len(self._storages))
            form = (*form, strides_of(host_of(tensor)), shared)
        self._put("tensor", repr(form), *names)
        self.add(type(tensor), f"type({place})")
        for hooks in (gradient_hooks(tensor), accumulation_hooks(tensor)):
            self._items(hooks.values(), f"a hook of {place}")
        known = self._known.get(id(tensor))
        if known is not None:
            self._put("of the model", known)
        elif has_values:
            self._values(tensor, place)
        for name, item in list(vars(tensor).items()):
            if not (name.startswith("_") and isinstance(tensor, SambaTensor)):
                self._put(name)
                self.add(item, f"{place}.{name}")

    def _values(self, tensor: torch.Tensor, place: str) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise Incomparable(place, f"is a {tensor.layout} tensor")
        with torch.no_grad():
            plain = host_of(tensor).detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
            flat = plain.cpu().contiguous().flatten().view(torch.uint8)
        self._array(flat.numpy(), place)

    def _array(self, array: np.ndarray, place: str) -> None:
        if array.dtype.hasobject:
            raise Incomparable(place, "is a NumPy array of objects")
        self._bytes += array.nbytes
        if self._bytes > _MOST_BYTES:
            raise Incomparable(place, f"is beyond {_MOST_BYTES} bytes of constants")
        self._put("array", str(array.dtype), str(array.shape))
        self._state.update(array.tobytes())

    def _module(self, module: torch.nn.Module, place: str) -> None:
        self.add(type(module), f"type({place})")
        for name, item in attributes_of(module, type(module)):
            if name != "output_tensors" or not _are_handles(item):
                self._put(name)
                self.add(item, f"{place}.{name}")

    # -- code ----------------------------------------------------------------------------

    def _function(self, function: types.FunctionType, place: str) -> None:
        self._put("function", str(function.__module__), function.__qualname__)
        code, place = function.__code__, f"{function.__qualname__}"
        self._code(code)
        self.add(function.__defaults__, f"a default of {place}")
        self.add(function.__kwdefaults__, f"a default of {place}")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError as error:
                raise_error_of_handler(error)
                self._put("empty")
            else:
                self.add(content, f"{name} of {place}")
        if vars(function):
            self._dict(vars(function), f"{place}.__dict__")
        if _is_users(function):
            self._named(function.__globals__, _names(code), place)

    def _code(self, code: types.CodeType) -> None:
        self._put("code", code.co_code.hex(), repr((code.co_names, code.co_varnames)))
        self._put(repr((code.co_flags, code.co_argcount, code.co_kwonlyargcount)))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            elif isinstance(constant, frozenset):
                self._put(*sorted(map(repr, constant)))
            else:
                self._put(repr(constant))

    def _named(self, variables: Mapping[str, Any], names: frozenset[str], place: str) -> None:
        """The global variables that code names, and what it names of other modules."""
        for name in sorted(names):
            where = f"{name}, which {place} names,"
            if name in variables:
                self._put(name)
                self.add(variables[name], where)
                self._of_module(variables[name], names)
            elif name in sys.modules and is_users_module(name):
                self.add(sys.modules[name], where)
            elif name in vars(builtins) and not isinstance(vars(builtins)[name], _OF_BUILTINS):
                self.add(vars(builtins)[name], where)

    def _of_module(self, module: Any, names: frozenset[str]) -> None:
        """What code may name of a module of others: its plain variables, and the user's own."""
        if not isinstance(module, types.ModuleType) or is_users_module(module.__name__):
            return
        self.add_patches(module.__name__)
        for name in sorted(names & vars(module).keys()):
            if (module.__name__, name) in self._looked:
                continue
            self._looked.add((module.__name__, name))
            item = vars(module)[name]
            if type(item) in (*_PLAIN, dict, list, tuple, set):
                self._put(name)
                self.add(item, f"{module.__name__}.{name}")
            self._of_module(item, names)

    def _variables(self, module: types.ModuleType, place: str) -> None:
        """All that a module of the user's holds."""
        for name, item in list(vars(module).items()):
            if name not in _OF_EVERY_MODULE:
                self._put(name)
                self.add(item, f"{place}.{name}")

    def _class(self, kind: type, place: str) -> None:
        self._put("class", kind.__module__, kind.__qualname__)
        users = _is_users(kind)
        for name, item in list(vars(kind).items()):
            if name not in _OF_EVERY_CLASS and users:
                self._put(name)
                self.add(item, f"{kind.__qualname__}.{name}")
            elif name not in _OF_EVERY_CLASS:
                self._entry(name, item, kind.__qualname__)
        for base in kind.__bases__:
            if base is not object:
                self.add(base, place)
        if type(kind) is not type:
            self.add(type(kind), place)
        if not users:
            self.add_patches(kind.__module__)

    def add_patches(self, name: str) -> None:
        """Add what the user has put into a module of others.

        Args:
            name: Name of the module.
        """
        module = sys.modules.get(name)
        if module is None or (name, "*") in self._looked:
            return
        self._looked.add((name, "*"))
        self._put("patches", name)
        for variable, item in list(vars(module).items()):
            if isinstance(item, _CODE):
                self._entry(variable, item, name)

    def _entry(self, name: str, item: Any, owner: str) -> None:
        """An entry of a class or module of others: by version, unless it is not its own."""
        if isinstance(item, types.FunctionType):
            # No line: torch itself wraps functions of its own when its compiler is loaded.
            self._put(name, str(item.__module__), item.__qualname__)
        elif type(item) in _PLAIN:
            self._put(name, repr(item))
        else:
            self._put(name, type(item).__qualname__, str(getattr(item, "__qualname__", "")))
        held = (item, getattr(item, "__wrapped__", None), getattr(item, "func", None))
        held += tuple(getattr(item, part, None) for part in ("fget", "__func__"))
        if any(_is_users(each) for each in held):
            self.add(item, f"{owner}.{name}")


_OF_BUILTINS = (*_BY_NAME, type)
_CODE = (types.FunctionType, types.BuiltinFunctionType, functools.partial, property)
"""What a module of others may be patched with; its own variables are not looked at."""
_OF_EVERY_MODULE = frozenset(
    {
        *("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__file__", "__path__"),
        *("__cached__", "__builtins__", "__annotations__"),
    }
)


def _uncached(function: Any) -> Any:
    """The function under ``functools.lru_cache``, which gives what it once computed."""
    if function.cache_info().currsize and _is_users(function.__wrapped__):
        raise Incomparable(function.__qualname__, "has results in its cache")
    return function.__wrapped__


def _name_of(value: Any) -> tuple[str, str]:
    """Module and name of what is known by them; its text where it has none."""
    return str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", value))


def _are_handles(value: Any) -> bool:
    """Whether they are the outputs that ``load`` puts into a model."""
    return isinstance(value, tuple) and all(isinstance(each, SambaTensor) for each in value)


def _is_users(value: Any) -> bool:
    """Whether a function or class is the user's, or of a module that is not known."""
    if isinstance(value, types.FunctionType):
        file, name = value.__code__.co_filename, value.__globals__.get("__name__")
        if not file.startswith("<"):
            return is_users_file(file)
        owner = sys.modules.get(name) if isinstance(name, str) else None
        return owner is None or vars(owner) is not value.__globals__ or is_users_module(name)
    if not isinstance(value, type):
        return False
    if is_users_module(value.__module__):
        return True
    # A class that its module does not have was made by somebody else.
    if not value.__flags__ & 1 << 9 or "<locals>" in value.__qualname__:
        return "<locals>" in value.__qualname__
    first = value.__qualname__.partition(".")[0]
    return (
        first not in vars(sys.modules[value.__module__])
        if value.__module__ in sys.modules
        else True
    )


def _names(code: types.CodeType) -> frozenset[str]:
    """Names and texts in code: ``getattr(config, "depth")`` names an attribute, too."""
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return frozenset(names)


_CONTAINERS: Mapping[type, Callable[[StateDigest, Any, str], None]] = MappingProxyType(
    {
        dict: StateDigest._dict,
        list: StateDigest._items,
        set: StateDigest._set,
        frozenset: StateDigest._set,
    }
)
_SPECIAL: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {
        types.MethodType: lambda m: (m.__func__, m.__self__),
        functools.partial: lambda p: (p.func, p.args, p.keywords, vars(p)),
        functools.cached_property: lambda p: (p.func, p.attrname),
        property: lambda p: (p.fget, p.fset, p.fdel),
        staticmethod: lambda m: m.__func__,
        classmethod: lambda m: m.__func__,
        type(functools.lru_cache(len)): _uncached,
        types.SimpleNamespace: vars,
        torch.Size: tuple,
        weakref.ref: lambda r: r(),
        re.Pattern: lambda p: (p.pattern, p.flags),
        MappingProxyType: dict,
        types.GenericAlias: lambda a: (a.__origin__, a.__args__),
        types.CellType: lambda c: c.cell_contents,
    }
)
"""What objects of built-in types consist of."""
