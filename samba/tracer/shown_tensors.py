"""What the tensors of a traced ``forward`` show to it: names of SambaTensors, and torch's classes.

The exporter calls ``forward`` with tensors of a class of its own, without values. While a model is
traced,

* they have the names of SambaTensors, and so have the constants that are made of SambaTensors: a
  model may ask its inputs for ``sn_name`` or ``torch()``. What reaches for host or device memory,
  which a graph cannot, is refused by its name. No mode of torch sees that code asks for a
  name that torch's tensors do not have, or calls a method with an argument that they do not take.
  So these stand in the class.
* ``type(x)`` and ``x.__class__`` in the user's code are those of the tensors that torch would see.
  Nothing tells the exporter of a call of ``type``; so the user's modules find another function of
  this name.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import Any
from weakref import ref

import torch

from samba.support.deviations import tell
from samba.support.nesting import leaves
from samba.tensor.conversions import new_arguments, no_more_than_dtype
from samba.tensor.labels import Labels, keep_names
from samba.tensor.lazy_mode import Forward, enter_forward
from samba.tracer.forward_attributes import EmptyInForward, MemoryInForward
from samba.tracer.inputs import TraceInputs
from samba.tracer.torch_internals import FakeTensor
from samba.tracer.user_code import calling_line, is_script_file, is_user_file

T = torch.Tensor


@contextmanager
def samba_names(model: torch.nn.Module, given: TraceInputs) -> Iterator[None]:
    """While active, tensors in the ``forward`` of ``model`` have the names of SambaTensors.

    Args:
        model: The model; hooks on it are added and removed.
        given: Its inputs, with the names that they have.
    """
    labels = _labels_of(model)
    inside: list[Forward | None] = []

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        inside.append(enter_forward(_Traced()))
        _label_inputs(given, args, kwargs)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            vars(tensor)["_path"] = name
            if name in labels:
                _stand_for(labels[name], tensor)

    def after(*_: Any) -> None:
        if inside:
            enter_forward(inside.pop())

    with _installed():
        hooks = [
            model.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            model.register_forward_hook(after, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            after()


class _Traced:
    """Makes SambaTensors in ``forward``: the traced tensors themselves, with the names given."""

    def made(self, source: T | None, labels: Mapping[str, Any]) -> T:
        if source is None or not getattr(source, "_has_data", True):
            raise EmptyInForward
        source = source.torch() if hasattr(source, "torch") else source  # pyright: ignore[reportAttributeAccessIssue]  # a SambaTensor, or traced
        labels = {key: value for key, value in labels.items() if value is not None and value != ""}
        if not labels:
            return source
        if vars(source).get("_sn_name"):
            source = source.view(source.shape)
        elif "name" in labels:
            _tell_name(labels["name"])
        renamed = {"name": "sn_name", "region_name": "sn_region_name"}
        for key, value in labels.items():
            vars(source)[f"_{renamed.get(key, key)}"] = value
        return source if isinstance(source, FakeTensor) else show_names(source)


def _tell_name(name: str) -> None:
    tell(
        "name-in-forward",
        f"{calling_line()}: forward() names a tensor {name!r}. The program itself names what "
        "forward() computes; only names of inputs and outputs count",
    )


def _labels_of(model: torch.nn.Module) -> dict[str, T]:
    """Parameters and buffers that are SambaTensors, by path, as they are before a trace."""
    tensors = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return {path: tensor for path, tensor in tensors if "_sn_name" in vars(tensor)}


def _label_inputs(given: TraceInputs, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    values = [leaf for value in args for _, leaf in leaves("", value)]
    values += [leaf for key in given.kwargs for _, leaf in leaves(key, kwargs.get(key))]
    tensors = [value for value in values if isinstance(value, T)]
    if len(tensors) != len(given.tensors):
        return
    for named, tensor in zip(given.tensors, tensors, strict=True):
        keep_names(named.tensor, tensor)
        vars(tensor).update(_sn_name=named.name, _sn_region_name=named.region_name)


def _stand_for(source: T, tensor: T) -> None:
    if tensor is not source:
        keep_names(source, tensor)
        if "_materializer" in vars(source):
            vars(tensor)["_materializer"] = vars(source)["_materializer"]


# -- names that traced tensors get --------------------------------------------


def show_names(tensor: T) -> T:
    """Give a constant the names of a SambaTensor, with the labels that it has now.

    Args:
        tensor: A plain tensor with values; it is changed.

    Returns:
        The tensor.
    """
    for name, value in _DEFAULTS.items():
        vars(tensor).setdefault(name, value)
    for name, inner in _added().items():
        if isinstance(inner, property):
            if name not in ("sn_data", "sn_grad"):
                vars(tensor)[name] = inner.__get__(tensor)
        else:
            vars(tensor)[name] = inner.__get__(tensor, type(tensor))
    return tensor


def _itself(self: T) -> T:
    return self


def _refusing(name: str) -> Callable[..., None]:
    def refuse(self: T, *args: Any, **kwargs: Any) -> None:
        raise MemoryInForward(name=name)

    return refuse


def _materializer(self: T) -> Any:
    return vars(self).get("_materializer")


def _named(self: T, name: str) -> None:
    _tell_name(name)
    vars(self)["_sn_name"] = name


def _added() -> dict[str, Any]:
    label = {key: inner for key, inner in vars(Labels).items() if isinstance(inner, property)}
    label["sn_name"] = label["sn_name"].setter(_named)
    return {
        **label,
        **dict.fromkeys(("torch", "torch_tensor"), _itself),
        **{name: property(_refusing(name), _refusing(name)) for name in ("sn_data", "sn_grad")},
        **{name: _refusing(f"{name}()") for name in ("rdu", "cpu_", "clear_data")},
        "is_fast_access": vars(Labels)["is_fast_access"],
        "has_data": property(lambda self: True),
        "reusable": T.is_contiguous,
        "materialize_": lambda self: None,
        "materializer": property(_materializer, _refusing("materializer = ...")),
        "materializer_provided": property(lambda self: _materializer(self) is not None),
    }


_DEFAULTS = {key: value for key, value in vars(Labels).items() if key in Labels.__annotations__}
"""Where a label is kept that was not set."""


# -- methods of torch.Tensor that take more arguments -------------------------


def _of_user(frame: FrameType) -> bool:
    """Whether a frame is the user's; torch's own calls mean torch's methods."""
    return is_user_file(frame.f_code.co_filename)


