"""Torch functions on tensors without values.

In-place operations go into the recipe of the tensor, and views know their place in it. Where
parameters are made lazily, or a script declares that it traces, the results of other functions are
empty as well, and are computed when they are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from samba.support.nesting import flat, mapped
from samba.support.tracing import declared_tracing
from samba.tensor.labels import keep_names
from samba.tensor.lazy_mode import LazyMode, current_mode
from samba.tensor.recipe import (
    SELF,
    Function,
    Recipe,
    RecordedCall,
    S,
    SameAs,
    StridedView,
    T,
    ViewRecipe,
    empty_with,
)
from samba.tensor.rng import RandomSettings
from samba.tensor.views import host_of

RESHAPES = frozenset(
    {"resize_", "resize_as_", "set_", "squeeze_", "t_", "transpose_", "unsqueeze_"}
)
"""In-place functions that change the shape: no recipe tells of them."""

_OPERATORS = frozenset(
    f"__i{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)


def record(
    cls: type[T], func: Function, tensor: T, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Records a torch function on an empty tensor whose values have a recipe.

    Args:
        cls: The SambaTensor class.
        func: The function.
        tensor: The empty tensor, one of its arguments.
        args, kwargs: All of its arguments.

    Returns:
        What the function returns: the tensor after an in-place operation, an empty view after a
        view function, and NotImplemented for any other function.
    """
    recipe = vars(tensor)["_materializer"]
    name = getattr(func, "__name__", "")
    target = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
    if target is not tensor or name in RESHAPES:
        return NotImplemented
    if not _is_in_place(name):
        return _view(cls, func, recipe, args, kwargs)
    root, view = _parts(recipe)

    def store(arg: Any) -> Any:
        return _stored(arg, tensor)

    call = RecordedCall(
        view=view,
        function=func,
        args=mapped(args, store),
        kwargs=mapped(kwargs, store),
    )
    _try(call, root)
    root.record(call)
    return None if name == "__setitem__" else tensor


def _parts(recipe: Recipe | ViewRecipe) -> tuple[Recipe, StridedView | None]:
    return (recipe, None) if isinstance(recipe, Recipe) else (recipe.recipe, recipe.view)


