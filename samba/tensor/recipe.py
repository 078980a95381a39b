"""Tensors without values, and how the values of a lazy parameter are made.

A recipe holds the in-place operations on the parameter, recorded to be run when it needs values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samba.tensor.rng import MultithreadedRNG, RandomSettings, to_bfloat16

T = torch.Tensor
S = TypeVar("S", bound=torch.Tensor)
Function = Callable[..., Any]

OVERWRITES = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "constant_",
        "copy_",
        "dirac_",
        "exponential_",
        "eye_",
        "fill_",
        "geometric_",
        "kaiming_normal_",
        "kaiming_uniform_",
        "log_normal_",
        "normal_",
        "ones_",
        "orthogonal_",
        "random_",
        "sparse_",
        "trunc_normal_",
        "uniform_",
        "xavier_normal_",
        "xavier_uniform_",
        "zero_",
        "zeros_",
    }
)
"""In-place functions after which nothing is left of the values before."""


class Self(enum.Enum):
    """Stands for the tensor that an operation was called on."""

    SELF = enum.auto()


SELF = Self.SELF


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedView:
    """A view of a row-major tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This view of a tensor."""
        return tensor.as_strided(self.shape, self.strides, self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A recorded in-place operation.

    Args:
        view: The view of the parameter that it was called on, None for all of it.
        function: What was called.
        args, kwargs: Its arguments; :data:`SELF` stands for the view.
    """

    view: StridedView | None
    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, tensor: torch.Tensor) -> None:
        """Make the call on a tensor with values."""
        if self.view is not None:
            tensor = self.view.of(tensor)
        args = [tensor if arg is SELF else arg for arg in self.args]
        kwargs = {k: tensor if arg is SELF else arg for k, arg in self.kwargs.items()}
        self.function(*args, **kwargs)


class Computed(Protocol):
    """Values that are computed each time they are needed."""

    def clone(self, *, memory_format: torch.memory_format) -> torch.Tensor:
        """The values as a new tensor."""
        ...


@dataclass(slots=True)
class Recipe:
    """A materializer: gives the values that the recorded operations lead to, each time the same.

    Args:
        shape, dtype: Of the parameter when it was made.
        base: What it was made from, or what computes that; None once all of it was overwritten.
        settings: How random numbers are drawn.
        stream: Number of the parameter's stream of random numbers.
        calls: In-place operations since.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    base: torch.Tensor | Computed | None
    settings: RandomSettings
    stream: int
    calls: list[RecordedCall] = field(default_factory=list)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes the values.

        Args:
            tensor: The empty tensor that they are for.

        Returns:
            A new plain tensor of its dtype.
        """
        return self.cast(self.values(), tensor.dtype)

    def cast(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Values in another dtype, rounded as the settings say."""
        if (values.dtype, dtype) == (torch.float32, torch.bfloat16):
            return to_bfloat16(values, self.settings.fp32_to_bf16_rounding)
        return values.to(dtype)

    def values(self) -> torch.Tensor:
        """The values in the parameter's first dtype."""
        rng = MultithreadedRNG(self.settings, (self.stream,))
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            if self.base is None:
                values = torch.empty(self.shape, dtype=self.dtype)
            else:
                values = self.base.clone(memory_format=torch.contiguous_format)
            with torch.random.fork_rng(devices=[]), Drawing(rng):
                torch.manual_seed(rng.initial_seed())
                for call in self.calls:
                    call.run(values)
        return values

    def record(self, call: RecordedCall) -> None:
        """Adds an operation; one that overwrites everything takes the place of those before it."""
        if call.view is None and call.function.__name__ in OVERWRITES:
            self.calls.clear()
            self.base = None
        self.calls.append(call)

    def alias(self) -> ViewRecipe:
        """The recipe of another tensor of the same memory: operations on it are recorded here."""
        return ViewRecipe(self, None)

    def copy(self) -> Recipe:
        """The same recipe, to go its own way from here."""
        return Recipe(
            self.shape, self.dtype, self.base, self.settings, self.stream, list(self.calls)
        )


@dataclass(slots=True)
class ViewRecipe:
    """The recipe of a view of a lazy parameter.

    Args:
        recipe: The parameter's.
        view: Which part of it, None for all.
    """

    recipe: Recipe
    view: StridedView | None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes the values of the view."""
        values = self.recipe.values()
        if self.view is not None:
            values = self.view.of(values)
        return self.recipe.cast(values, tensor.dtype)

    def alias(self) -> ViewRecipe:
        """The recipe of another tensor of the same memory."""
        return self

    def copy(self) -> ViewRecipe:
        """The view of a copy of the recipe."""
        return ViewRecipe(self.recipe.copy(), self.view)


@dataclass(frozen=True, slots=True)
class SameAs:
    """The materializer of another tensor of the memory of an empty one: its ``.data``.

    Args:
        tensor: The empty SambaTensor.
    """

    tensor: Any

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Makes the values that the other tensor would have."""
        return self.tensor.torch_tensor()


class Drawing(TorchDispatchMode):
    """While active, normal and uniform fills draw from a stream instead of torch's generator.

    A fill that names its own generator keeps it. It acts below torch's functions, because
    those of ``torch.nn.init`` escape from a mode above them.
    """

    def __init__(self, rng: MultithreadedRNG) -> None:
        super().__init__()
        aten = torch.ops.aten
        self._fill: dict[Any, Function] = {
            aten.normal_.default: rng.normal_,
            aten.uniform_.default: rng.uniform_,
        }

    def __torch_dispatch__(
        self,
        func: Function,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        fill = self._fill.get(func)
        if fill is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        return fill(*args)


def empty_data(shape: Iterable[int], dtype: torch.dtype) -> T:
    """A tensor of any shape that holds one element's memory: every stride is zero."""
    return torch.empty((), dtype=dtype).expand(tuple(shape))


def empty_with(cls: type[S], shape: tuple[int, ...], dtype: torch.dtype, recipe: Any) -> S:
    """An empty SambaTensor with a materializer.

    Args:
        cls: The SambaTensor class.
        shape, dtype: Of the tensor.
        recipe: The materializer.
    """
    result = T._make_subclass(cls, empty_data(shape, dtype), False)
    result._has_data = False  # pyright: ignore[reportAttributeAccessIssue]  # cls is SambaTensor
    result._materializer = recipe  # pyright: ignore[reportAttributeAccessIssue]  # cls is SambaTensor
    return result
