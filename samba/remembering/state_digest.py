"""A digest of Python objects that is the same in every process where they are.

Objects are walked by value: containers, attributes, closures, the code of functions, and the global
variables that this code names. What Python knows no state of, such as an iterator or an open file,
is :class:`Incomparable`: whoever asks cannot rely on it.
"""

from __future__ import annotations

import builtins
import enum
import hashlib
import logging
import os
import re
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from emulator.handler_errors import raise_error_of_handler
from samba.remembering.built_in_parts import BY_NAME, PLAIN, parts_of
from samba.remembering.code_names import (
    has_an_order,
    imports_in,
    makes_sets,
    names_in,
    sets_keep_order,
    walks_of,
)
from samba.remembering.code_origins import is_users, is_users_module
from samba.remembering.incomparable import Incomparable
from samba.remembering.library_state import OF_EVERY_CLASS, Libraries
from samba.remembering.object_state import attributes_of, built_in_base, holds_no_more
from samba.remembering.operations import add_operation
from samba.sambatensor import SambaTensor
from samba.tensor.views import host_of, strides_of
from samba.tracer.torch_internals import accumulation_hooks, gradient_hooks

__all__ = ["Incomparable", "StateDigest"]

_MOST_OBJECTS = 1_000_000
_MOST_BYTES = 1 << 28
"""Bytes of constants that are read; more take longer than a trace."""