def _new(name: str) -> Callable[..., T]:
    plain = getattr(T, name)

    def new(self: T, *args: Any, **kwargs: Any) -> T:
        if not _of_user(sys._getframe(1)):
            return plain(self, *args, **kwargs)
        args = (kwargs.pop("size"), *args) if "size" in kwargs else args
        sizes, options = new_arguments(args, kwargs)
        return plain(self, sizes, **options)

    return new


def _new_full(self: T, *args: Any, **kwargs: Any) -> T:
    if not _of_user(sys._getframe(1)):
        return T.new_full(self, *args, **kwargs)
    keywords = {**dict(zip(_FULL, args, strict=False)), **kwargs}
    sizes, options = new_arguments((keywords.pop("size"),), keywords)
    return T.new_full(self, sizes, options.pop("fill_value"), **options)


_FULL = ("size", "fill_value", "dtype", "device", "requires_grad")


def _to(self: T, *args: Any, other: T | None = None, **kwargs: Any) -> T:
    arguments: tuple[Any, ...] = args if other is None else (other, *args)
    return T.to(self, *arguments, **kwargs)


def _type(self: T, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    if _of_user(sys._getframe(1)):
        no_more_than_dtype(*args, **kwargs)
    return T.type(self, dtype, *args, **kwargs)


def _type_as(self: T, tensor: T | None = None, **kwargs: Any) -> T:
    return T.type_as(self, *(() if tensor is None else (tensor,)), **kwargs)


def _cpu(self: T, inplace: bool = False, **kwargs: Any) -> T:
    if inplace:
        raise MemoryInForward(name="cpu(inplace=True)")
    return T.cpu(self, **kwargs)


_EXTENDED: dict[str, Callable[..., Any]] = {
    **{name: _new(name) for name in ("new_empty", "new_ones", "new_zeros")},
    "new_full": _new_full,
    "to": _to,
    "type": _type,
    "type_as": _type_as,
    "cpu": _cpu,
}

_lock = threading.Lock()
_open = 0
"""How many traces are running, for which the class of the exporter's tensors has these names."""


@contextmanager
def _installed() -> Iterator[None]:
    """The names are there inside, for however many threads are inside."""
    global _open
    names = {**_DEFAULTS, **_added(), **_EXTENDED}
    with _lock:
        _open += 1
        if _open == 1:
            FakeTensor.__bases__ = (_ShownClass, *FakeTensor.__bases__)
            for name, value in names.items():
                setattr(FakeTensor, name, value)
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                for name in names:
                    delattr(FakeTensor, name)
                bases = [base for base in FakeTensor.__bases__ if base is not _ShownClass]
                FakeTensor.__bases__ = tuple(bases)


# -- classes ----------------------------------------------------------------------------

_OWN = frozenset({"samba", "sambaflow", "emulator", "pef_schema"})
_spaces: dict[int, tuple[dict[str, Any], int]] = {}
"""Namespaces in which ``type`` is another at present, with how many traces want it."""
_sorted: tuple[list[int], list[ref[ModuleType]]] = [], []
"""Identities of all loaded modules, most of some thousands a library's, and those that are none."""


def _shown(value: Any) -> Any:
    """The class of a value; of one of the exporter's tensors, that of the tensor it stands for."""
    cls = builtins.type(value)
    if issubclass(cls, FakeTensor):
        return torch.nn.Parameter if getattr(value, "_is_param", False) else torch.Tensor
    return ShownType if cls is builtins.type else cls


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
        cls = builtins.type(self)
        return _shown(self) if issubclass(cls, FakeTensor) and _of_user(sys._getframe(1)) else cls


@contextmanager
def shown_types(model: torch.nn.Module) -> Iterator[None]:
    """While active, the user's modules are shown torch's own classes of tensors by ``type``.

    Args:
        model: The model.
    """
    spaces = {id(space): space for space in _namespaces(model)}
    with _lock:
        for key, space in spaces.items():
            count = _spaces[key][1] if key in _spaces else 0
            if count or "type" not in space:
                _spaces[key] = space, count + 1
                space["type"] = ShownType
    try:
        yield
    finally:
        with _lock:
            for key in spaces.keys() & _spaces.keys():
                space, count = _spaces.pop(key)
                if count > 1:
                    _spaces[key] = space, count - 1
                else:
                    space.pop("type", None)  # the state of before may have been put back


def _namespaces(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Global names of the user's code: of the model's classes, and of what is not installed."""
    for module in model.modules():
        own = vars(module).get("forward")
        functions = [own, *(vars(cls).get("forward") for cls in type(module).__mro__)]
        for function in functions:
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, FunctionType) and is_user_file(function.__code__.co_filename):
                yield function.__globals__
    yield from _script_spaces()


def _script_spaces() -> list[dict[str, Any]]:
    """Global names of all loaded modules that are not installed."""
    global _sorted  # what the last call has found
    loaded = [*map(id, sys.modules.values())]
    if loaded != _sorted[0]:
        modules = [
            ref(module)
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] not in _OWN
            and isinstance(module, ModuleType)
            and (_is_script(module) or not getattr(module, "__file__", None))
        ]
        _sorted = loaded, modules
    modules = (known() for known in _sorted[1])
    return [vars(module) for module in modules if module is not None and _is_script(module)]


def _is_script(module: Any) -> bool:
    """Whether a module is the user's own, and no installed package's."""
    if not isinstance(module, ModuleType):
        return False
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        return True
    return bool(file) and is_script_file(file)
