"""The blocks of queries by which causal attention leaves out what its mask hides."""

from __future__ import annotations

_LEAST_BLOCK, _STEP = 64, 16
"""Queries of the smallest block, and what their number is a multiple of."""
_MOST_BLOCKS = 4
"""More of them save little: four leave five eighths of all scores, eight nine sixteenths."""


def causal_blocks(queries: int, keys: int) -> tuple[tuple[int, int, int], ...]:
    """Blocks of queries by which causal attention leaves out what no query of a block sees.

    Args:
        queries, keys: How many there are.

    Returns:
        Begin and end of each block, and the number of keys that its queries see.

    Example:
        >>> causal_blocks(256, 256)
        ((0, 64, 64), (64, 128, 128), (128, 192, 192), (192, 256, 256))
        >>> causal_blocks(100, 100)
        ((0, 64, 64), (64, 100, 100))
    """
    even = -(-queries // (_MOST_BLOCKS * _STEP)) * _STEP
    size = max(_LEAST_BLOCK, even)
    begins = range(0, queries, size)
    return tuple((at, min(at + size, queries), min(at + size, queries, keys)) for at in begins)