_STATELESS = (type(threading.Lock()), type(threading.RLock()), logging.Logger)
"""Objects that no result of ``forward`` depends on."""
_OF_EVERY_MODULE = frozenset(
    {
        *("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__file__", "__path__"),
        *("__cached__", "__builtins__", "__annotations__"),
    }
)
_OF_BUILTINS = (*BY_NAME, type)
_HOLDER = re.compile(r"\.([A-Za-z_]\w*)$|^(\w+), which |^(\w+) of ")
"""What a set hangs on, at the end of what it is called: an attribute or a variable."""
_ORDER = "texts have another order in each process: sort them, use a list, or set PYTHONHASHSEED"
_SMALLEST_HASH = 1 << 32
"""Hashes of texts are numbers of 64 bits, of which hardly any is smaller."""


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
        self._storages: dict[int, int] = {}
        self._unordered: list[tuple[str, tuple[str, ...]]] = []
        self._codes: list[types.CodeType] = []
        self._libraries = Libraries(self)
        self._bytes = 0

    def hexdigest(self) -> str:
        """The digest of all that was added."""
        return self._state.hexdigest()

    def add_surroundings(self, modules: Iterable[str]) -> None:
        """Add what lies around all that was added: modules of others, and orders of sets.

        Args:
            modules: Modules of others that are looked at in any case.

        Raises:
            Incomparable: If code walks a set whose order other processes do not have.
        """
        for name in modules:
            self._libraries.add_patches(name)
        self._libraries.add_users()
        self._libraries.add_reached()
        self._orders()

    def add(self, value: Any, place: str) -> None:
        """Add an object with everything that it holds.

        Args:
            value: The object.
            place: What it is called where somebody is told that it cannot be compared.

        Raises:
            Incomparable: If it holds something whose state cannot be had.
        """
        kind = type(value)
        if kind in PLAIN:
            self.put(kind.__name__, repr(value))
        elif kind is tuple:  # often a new one, which has the identity of one that is gone
            self.put("tuple")
            self._items(value, place)
        elif self._is_new(value):
            self._object(value, kind, place)

    def put(self, *texts: str) -> None:
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
            self.put("again", str(number))
            return False
        if number >= _MOST_OBJECTS:
            raise Incomparable("model", f"holds more than {_MOST_OBJECTS} objects")
        self._alive.append(value)
        return True

    def _object(self, value: Any, kind: type, place: str) -> None:
        # By type: `__class__` of a stand-in for another object says what that one is.
        if (walk := _CONTAINERS.get(kind)) is not None:
            self.put(kind.__name__)
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
            self.put("module", value.__name__)
            if is_users_module(value.__name__):
                self._variables(value, place)
        elif (parts := parts_of(value)) is not None:
            self.put(kind.__qualname__)
            self._items(parts, place)
        elif issubclass(kind, (*BY_NAME, PurePath)) or kind.__module__ == "torch._ops":
            self.put("by name", kind.__qualname__, *_name_of(value))
            add_operation(self, value)
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, (type, types.ModuleType)):
                self.add(owner, f"{place}.__self__")
        elif issubclass(kind, enum.Enum):
            self.add(kind, place)
            self._attributes(value, kind, place)
        elif kind is np.ndarray or issubclass(kind, np.generic):
            self._numbers(value, place)
        elif issubclass(kind, _STATELESS):
            self.put("stateless", kind.__qualname__)
        else:
            self._instance(value, kind, place)

    # -- containers and objects ----------------------------------------------------------

    def _items(self, values: Iterable[Any], place: str) -> None:
        listed = list(values)
        self.put("items", str(len(listed)))
        for number, item in enumerate(listed):
            self.add(item, f"{place}[{number}]")

    def _dict(self, values: dict[Any, Any], place: str, base: type = dict) -> None:
        entries = list(base.items(values))
        self.put("dict", str(len(entries)))
        for key, item in entries:
            self.add(key, f"a key of {place}")
            self.add(item, f"{place}[{key!r}]" if type(key) in PLAIN else f"an entry of {place}")

    def _set(self, values: Iterable[Any], place: str) -> None:
        """Items of a set; in order where that is the same in each process, as texts have none."""
        digests: list[str] = []
        values = list(values)
        for item in values:
            if type(item) not in (*PLAIN, tuple) and not isinstance(item, enum.Enum):
                raise Incomparable(f"an item of {place}", f"is a {type(item).__qualname__}")
            state = StateDigest({})
            state.add(item, f"an item of {place}")
            digests.append(state.hexdigest())
        ordered = has_an_order(values)
        self.put("set", *(digests if ordered else sorted(digests)))
        if not ordered:
            self._unordered.append((place, tuple(digests)))

    def _orders(self) -> None:
        """Add the orders in which code walks sets, where another process has the same."""
        asked = bool(self._unordered)
        walks = [walks_of(code) for code in self._codes if asked or makes_sets(code)]
        walked = {name for each in walks for name in each.names}
        for place, digests in self._unordered:
            holder = _HOLDER.search(place)
            if holder is None or not walked.isdisjoint(holder.groups()):
                if not sets_keep_order():
                    raise Incomparable(place, f"is a set, and {_ORDER}")
                self.put("order", *digests)
        makes = [each.place for each in walks if each.makes]
        if makes and not sets_keep_order():
            raise Incomparable(makes[0], f"walks a set that it makes, and {_ORDER}")
        if makes:
            self.put("seed", os.environ["PYTHONHASHSEED"])

    def _instance(self, value: Any, kind: type, place: str) -> None:
        """An object of a class: what its built-in base holds, then its attributes."""
        base = built_in_base(kind)
        if base is deque:
            self.put(repr(value.maxlen))
        if not holds_no_more(kind, base):
            raise Incomparable(place, f"is a {kind.__qualname__}")
        self.add(kind, f"type({place})")
        if base in (dict, OrderedDict, defaultdict):
            self._dict(value, place, base)
            if base is defaultdict:
                self.add(value.default_factory, f"{place}.default_factory")
        elif base in (list, tuple, deque):
            self._items(base.__iter__(value), place)
        elif base in (set, frozenset):
            self._set(value, place)
        elif base is not object:
            self.put(base.__repr__(value))
        self._attributes(value, kind, place)

    def _attributes(self, value: Any, kind: type, place: str) -> None:
        for name, item in attributes_of(value, kind):
            self.put(name)
            if type(item) is int and abs(item) >= _SMALLEST_HASH and _is_hash(value, name, item):
                self.put("a hash")
            else:
                self.add(item, f"{place}.{name}")

    # -- tensors and modules -------------------------------------------------------------

    def _tensor(self, tensor: torch.Tensor, place: str) -> None:
        names = getattr(tensor, "sn_name", ""), getattr(tensor, "sn_region_name", "")
        form = tuple(tensor.shape), tensor.dtype, tensor.device, bool(tensor.requires_grad)
        has_values = bool(getattr(tensor, "_has_data", True)) and not tensor.is_meta
        if has_values and tensor.layout is torch.strided:
            memory = host_of(tensor).untyped_storage().data_ptr()
            shared = self._storages.setdefault(memory, len(self._storages))
            host = host_of(tensor)
            form = (*form, strides_of(host), shared, host.is_leaf, host.is_conj(), host.is_neg())
        self.put("tensor", repr(form), *names)
        self.add(type(tensor), f"type({place})")
        for hooks in (gradient_hooks(tensor), accumulation_hooks(tensor)):
            self._items(hooks.values(), f"a hook of {place}")
        known = self._known.get(id(tensor))
        if known is not None:
            self.put("of the model", known)
        elif has_values:
            self._values(tensor, place)
        for name, item in list(vars(tensor).items()):
            if not (name.startswith("_") and isinstance(tensor, SambaTensor)):
                self.put(name)
                self.add(item, f"{place}.{name}")

    def _values(self, tensor: torch.Tensor, place: str) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise Incomparable(place, f"is a {tensor.layout} tensor")
        with torch.no_grad():
            plain = host_of(tensor).detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
            flat = plain.cpu().contiguous().flatten().view(torch.uint8)
        self._array(flat.numpy(), place)

    def _numbers(self, value: np.ndarray | np.generic, place: str) -> None:
        """An array or a number of NumPy, which code may tell apart."""
        array = np.asarray(value)
        self.put(type(value).__name__, str(array.strides), str(array.flags.writeable))
        if array is value:
            memory = array.__array_interface__["data"][0]
            self.put(str(self._storages.setdefault(memory, len(self._storages))))
        self._array(array, place)

    def _array(self, array: np.ndarray, place: str) -> None:
        if array.dtype.hasobject:
            raise Incomparable(place, "is a NumPy array of objects")
        self._bytes += array.nbytes
        if self._bytes > _MOST_BYTES:
            raise Incomparable(place, f"is beyond {_MOST_BYTES} bytes of constants")
        self.put("array", str(array.dtype), str(array.shape))
        self._state.update(array.tobytes())

    def _module(self, module: torch.nn.Module, place: str) -> None:
        self.add(type(module), f"type({place})")
        for name, item in attributes_of(module, type(module)):
            if name != "output_tensors" or not _are_handles(item):
                self.put(name)
                self.add(item, f"{place}.{name}")

    # -- code ----------------------------------------------------------------------------

    def _function(self, function: types.FunctionType, place: str) -> None:
        self.put("function", str(function.__module__), function.__qualname__, function.__name__)
        code, place = function.__code__, f"{function.__qualname__}"
        self._code(code)
        self.add(function.__defaults__, f"a default of {place}")
        self.add(function.__kwdefaults__, f"a default of {place}")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError as error:
                raise_error_of_handler(error)
                self.put("empty")
            else:
                self.add(content, f"{name} of {place}")
        if vars(function):
            self._dict(vars(function), f"{place}.__dict__")
        if is_users(function):
            self._codes.append(code)
            names = names_in(code)
            self._named(function.__globals__, names, place)
            self._imported(function, names)
        else:
            self._libraries.add_function(function)

    def _code(self, code: types.CodeType) -> None:
        self.put("code", code.co_code.hex(), repr((code.co_names, code.co_varnames)))
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        self.put(repr((code.co_flags, counts, code.co_freevars, code.co_cellvars)), code.co_name)
        self.put(code.co_exceptiontable.hex())
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            elif isinstance(constant, frozenset):
                self.put(*sorted(map(repr, constant)))
            else:
                self.put(repr(constant))

    def _named(self, variables: Mapping[str, Any], names: frozenset[str], place: str) -> None:
        """The global variables that code names, and what it names of other modules."""
        for name in sorted(names):
            where = f"{name}, which {place} names,"
            if name in variables:
                self.put(name)
                self.add(variables[name], where)
                self._libraries.add_named(variables[name], names)
            elif name in vars(builtins) and not isinstance(vars(builtins)[name], _OF_BUILTINS):
                self.add(vars(builtins)[name], where)

    def _imported(self, function: types.FunctionType, names: frozenset[str]) -> None:
        """What a function imports itself, of the user's modules and of others."""
        for name, variable in imports_in(function.__code__, function.__globals__):
            module = sys.modules[name]
            self.put(name, variable)
            if is_users_module(name):
                self.add(vars(module).get(variable) if variable else module, name)
            self._libraries.add_named(module, names)

    def _variables(self, module: types.ModuleType, place: str) -> None:
        """All that a module of the user's holds."""
        for name, item in list(vars(module).items()):
            if name not in _OF_EVERY_MODULE:
                self.put(name)
                self.add(item, f"{place}.{name}")

    def _class(self, kind: type, place: str) -> None:
        self.put("class", str(kind.__module__), kind.__qualname__)
        if is_users(kind):
            for name, item in list(vars(kind).items()):
                if name not in OF_EVERY_CLASS:
                    self.put(name)
                    self.add(item, f"{kind.__qualname__}.{name}")
            self.put(str(vars(kind).get("__doc__")), *_annotated(kind))
            for field in vars(kind).get("__dataclass_fields__", {}).values():
                self.put(field.name, repr((field.init, field.kw_only)))
                self.add(
                    (field.default, field.default_factory), f"{kind.__qualname__}.{field.name}"
                )
        else:
            self._libraries.add_class(kind)
        for base in kind.__bases__:
            if base is not object:
                self.add(base, place)
        if type(kind) is not type:
            self.add(type(kind), place)


