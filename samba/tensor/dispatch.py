"""How torch functions treat SambaTensors: plain torch, results wrapped, names kept by casts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import init
from torch.overrides import get_default_nowrap_functions, resolve_name

from samba.errors import NoHostData
from samba.support.nesting import flat, mapped
from samba.support.tracing import declared_tracing
from samba.tensor.host_use import note_use, twinned
from samba.tensor.labels import keep_names
from samba.tensor.lazy_mode import current_mode, lazily
from samba.tensor.promotion import promoted
from samba.tensor.recipe import Recipe, SameAs, ViewRecipe, empty_data
from samba.tensor.recording import record, symbolic, writes
from samba.tensor.views import host_of, set_data

T = torch.Tensor

CASTS: frozenset[Callable[..., Any]] = frozenset(
    {
        T.bfloat16,
        T.bool,
        T.byte,
        T.char,
        T.detach,
        T.double,
        T.float,
        T.half,
        T.int,
        T.long,
        T.short,
        T.to,
        T.type,
        T.type_as,
    }
)
"""Functions whose result is the same tensor to a user, so that it keeps the names."""

_ATTRIBUTES = (
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "requires_grad"),
    *("is_leaf", "grad_fn", "is_meta", "is_cuda", "is_sparse"),
)

QUERIES: frozenset[Callable[..., Any]] = frozenset(
    {
        T.dim,
        T.element_size,
        T.is_complex,
        T.is_floating_point,
        T.is_signed,
        T.ndimension,
        T.nelement,
        T.numel,
        T.size,
        T.stride,
        T.is_contiguous,
        T.__len__,
        T.untyped_storage,
        *(getattr(T, name).__get__ for name in _ATTRIBUTES),
        T.requires_grad.__set__,  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
        torch._has_compatible_shallow_copy_type,  # pyright: ignore[reportPrivateImportUsage]  # nn.Module asks it
        torch.is_complex,
        torch.is_floating_point,
        torch.numel,
    }
)
"""Functions that neither look at values nor give tensors; the session asks them in every run."""

SHAPE_ONLY: frozenset[Callable[..., Any]] = frozenset(
    {
        T.new_empty,
        T.new_full,
        T.new_ones,
        T.new_zeros,
        T.register_hook,
        T.requires_grad_,
        torch.empty_like,
        torch.full_like,
        torch.ones_like,
        torch.rand_like,
        torch.randint_like,
        torch.randn_like,
        torch.zeros_like,
    }
)
"""Functions that give tensors without looking at values; empty SambaTensors allow them too."""


OVERWRITING: frozenset[Callable[..., Any]] = frozenset(
    {
        *(T.copy_, T.exponential_, T.fill_, T.normal_, T.random_, T.set_, T.uniform_, T.zero_),
        *(init.constant_, init.kaiming_uniform_, init.normal_, init.uniform_),
    }
)
"""Functions that replace all values of their first argument without looking at them."""


def operands(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[T, ...]:
    """Tensors among the arguments of a torch function, those in containers included."""
    return tuple(v for v in flat((*args, *kwargs.values())) if isinstance(v, T))


def dispatch(
    cls: type[T], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs a torch function on SambaTensors and makes the new tensors SambaTensors.

    A result keeps its identity: it becomes a ``cls`` by assignment to ``__class__``, not by an
    alias, so that autograd and view tracking are those of plain torch.

    Args:
        cls: The SambaTensor class.
        func: The torch function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        What ``func`` returns.

    Raises:
        NoHostData: An argument is an empty SambaTensor, and ``func`` needs its values.
    """
    if func in QUERIES:
        with torch._C.DisableTorchFunctionSubclass():
            return func(host_of(args[0]), *args[1:], **kwargs) if args else func(**kwargs)
    tensors = operands(args, kwargs)
    if func is T.new_empty and not getattr(args[0], "_has_data", True):
        return _new_empty(cls, args, kwargs)
    if func not in SHAPE_ONLY:
        for tensor in tensors:
            if not getattr(tensor, "_has_data", True):
                return _on_empty(cls, func, tensor, args, kwargs)
    static = current_mode() is not None or declared_tracing()
    if static and _may_be_symbolic(func, tensors, kwargs):
        result = symbolic(cls, func, args, kwargs)
        if result is not NotImplemented:
            return result
    handles = {id(host_of(tensor)): tensor for tensor in tensors if "_underlying" in vars(tensor)}
    named = args[0] if args else None
    if handles:
        args, kwargs = mapped(args, _host_or_value), mapped(kwargs, _host_or_value)
        tensors = operands(args, kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        try:
            result = func(*args, **kwargs)
        except RuntimeError:
            result = _promoted(func, args, kwargs)
            if result is None:
                raise
    if twinned:
        # Initializers of torch.nn.init give all arguments by name.
        whole = next(iter(args), kwargs.get("tensor")) if func in OVERWRITING else None
        note_use(tensors, getattr(func, "__name__", ""), whole)
    if func in get_default_nowrap_functions():
        return result
    _adopt(cls, result, tensors)
    if handles:
        result = mapped(result, lambda value: _handle_or_value(value, handles))
    is_cast = func in CASTS and isinstance(named, cls) and isinstance(result, cls)
    if is_cast and result is not named and named is not None:
        keep_names(named, result)
    return result


def _may_be_symbolic(
    func: Callable[..., Any], tensors: tuple[T, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a function may give tensors without values, while these are wanted.

    While parameters are made lazily, what autograd records has values; a script that declares that
    it traces wants shapes and types alone.
    """
    if func in SHAPE_ONLY or func in get_default_nowrap_functions() or writes(func, kwargs):
        return False
    if declared_tracing():
        return True
    return func not in CASTS and not any(tensor.requires_grad for tensor in tensors)


def _host_or_value(value: Any) -> Any:
    """In the place of a SambaTensor the tensor that it was made from."""
    return host_of(value) if isinstance(value, T) else value


def _handle_or_value(value: Any, handles: Mapping[int, T]) -> Any:
    """In the place of a tensor that a SambaTensor was made from the SambaTensor."""
    handle = handles.get(id(value)) if isinstance(value, T) else None
    if handle is None or host_of(handle) is not value:
        return value
    with torch._C.DisableTorchFunctionSubclass():
        if handle.shape != value.shape or T.stride(handle) != T.stride(value):
            set_data(handle, value.detach())
    return handle


def _promoted(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a function that torch refused once more, with types that it takes; None if it had them.

    What is traced is promoted so, and the same model must run eagerly.
    """
    new_args, new_kwargs = promoted(func, args, kwargs)
    if new_args is args and new_kwargs is kwargs:
        return None
    return func(*new_args, **new_kwargs)


def _adopt(cls: type[T], result: Any, tensors: tuple[T, ...]) -> None:
    """Makes every plain tensor of a result a ``cls``, except those the caller passed in."""
    if type(result) is T:
        if not any(result is tensor for tensor in tensors):
            result.__class__ = cls
    elif isinstance(result, (list, tuple)):
        for item in result:
            _adopt(cls, item, tensors)


def _on_empty(
    cls: type[T],
    func: Callable[..., Any],
    tensor: T,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs a torch function on an empty SambaTensor: casts it, fills it, or records the function.

    While parameters are made lazily, results are empty as well, and are computed when their values
    are needed; only what gives no tensors, such as ``item()``, looks at a temporary copy of them.
    Otherwise nothing is computed: an eager run of a lazy model should not cost that much unasked.
    """
    if func in CASTS and args[0] is tensor:
        return _cast_empty(cls, func, tensor, args, kwargs)
    recipe = vars(tensor).get("_materializer")
    lazy = isinstance(recipe, (Recipe, ViewRecipe))
    owns = not isinstance(recipe, ViewRecipe)
    if func is T.copy_ and args[0] is tensor and owns:
        if isinstance(recipe, SameAs):
            tensor.data = _fill_empty(recipe.tensor, *args[1:], **kwargs).data
            return tensor
        return _fill_empty(tensor, *args[1:], **kwargs)
    if lazy:
        result = record(cls, func, tensor, args, kwargs)
        if result is not NotImplemented:
            return result
        static = current_mode() is not None or declared_tracing()
        if static and not writes(func, kwargs):
            result = symbolic(cls, func, args, kwargs)
            if result is not NotImplemented:
                return result
            values = recipe(tensor)
            args, kwargs = mapped((args, kwargs), lambda arg: values if arg is tensor else arg)
            return dispatch(cls, func, args, kwargs)
        if static and owns:
            tensor.materialize_()  # pyright: ignore[reportAttributeAccessIssue]  # a SambaTensor
            return dispatch(cls, func, args, kwargs)
    operation = resolve_name(func) or getattr(func, "__name__", str(func))
    name: str = getattr(tensor, "sn_name", "")
    raise NoHostData(operation=operation, name=name, shape=tuple(tensor.shape))


def _new_empty(cls: type[T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    with torch._C.DisableTorchFunctionSubclass():
        tensor = T.new_empty(*args, **kwargs)
    tensor = lazily(cls, tensor)
    _adopt(cls, tensor, ())
    return tensor


def _fill_empty(tensor: T, source: Any, non_blocking: bool = False) -> T:
    """Copies values into an empty SambaTensor, as ``load_state_dict`` does."""
    values = source.torch_tensor() if hasattr(source, "torch_tensor") else source
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        filled = torch.empty(tuple(tensor.shape), dtype=tensor.dtype).copy_(values, non_blocking)
    tensor.data = filled
    return tensor


def _cast_empty(
    cls: type[T],
    func: Callable[..., Any],
    tensor: T,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Casts an empty SambaTensor by casting a stand-in without elements."""
    with torch._C.DisableTorchFunctionSubclass():
        cast = func(torch.empty(0, dtype=tensor.dtype), *args[1:], **kwargs)
        if not isinstance(cast, T):
            return cast
        if cast.dtype == tensor.dtype and func is not T.detach:
            return tensor
        grad = (
            tensor.requires_grad
            and (cast.is_floating_point() or cast.is_complex())
            and func is not T.detach
        )
        data = empty_data(tensor.shape, cast.dtype)
        result = T._make_subclass(cls, data, grad)
    keep_names(tensor, result)
    result._has_data = False  # pyright: ignore[reportAttributeAccessIssue]  # cls is SambaTensor
    materializer = vars(tensor).get("_materializer")
    if materializer is not None:
        # A cast is a copy: what is done to it later is not done to the source.
        make = "alias" if func is T.detach else "copy"
        result._materializer = getattr(materializer, make, lambda: materializer)()  # pyright: ignore[reportAttributeAccessIssue]  # cls is SambaTensor
    return result


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
