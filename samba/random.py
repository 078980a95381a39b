"""Creation of SambaTensors: torch's creation functions with names and labels.

Every function takes torch's own arguments, then ``name``, ``batch_dim``, ``named_dims``,
``sized_dims`` and ``region_name`` as keywords; see ``SambaTensor`` for their meaning. Values
are those of the torch function from the same seed.
"""

from __future__ import annotations

import random as _random
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch

from samba.errors import ArgumentError, described
from samba.sambatensor import SambaTensor
from samba.support.given import whole_of

__all__ = [
    "arange",
    "bernoulli",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "multinomial",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "set_seed",
    "tensor",
    "zeros",
    "zeros_like",
]


_LAST_SEED = 2**32 - 1


class Creator(Protocol):
    """A torch creation function that names its result."""

    def __call__(
        self,
        *args: Any,
        name: str = "",
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        region_name: str | None = None,
        **kwargs: Any,
    ) -> SambaTensor: ...


def _creator(function_name: str, summary: str) -> Creator:
    function = getattr(torch, function_name)

    def create(
        *args: Any,
        name: str = "",
        batch_dim: int | None = None,
        named_dims: Iterable[str | None] | None = None,
        sized_dims: Iterable[str | None] | None = None,
        region_name: str | None = None,
        **kwargs: Any,
    ) -> SambaTensor:
        with torch._C.DisableTorchFunctionSubclass():
            values = function(*args, **kwargs)
        return SambaTensor(
            values,
            name=name,
            batch_dim=batch_dim,
            named_dims=named_dims,
            sized_dims=sized_dims,
            region_name=region_name,
        )

    create.__name__ = create.__qualname__ = function_name
    create.__doc__ = f"{summary} Arguments: those of ``torch.{function_name}``, then labels."
    return create


arange = _creator("arange", "Numbers from start to end in steps.")
bernoulli = _creator("bernoulli", "Zeros and ones, each one with the probability given.")
empty = _creator("empty", "Memory that is not initialised.")
empty_like = _creator("empty_like", "Memory that is not initialised, shaped as another tensor.")
eye = _creator("eye", "Ones on the diagonal, zeros elsewhere.")
full = _creator("full", "One value everywhere.")
full_like = _creator("full_like", "One value everywhere, shaped as another tensor.")
linspace = _creator("linspace", "Numbers at equal distances from start to end, both included.")
multinomial = _creator("multinomial", "Indices drawn with the weights given.")
normal = _creator("normal", "Normal numbers of the mean and standard deviation given.")
ones = _creator("ones", "Ones.")
ones_like = _creator("ones_like", "Ones, shaped as another tensor.")
rand = _creator("rand", "Uniform numbers in [0, 1).")
rand_like = _creator("rand_like", "Uniform numbers in [0, 1), shaped as another tensor.")
randint = _creator("randint", "Whole numbers in [0, high) or [low, high).")
randint_like = _creator("randint_like", "Whole numbers below high, shaped as another tensor.")
randn = _creator("randn", "Standard normal numbers.")
randn_like = _creator("randn_like", "Standard normal numbers, shaped as another tensor.")
randperm = _creator("randperm", "A random order of the numbers 0 to n - 1.")
tensor = _creator("tensor", "A copy of lists, numbers or arrays.")
zeros = _creator("zeros", "Zeros.")
zeros_like = _creator("zeros_like", "Zeros, shaped as another tensor.")


def set_seed(seed: int) -> None:
    """Seeds the random numbers of Python, NumPy and torch.

    Args:
        seed: Any whole number that the three accept: 0 to 2**32 - 1.

    Raises:
        ArgumentError: It is none, such as the text of an environment variable; nothing is seeded.

    Example:
        >>> set_seed(256)
        >>> first = randn(2)
        >>> set_seed(256)
        >>> bool((first == randn(2)).all())
        True
    """
    wanted = f"a whole number from 0 to {_LAST_SEED}"
    number = whole_of(seed, "set_seed(seed)", 0, wanted)
    if number > _LAST_SEED:
        raise ArgumentError(where="set_seed(seed)", found=described(seed), wanted=wanted)
    _random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