def _name_of(value: Any) -> tuple[str, str]:
    """Module and name of what is known by them; its text where it has none."""
    return str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", value))


def _annotated(kind: type) -> list[str]:
    """Names of the fields of a class with their types, which a dataclass goes by."""
    fields = vars(kind).get("__annotations__")
    if not isinstance(fields, dict):  # a metaclass in C has a descriptor of this name
        return []
    return [
        f"{name}: {of if isinstance(of, str) else getattr(of, '__qualname__', type(of).__name__)}"
        for name, of in fields.items()
    ]


def _is_hash(value: Any, name: str, number: int) -> bool:
    """Whether a number is what ``hash`` gave for an object, which each process has anew."""
    if not isinstance(type(value).__hash__, types.FunctionType):
        return False
    return hash(value) == number or (name.endswith("hash") and not is_users(type(value)))


def _are_handles(value: Any) -> bool:
    """Whether they are the outputs that ``load`` puts into a model."""
    return isinstance(value, tuple) and all(isinstance(each, SambaTensor) for each in value)


_CONTAINERS: Mapping[type, Callable[[StateDigest, Any, str], None]] = MappingProxyType(
    {
        dict: StateDigest._dict,
        list: StateDigest._items,
        set: StateDigest._set,
        frozenset: StateDigest._set,
    }
)
