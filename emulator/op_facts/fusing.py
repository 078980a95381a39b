"""Which ops a compiler keeps out of memory, by computing them within what reads them.

XLA computes an elementwise op again in each of its readers rather than keep its result, as long as
all of them are loops over elements themselves; a result that a product or a convolution reads lies
in memory. What takes long for an element, such as an exponential, is not computed twice.
"""

from __future__ import annotations

import enum


class Fusing(enum.Enum):
    """What becomes of a result, and of what is read for it."""

    VIEW = "view"
    """The result is what the op takes, under another shape."""
    CHEAP = "cheap"
    """Elementwise: computed within each of its readers if all of these can hold it. Of a norm, what
    shifts and scales is; small moments lie in memory."""
    DEAR = "dear"
    """Elementwise and slow: computed within its reader if there is one alone."""
    REDUCES = "reduces"
    """What it reads may be computed within it; its own result lies in memory."""
    APART = "apart"
    """What it reads lies in memory, and so does its result."""

    @property
    def holds(self) -> bool:
        """Whether what it reads may be computed within it."""
        return self is not Fusing.APART
