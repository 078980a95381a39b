"""Functions whose results are empty while parameters are made lazily: computed when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from samba.support.tracing import declared_tracing
from samba.tensor.empty import empty_with
from samba.tensor.lazy_mode import LazyMode, current_mode
from samba.tensor.recipe import Recipe, ViewRecipe
from samba.tensor.rng import RandomSettings
from samba.tensor.views import host_of

T = torch.Tensor


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
            found = values.get(id(self))
            if found is None:
                args, kwargs = _each(self.args, _values), _each(self.kwargs, _values)
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.seed)
                    found = self.function(*args, **kwargs)
                if self.number >= 0:
                    found = found[self.number]
                values[id(self)] = found
            return found.clone(memory_format=memory_format)
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
            shapes = _each(args, _shape), _each(kwargs, _shape)
            result = func(*shapes[0], **shapes[1])
        except (NotImplementedError, RuntimeError, TypeError):
            return NotImplemented  # torch cannot say without values, or refuses: it will say so
        alone = isinstance(result, T)
        results = (result,) if alone else result
        if type(results) not in (list, tuple) or not all(isinstance(r, T) for r in results):
            return NotImplemented
        given: list[T] = []
        _each(shapes, lambda value: given.append(value) if isinstance(value, T) else None)
        views = not declared_tracing() and any(r._base is not None for r in results)
        if views or any(r is tensor for r in results for tensor in given):
            return NotImplemented  # a view, through which its tensor can be changed, or itself
        kept_args, kept_kwargs = _each(args, _kept), _each(kwargs, _kept)
    stream = mode.next_stream()
    made = []
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
        made.append(empty_with(cls, shape, item.dtype, recipe))
    return made[0] if alone else type(results)(made)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_each(item, change) for item in value)
    if type(value) is dict:
        return {key: _each(item, change) for key, item in value.items()}
    return change(value)


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


def _kept(value: Any) -> Any:
    recipe = _lazy(value)
    if recipe is not None:
        return _Operand(recipe=recipe.copy(), dtype=value.dtype)
    return host_of(value).detach().clone() if isinstance(value, T) else value


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, _Operand) else value
