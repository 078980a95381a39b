"""Best rates of the machine: matrix products and copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.inside import Contestant
from emulator.costs.timing import jax_product_rate, shortest


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
    if contestant.contender == "jax":
        return {"rate": jax_product_rate(shape, dtype, seconds)}
    import torch  # noqa: PLC0415  # a contender's process loads its own library only

    m, k, n = shape
    a = torch.randn(m, k, dtype=getattr(torch, dtype))
    b = torch.randn(k, n, dtype=getattr(torch, dtype))
    out = torch.empty(m, n, dtype=getattr(torch, dtype))
    took = shortest(lambda: torch.matmul(a, b, out=out), seconds)
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
    return {"rate": 2.0 * nbytes / shortest(lambda: target.copy_(source), seconds)}