def writes(func: Function, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function changes one of its arguments, as far as its name tells."""
    return _is_in_place(getattr(func, "__name__", "")) or kwargs.get("out") is not None


def _is_in_place(name: str) -> bool:
    trailing = name.endswith("_") and not name.endswith("__")
    return trailing or name == "__setitem__" or name in _OPERATORS


def _stored(arg: Any, target: T) -> Any:
    """An argument as a recipe keeps it: tensors as they are now, not as they will be."""
    if arg is target:
        return SELF
    if isinstance(arg, T):
        plain = arg.torch_tensor() if hasattr(arg, "torch_tensor") else arg  # pyright: ignore[reportAttributeAccessIssue]  # SambaTensor
        return plain.detach().clone()
    return arg


def _try(call: RecordedCall, recipe: Recipe) -> None:
    """Tries a call on a tensor without memory: what torch refuses is refused now, not later."""

    def there(arg: Any) -> Any:
        return arg.to("meta") if isinstance(arg, T) and arg.dim() else arg

    trial = RecordedCall(
        view=call.view,
        function=call.function,
        args=tuple(there(a) for a in call.args),
        kwargs={k: there(a) for k, a in call.kwargs.items()},
    )
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        try:
            trial.run(_probe(recipe))
        except NotImplementedError:  # torch cannot say without memory
            return


def _probe(recipe: Recipe) -> T:
    return torch.empty(recipe.shape, dtype=recipe.dtype, device="meta")


def _view(
    cls: type[T],
    func: Function,
    recipe: Recipe | ViewRecipe,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    root, view = _parts(recipe)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        whole = _probe(root)
        try:
            probe = whole if view is None else view.of(whole)
            result = func(probe, *args[1:], **kwargs)
        except (RuntimeError, TypeError):  # not for tensors without memory, so not a view
            return NotImplemented
    results = result if isinstance(result, (tuple, list)) else (result,)
    if not results or not all(isinstance(r, T) and r._base is whole for r in results):
        return NotImplemented
    if any(item.dtype != root.dtype for item in results):
        return NotImplemented
    views = []
    for item in results:
        shape = tuple(item.shape)
        part = StridedView(shape=shape, strides=item.stride(), offset=int(item.storage_offset()))
        views.append(empty_with(cls, shape, args[0].dtype, ViewRecipe(root, part)))
    return views[0] if results[0] is result else type(result)(views)


def alias(cls: type[S], tensor: T) -> S:
    """An empty tensor of the same memory: what ``.data`` of an empty tensor is."""
    recipe = vars(tensor).get("_materializer")
    recipe = recipe.alias() if isinstance(recipe, (Recipe, ViewRecipe)) else SameAs(tensor)
    result = empty_with(cls, tuple(tensor.shape), tensor.dtype, recipe)
    keep_names(tensor, result)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operand:
    """A lazy argument as it was when the function was called."""

    recipe: Recipe | ViewRecipe
    dtype: torch.dtype

    def values(self) -> T:
        """Its values."""
        return self.recipe(torch.empty((), dtype=self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A function that is called each time one of its results is needed.

    Args:
        function: The function.
        args, kwargs: Its arguments, with an :class:`_Operand` for each lazy tensor.
        number: Which of the results; -1 where there is one alone.
        seed: Of torch's generator, for functions that draw.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    seed: int

    def clone(self, *, memory_format: torch.memory_format) -> T:
        """The values of the result."""
        values = _computing.values
        outermost = values is None
        if values is None:
            values = _computing.values = {}
        try:
            result = values.get(id(self))
            if result is None:
                args, kwargs = mapped(self.args, _values), mapped(self.kwargs, _values)
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.seed)
                    result = self.function(*args, **kwargs)
                if self.number >= 0:
                    result = result[self.number]
                values[id(self)] = result
            return result.clone(memory_format=memory_format)
        finally:
            if outermost:
                _computing.values = None


_declared = LazyMode(RandomSettings(seed=0))
"""The mode where a script declares that it traces: results are of shapes and types."""


class _Computing(threading.local):
    """Results that lead to the one that is computed now: each is computed once."""

    values: dict[int, T] | None = None


_computing = _Computing()


def symbolic(
    cls: type[T], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Results of a torch function without values.

    Args:
        cls: The SambaTensor class.
        func: A function that changes nothing in place.
        args, kwargs: Its arguments.

    Returns:
        Empty tensors with materializers; NotImplemented if the function gives something else, such
        as views or its arguments, or its shapes depend on values.
    """
    mode = current_mode() or (_declared if declared_tracing() else None)
    if mode is None:
        return NotImplemented
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        try:
            shapes = mapped(args, _shape), mapped(kwargs, _shape)
            result = func(*shapes[0], **shapes[1])
        except (NotImplementedError, RuntimeError, TypeError):
            return NotImplemented  # torch cannot say without values, or refuses: it will say so
        alone = isinstance(result, T)
        results = (result,) if alone else result
        if type(results) not in (list, tuple) or not all(isinstance(r, T) for r in results):
            return NotImplemented
        arguments = [value for value in flat(shapes) if isinstance(value, T)]
        views = not declared_tracing() and any(r._base is not None for r in results)
        if views or any(r is tensor for r in results for tensor in arguments):
            return NotImplemented  # a view, through which its tensor can be changed, or itself
        kept_args, kept_kwargs = mapped(args, _keep), mapped(kwargs, _keep)
    stream = mode.next_stream()
    tensors = []
    for number, item in enumerate(results):
        call = _Call(
            function=func,
            args=kept_args,
            kwargs=kept_kwargs,
            number=-1 if alone else number,
            seed=mode.settings.seed ^ (stream << 20),
        )
        shape = tuple(item.shape)
        recipe = Recipe(shape, item.dtype, call, mode.settings, mode.next_stream())
        tensors.append(empty_with(cls, shape, item.dtype, recipe))
    return tensors[0] if alone else type(results)(tensors)


def _lazy(value: Any) -> Recipe | ViewRecipe | None:
    recipe = vars(value).get("_materializer") if isinstance(value, T) else None
    has_data = getattr(value, "_has_data", True)
    return recipe if isinstance(recipe, (Recipe, ViewRecipe)) and not has_data else None


def _shape(value: Any) -> Any:
    """A tensor without memory; a number in a tensor stays, as it may be asked for."""
    if not isinstance(value, T):
        return value
    if _lazy(value) is None and value.dim() == 0:
        return host_of(value)
    return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")


def _keep(value: Any) -> Any:
    recipe = _lazy(value)
    if recipe is not None:
        return _Operand(recipe=recipe.copy(), dtype=value.dtype)
    return host_of(value).detach().clone() if isinstance(value, T) else value


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, _Operand) else value
