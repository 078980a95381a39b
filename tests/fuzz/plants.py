"""Faults that are put into a worker on purpose, to see that the harness finds each kind."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from pef_schema import read
from pef_schema.verify_rules import Report


def _instead_of_verify(action: Callable[[], object]) -> Callable[[], None]:
    """A plant that runs when a file's meaning is to be checked."""

    def plant() -> None:
        real: Any = read.verify

        def verify(*args: Any, **keywords: Any) -> None:
            real(*args, **keywords)
            action()

        read.verify = verify

    return plant


def _blind() -> None:
    """The verifier no longer minds where an index points."""
    Report.index = lambda *_: None


def _foreign() -> None:
    raise KeyError("planted")


def _spin() -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        pass


def _lowerings() -> None:
    """Operations hang, end the process, take memory, or give another shape."""
    import jax
    import jax.numpy as jnp

    from emulator.ops import registry

    def hungry(x: jax.Array) -> jax.Array:
        # What a loop carries is in memory: XLA takes anything less into the sum.
        turns = 2 + (x.ravel()[0] > 0)
        large = jnp.zeros((9 << 25,), jnp.float32)  # 1.1 GiB
        return jax.lax.fori_loop(0, turns, lambda i, a: a.at[i].set(1), large).sum()

    bad: dict[str, Callable[[jax.Array], Any]] = {
        "exp": lambda x: jax.lax.while_loop(lambda a: jnp.any(a < jnp.inf), jnp.sin, x * 0 + 1),
        "sin": lambda x: os.kill(os.getpid(), 9),
        "cos": lambda x: os.abort(),
        "tan": hungry,
        "sinh": lambda x: jnp.ones((7, 7)),
        "cosh": lambda x: _foreign(),
    }
    for name, lower in bad.items():
        spec = registry.load_ops()[f"aten.{name}.default"]
        registry._OPS[spec.name] = dataclasses.replace(spec, lower=lower)


PLANTS: dict[str, Callable[[], None]] = {
    "foreign": _instead_of_verify(_foreign),
    "hang": _instead_of_verify(_spin),
    "abort": _instead_of_verify(os.abort),
    "exit": _instead_of_verify(lambda: os._exit(0)),
    "memory": _instead_of_verify(lambda: bytearray(2**30)),
    "blind": _blind,
    "lowerings": _lowerings,
}
"""By name; each takes effect when it is called."""
