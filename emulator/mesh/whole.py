"""Values that every chip computes as a whole, since XLA does not divide the operation rightly."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

__all__ = ["divided_by", "whole"]

_ON_EACH: ContextVar[jax.sharding.Sharding | None] = ContextVar("on_each", default=None)


@contextmanager
def divided_by(on_each: jax.sharding.Sharding) -> Generator[None, None, None]:
    """While active, this thread lowers for several chips, among which XLA divides the work.

    Args:
        on_each: The sharding with which each chip has the whole of an array.
    """
    before = _ON_EACH.set(on_each)
    try:
        yield
    finally:
        _ON_EACH.reset(before)


def whole(x: jax.Array) -> jax.Array:
    """A value that each of several chips has as a whole, and so has its gradient.

    Args:
        x: The value; of one chip alone it stays as it is.
    """
    on_each = _ON_EACH.get()
    return x if on_each is None else jax.lax.with_sharding_constraint(x, on_each)
