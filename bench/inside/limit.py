"""Best rates of the machine: matrix products and copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.inside import Contestant


def _best(action: Callable[[], object], seconds: float) -> float:
    """Shortest time of an action that is repeated for some seconds."""
    action()
    least, stop = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        action()
        now = time.perf_counter()
        least = min(least, now - start)
        if now > stop:
            return least


def gemm(
    contestant: Contestant, shape: Sequence[int], dtype: str, seconds: float
) -> dict[str, Any]:
    """Time ``(m, k) @ (k, n)``.

    Args:
        contestant: ``eager`` for torch, ``jax`` for XLA.
        shape: ``m, k, n``.
        dtype: ``float32`` or ``bfloat16``.
        seconds: How long to try.

    Returns:
        ``rate`` in floating point operations a second.
    """
    m, k, n = shape
    if contestant.contender == "jax":
        import jax  # noqa: PLC0415  # a contender's process loads its own library only
        import jax.numpy as jnp  # noqa: PLC0415  # as above

        x = jax.random.normal(jax.random.key(0), (m, k), dtype)
        y = jax.random.normal(jax.random.key(1), (k, n), dtype)
        # Without a float32 result XLA takes a slow way for bfloat16.
        product = jax.jit(
            lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(dtype)
        )
        took = _best(lambda: product(x, y).block_until_ready(), seconds)
    else:
        import torch  # noqa: PLC0415  # as above

        a = torch.randn(m, k, dtype=getattr(torch, dtype))
        b = torch.randn(k, n, dtype=getattr(torch, dtype))
        out = torch.empty(m, n, dtype=getattr(torch, dtype))
        took = _best(lambda: torch.matmul(a, b, out=out), seconds)
    return {"rate": 2.0 * m * k * n / took}


def copy(contestant: Contestant, nbytes: int, seconds: float) -> dict[str, Any]:
    """Time copies from mapped memory to mapped memory, with torch's threads.

    Args:
        contestant: ``eager``.
        nbytes: Size of what is copied.
        seconds: How long to try.

    Returns:
        ``rate`` in bytes a second, read and written ones counted.
    """
    import torch  # noqa: PLC0415  # as above

    source = torch.ones(nbytes // 4)
    target = torch.zeros(nbytes // 4)
    return {"rate": 2.0 * nbytes / _best(lambda: target.copy_(source), seconds)}
