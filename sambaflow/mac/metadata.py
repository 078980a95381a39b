"""Compiler hints that scripts hand to ``samba.session.compile(metadata=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["ConvTilingMetadata", "TilingMetadata"]


@dataclass(frozen=True, kw_only=True)
class TilingMetadata:
    """How a tensor was sized before a script cut it into tiles.

    The device here needs no tiling; the hint is accepted and changes nothing.

    Args:
        original_size: Sizes before tiling, outermost first.

    Example:
        >>> {TilingMetadata.key: TilingMetadata(original_size=[1, 512])}
        {'tiling': TilingMetadata(original_size=[1, 512])}
    """

    key: ClassVar[str] = "tiling"

    original_size: list[int]


@dataclass(frozen=True, kw_only=True)
class ConvTilingMetadata(TilingMetadata):
    """How a convolution was sized before a script cut its input into tiles.

    Args:
        original_size: Sizes of the input before tiling, outermost first.

    Example:
        >>> {ConvTilingMetadata.key: ConvTilingMetadata(original_size=[1, 3, 512, 512])}
        {'conv_tiling': ConvTilingMetadata(original_size=[1, 3, 512, 512])}
    """

    key: ClassVar[str] = "conv_tiling"
