"""What a kernel is asked to compute, and the candidates for it: the first that applies is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from emulator.kernels.windows import Window
from emulator.native.convolution import ConvolutionPart as Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product of matrices, ``(m, k)`` times ``(k, n)``.

    Args:
        dtype: Name of the operands' dtype.
        turned_a, turned_b: Whether an operand lies with its two axes exchanged.
        batch: How many products.
        m, k, n: Rows, summed length and columns.
    """

    dtype: str
    turned_a: bool
    turned_b: bool
    batch: int
    m: int
    k: int
    n: int

    @property
    def operations(self) -> int:
        """Floating point operations."""
        return 2 * self.batch * self.m * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution, or one of its gradients.

    Args:
        part: Which.
        dtype: Name of the operands' dtype.
        batch: Images.
        channels, features: Of the convolution's data and of its result.
        groups: Feature groups.
        size: Of the data, per spatial axis.
        window: The window.
    """

    part: Part
    dtype: str
    batch: int
    channels: int
    features: int
    groups: int
    size: tuple[int, ...]
    window: Window

    @classmethod
    def of(
        cls,
        part: Part,
        dtype: object,
        x: tuple[int, ...],
        w: tuple[int, ...],
        window: Window,
        groups: int,
    ) -> Convolution:
        """The convolution of data ``(N, C, ...)`` with kernels ``(O, C / groups, ...)``.

        Args:
            part: What of it is computed.
            dtype: Of the operands.
            x, w: Shapes of data and kernels.
            window: The window.
            groups: Feature groups.
        """
        return cls(
            part=part, dtype=str(dtype), batch=x[0], channels=x[1], features=w[0], groups=groups,
            size=tuple(x[2:]), window=window,
        )  # fmt: skip

    @property
    def tiled(self) -> bool:
        """Whether windows of one group lie side by side and cover the data, nothing left over."""
        return self.groups == 1 and self.window.tiles(self.size)

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return math.prod(self.window.kernel)

    @property
    def empty(self) -> bool:
        """Whether nothing is multiplied: no images, channels, features, places or taps.

        Example:
            >>> window = Window(kernel=(3,), stride=(1,), dilation=(1,), low=(0,), high=(0,),
            ...     out=(2,))
            >>> Convolution.of(Part.FORWARD, "float32", (0, 8, 4), (8, 8, 3), window, 1).empty
            True
        """
        lengths = (self.batch, self.channels, self.features)
        return min(*lengths, *self.size, *self.window.out, *self.window.kernel) < 1

    @property
    def operations(self) -> int:
        """Floating point operations, those at the rim counted as well."""
        places = self.batch * math.prod(self.window.out) * self.features
        return 2 * places * self.channels // self.groups * self.taps


P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[P]):
    """One way to compute something.

    All candidates of a kind take the same arguments and give the same values, within what the order
    of a float32 sum makes of them: products of bfloat16 and float16 are accumulated in float32.

    Args:
        name: What people call it.
        applies: Whether it can compute a problem, and is the best of those that come after it.
        run: Computes it.
    """

    name: str
    applies: Callable[[P], bool]
    run: Callable[..., Any]


def applicable(problem: P, candidates: Sequence[Candidate[P]]) -> list[Candidate[P]]:
    """Candidates that can compute a problem here, in their order.

    Args:
        problem: The problem.
        candidates: All of its kind.
    """
    return [c for c in candidates if c.applies(problem)]


def choose(problem: P, candidates: Sequence[Candidate[P]]) -> Candidate[P]:
    """The candidate that a problem takes.

    Args:
        problem: The problem.
        candidates: All of its kind, the best first; one of them applies to everything.

    Returns:
        The first that applies.

    Example:
        >>> few = Candidate(name="few", applies=lambda n: n < 3, run=sum)
        >>> many = Candidate(name="many", applies=lambda n: True, run=sum)
        >>> choose(2, [few, many]).name, choose(5, [few, many]).name
        ('few', 'many')
    """
    return next(c for c in candidates if c.applies(problem))
