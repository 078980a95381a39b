"""Lazy parameters: modules built without memory for their parameters.

While it is on, every parameter that a module registers becomes an empty SambaParameter. Fills
and other in-place operations on it are recorded, and done when its values are needed, usually
when they are transferred to the device.

The module can be called as :func:`lazy_param`, since ``samba.lazy_param`` is the module.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.hooks import RemovableHandle

from samba.nn.parameter import SambaParameter
from samba.sambatensor import SambaTensor
from samba.support.slot import Slot
from samba.tensor.lazy_mode import PROVIDERS, LazyMode, current_mode, open_mode, set_mode
from samba.tensor.recipe import Recipe, ViewRecipe, empty_data
from samba.tensor.recording import record
from samba.tensor.rng import MultithreadedRNG, RandomSettings, fresh_seed

__all__ = [
    "MultithreadedRNG",
    "RNGProvider",
    "RNGProviderFactory",
    "disable_lazy_param",
    "enable_lazy_param",
    "lazy_param",
    "use_lazy_param",
]


INITIALISERS = tuple(name for name in vars(init) if name.endswith("_") and not name.startswith("_"))
"""Functions of ``torch.nn.init`` that fill a tensor."""


def _recorded(initialiser: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """An initialiser that is recorded as one call if it is called on a lazy parameter."""

    @functools.wraps(initialiser)
    def fill(*args: Any, **kwargs: Any) -> Any:
        tensor = args[0] if args else kwargs.get("tensor")
        recipe = getattr(tensor, "_materializer", None)
        if isinstance(recipe, (Recipe, ViewRecipe)) and not tensor._has_data:  # pyright: ignore[reportOptionalMemberAccess]  # a SambaTensor
            return record(SambaTensor, initialiser, tensor, args, kwargs)  # pyright: ignore[reportArgumentType]  # as above
        return initialiser(*args, **kwargs)

    return fill


_hook: Slot[RemovableHandle] = Slot()


def _follow_mode() -> None:
    """Hooks into registration and initialisation exactly while there is a mode."""
    hook, has_mode = _hook.value, current_mode() is not None
    if has_mode and hook is None:
        _hook.value = register_module_parameter_registration_hook(_registered)
        for name in INITIALISERS:
            setattr(init, name, _recorded(getattr(init, name)))
    elif hook is not None and not has_mode:
        _hook.value = None
        hook.remove()
        for name in INITIALISERS:
            setattr(init, name, getattr(init, name).__wrapped__)


def enable_lazy_param(
    seed: int | None = None,
    init_threads: int = 8,
    inverse_transform_sampling: bool = False,
    fp32_to_bf16_rounding: str = "nearest_even",
) -> None:
    """Makes parameters of modules lazy from now on.

    Args:
        seed: Seed of their random values, which then depend on it and on the order in which
            parameters are made alone. None takes a seed from torch's generator.
        init_threads: Threads to draw random values with; values do not depend on it.
        inverse_transform_sampling: Whether normal numbers are made from uniform ones by the
            inverse of the distribution function.
        fp32_to_bf16_rounding: ``"nearest_even"`` or ``"truncation"``.

    Raises:
        ArgumentError: A value is out of range.

    Example:
        >>> enable_lazy_param(seed=1)
        >>> layer = nn.Linear(400, 300)
        >>> disable_lazy_param()
        >>> layer.weight.has_data
        False
    """
    settings = RandomSettings(
        seed=fresh_seed() if seed is None else seed,
        threads=init_threads,
        inverse_transform_sampling=inverse_transform_sampling,
        fp32_to_bf16_rounding=fp32_to_bf16_rounding,
    )
    set_mode(LazyMode(settings))
    _follow_mode()


def disable_lazy_param() -> None:
    """Ends what :func:`enable_lazy_param` began; parameters made meanwhile stay lazy."""
    set_mode(None)
    _follow_mode()


def use_lazy_param() -> bool:
    """Whether parameters are made lazily now."""
    return current_mode() is not None


@contextmanager
def lazy_param(quantized: bool = False) -> Iterator[None]:
    """Makes the parameters of modules that are built inside lazy.

    Inside :func:`enable_lazy_param` it goes on with the settings and the seed of that.

    Args:
        quantized: Accepted; parameters keep the dtypes that the modules give them.

    Example:
        >>> with lazy_param():
        ...     layer = nn.Linear(4000, 1000)
        >>> layer.weight.has_data, layer.weight.shape
        (False, torch.Size([1000, 4000]))
    """
    try:
        with open_mode():
            _follow_mode()
            yield
    finally:
        _follow_mode()


def _registered(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    mode = current_mode()
    # Parameters that are empty or of another kind, such as those of lazy layers, stay as they are.
    if mode is None or type(parameter) is not nn.Parameter or parameter.is_meta:
        return
    recipe = mode.recipe(parameter.detach())
    torch.Tensor.data.__set__(parameter, empty_data(recipe.shape, recipe.dtype))  # pyright: ignore[reportAttributeAccessIssue]  # a descriptor
    parameter.__class__ = SambaParameter
    parameter._has_data = False  # pyright: ignore[reportAttributeAccessIssue]  # the class was assigned above
    parameter._materializer = recipe  # pyright: ignore[reportAttributeAccessIssue]  # the class was assigned above


class RNGProvider:
    """Gives streams of random numbers for materializers.

    Args:
        settings: How they are drawn.
        number: Which provider it is; each has streams of its own.
    """

    def __init__(self, settings: RandomSettings, number: int) -> None:
        self._settings, self._number = settings, number
        self._calls = 0

    def __call__(self) -> MultithreadedRNG:
        """The next stream: the n-th call gives the n-th stream, in every run of a program."""
        self._calls += 1
        return MultithreadedRNG(self._settings, (PROVIDERS, self._number, self._calls - 1))


class RNGProviderFactory:
    """Makes providers of random numbers with the settings of the lazy mode.

    Example:
        >>> provider = RNGProviderFactory().build_provider()
        >>> provider().normal(0.0, 0.02, (3, 4), dtype=torch.bfloat16).shape
        torch.Size([3, 4])
    """

    def build_provider(self) -> RNGProvider:
        """Makes a provider; outside of the lazy mode its seed is taken from torch's generator."""
        mode = current_mode() or LazyMode()
        return RNGProvider(mode.settings, mode.next_stream())


class _Callable(ModuleType):
    """This module: the name ``samba.lazy_param`` stands for it and for its function."""

    def __call__(self, quantized: bool = False) -> AbstractContextManager[None]:
        return lazy_param(quantized)


sys.modules[__name__].__class__ = _Callable
