"""What a kernel is asked to compute, as far as the choice of one goes by it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Convolution", "Part", "Problem", "Product", "last_padding"]


class Problem(Protocol):
    """What a rule is asked about."""

    @property
    def dtype(self) -> str:
        """Name of the operands' dtype."""
        ...

    @property
    def category(self) -> str:
        """What has to be equal for one measurement to say something about another."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of one meaning for all problems of a category; positive where a rule is asked."""
        ...


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
    def category(self) -> str:
        """As :class:`Problem` has it.

        Example:
            >>> Product(
            ...     dtype="float32", turned_a=False, turned_b=True, batch=1, m=8, k=2, n=3
            ... ).category
            'product float32 nt'
        """
        form = "".join("t" if turned else "n" for turned in (self.turned_a, self.turned_b))
        return f"product {self.dtype} {form}{' batched' if self.batch > 1 else ''}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of products, rows, summed length and columns."""
        return self.batch, self.m, self.k, self.n

    @property
    def operations(self) -> int:
        """Floating point operations."""
        return 2 * self.batch * self.m * self.k * self.n


def last_padding(
    out: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    kernel: tuple[int, ...],
    low: tuple[int, ...],
    size: tuple[int, ...],
) -> tuple[int, ...]:
    """Padding after the data that windows read, per spatial axis; none where they end before it.

    Args:
        out: Positions.
        stride, dilation, kernel: Of the window.
        low: Padding before the data.
        size: Of the data.

    Example:
        >>> last_padding((4, 2), (1, 2), (1, 1), (3, 2), (1, 0), (4, 4))
        (1, 0)
    """
    axes = zip(out, stride, dilation, kernel, low, size, strict=True)
    return tuple(max(0, (o - 1) * s + d * (k - 1) + 1 - lo - n) for o, s, d, k, lo, n in axes)


class Part(enum.Enum):
    """What of a convolution is computed."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


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
        out: Of the result, per spatial axis.
        kernel, stride, dilation: Per spatial axis.
        low: Padding before the data, per spatial axis.
        tiled: Of an input gradient of one group, whether windows lie side by side and cover the
            data.
    """

    part: Part
    dtype: str
    batch: int
    channels: int
    features: int
    groups: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    tiled: bool = False

    @property
    def high(self) -> tuple[int, ...]:
        """Padding after the data that windows read, per spatial axis; none where they end before.

        Example:
            >>> Convolution(part=Part.FORWARD, dtype="float32", batch=1, channels=8, features=8,
            ...     groups=1, size=(4, 4), out=(4, 2), kernel=(3, 2), stride=(1, 2),
            ...     dilation=(1, 1), low=(1, 0)).high
            (1, 0)
        """
        return last_padding(self.out, self.stride, self.dilation, self.kernel, self.low, self.size)

    @property
    def category(self) -> str:
        """As :class:`Problem` has it.

        Example:
            >>> Convolution(part=Part.FORWARD, dtype="float32", batch=1, channels=8, features=8,
            ...     groups=8, size=(4, 4), out=(2, 2), kernel=(3, 3), stride=(1, 1),
            ...     dilation=(1, 1), low=(0, 0)).category
            'convolution 2d forward float32 3 depthwise'
        """
        words = [f"convolution {len(self.size)}d {self.part.value} {self.dtype}"]
        words.append("1" if max(self.kernel) == 1 else "3")
        if max(self.stride) > 1:
            words.append("tiled" if self.tiled else "strided")
        if self.groups > 1:
            words.append("depthwise" if self.groups == self.channels else "grouped")
        return " ".join(words)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images, places of an image, channels and features of a group, groups, taps."""
        return (
            self.batch,
            max(math.prod(self.out), 1),
            self.channels // self.groups,
            self.features // self.groups,
            self.groups,
            math.prod(self.kernel),
        )

    @property
    def empty(self) -> bool:
        """Whether nothing is multiplied: no images, channels, features, places or taps.

        Example:
            >>> Convolution(part=Part.FORWARD, dtype="float32", batch=0, channels=8, features=8,
            ...     groups=1, size=(4, 4), out=(2, 2), kernel=(3, 3), stride=(1, 1),
            ...     dilation=(1, 1), low=(0, 0)).empty
            True
        """
        lengths = (self.batch, self.channels, self.features)
        return min(*lengths, *self.size, *self.out, *self.kernel) < 1

    @property
    def operations(self) -> int:
        """Floating point operations, those at the rim counted as well."""
        places = self.batch * math.prod(self.out) * self.features
        return 2 * places * self.channels // self.groups * math.prod(self.kernel)
