"""Executables with oneDNN's calls stay in their process.

XLA has no form in which to write such a call: it takes it for a custom call of the usual kind, and
reads memory that is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from jax._src import config

__all__ = ["kept_nowhere"]


@contextmanager
def kept_nowhere() -> Iterator[None]:
    """While active, what this thread compiles enters no cache that a user has set up in jax.

    Example:
        >>> import jax
        >>> with kept_nowhere():
        ...     jax.config.jax_persistent_cache_min_compile_time_secs
        inf
    """
    with config.persistent_cache_min_compile_time_secs(math.inf):
        yield
