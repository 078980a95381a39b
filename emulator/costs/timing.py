"""How best rates are timed: what the estimate and ``bench`` have in common.

Whoever measures another library goes by the same clock and the same shapes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from emulator.costs.roofline import Cache
from emulator.processor import own_processors

SHAPES: tuple[tuple[int, int, int], ...] = (
    (1024, 1024, 1024),
    (256, 1024, 1024),
    (1024, 384, 1536),
    (1024, 384, 8192),
    (2048, 2048, 2048),
)
"""``m, k, n`` of the products that are timed: the best of them counts."""

COPIED = 64 << 20
"""Bytes of the copy that goes to memory: no cache holds them twice."""

_NEAR = tuple(1 << shift for shift in range(18, 26))
"""Bytes of copies that caches may hold, source and target together."""
_LEAST_COPIED = 16 << 20
"""Bytes that each of many processors copies to memory."""
_GAIN = 1.1
"""A cache has to be faster than what comes behind it by this to count."""
_STEPS_IN_A_ROW = 4 << 20
"""Bytes that a thread copies before it looks at the clock, so that small copies outweigh that."""


def shortest(action: Callable[[], object], seconds: float) -> float:
    """Shortest time of an action that is repeated for some seconds.

    Args:
        action: What to time; it runs once before.
        seconds: How long to try; it is timed once at least.

    Returns:
        Seconds.

    Example:
        >>> 0 <= shortest(lambda: None, 0.0) < 1
        True
    """
    action()
    least, stop = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        action()
        now = time.perf_counter()
        least = min(least, now - start)
        if now > stop:
            return least


def jax_product_rate(shape: Sequence[int], dtype: str, seconds: float) -> float:
    """The rate at which XLA computes ``(m, k) @ (k, n)``.

    Args:
        shape: ``m, k, n``.
        dtype: A floating type.
        seconds: How long to try.

    Returns:
        Operations a second.
    """
    import jax  # noqa: PLC0415  # a machine that is read from a file needs no jax
    import jax.numpy as jnp  # noqa: PLC0415  # as above

    lib, arrays = cast("Any", jax), cast("Any", jnp)  # jax types what is used here in part
    m, k, n = shape
    x = lib.random.normal(lib.random.key(0), (m, k), dtype)
    y = lib.random.normal(lib.random.key(1), (k, n), dtype)

    def product(a: Any, b: Any) -> Any:
        # Without a float32 result XLA takes a slow way for bfloat16.
        wide = "float32" if a.dtype.itemsize < 4 else a.dtype
        return arrays.matmul(a, b, preferred_element_type=wide).astype(dtype)

    run = lib.jit(product)
    return 2.0 * m * k * n / shortest(lambda: run(x, y).block_until_ready(), seconds)


def memory_rates(seconds: float) -> tuple[float, tuple[Cache, ...]]:
    """Measure memory, with all processors that this process may use.

    Args:
        seconds: How long to try each size.

    Returns:
        Bytes a second from and to memory; and the caches that are faster, the smallest first.
    """
    far = max(COPIED // processors(), _LEAST_COPIED)
    memory = max(_copy_rate(far, seconds), _read_rate(far, seconds))
    caches: list[Cache] = []
    behind = memory
    for nbytes in reversed(_NEAR):
        rate = max(_copy_rate(nbytes // 2, seconds / 4), _read_rate(nbytes, seconds / 4))
        if rate > _GAIN * behind:
            # Each processor has its own part of what is copied.
            caches.append(Cache(nbytes=float(nbytes * processors()), bandwidth=rate))
            behind = rate
    return memory, tuple(reversed(caches))


def _copy_rate(nbytes: int, seconds: float) -> float:
    """Bytes a second, read and written ones, of copies of so many bytes by every processor."""
    pairs = [(np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)) for _ in range(processors())]
    rows = max(_STEPS_IN_A_ROW // nbytes, 1)

    def copy(worker: int) -> None:
        source, target = pairs[worker]
        for _ in range(rows):
            np.copyto(target, source)

    return 2.0 * nbytes * rows * len(pairs) / _shortest_together(copy, seconds)


def _read_rate(nbytes: int, seconds: float) -> float:
    """Bytes a second of looking for the largest of so many bytes by every processor."""
    arrays = [np.ones(nbytes // 4, np.float32) for _ in range(processors())]
    rows = max(_STEPS_IN_A_ROW // nbytes, 1)

    def read(worker: int) -> None:
        for _ in range(rows):
            arrays[worker].max()

    return float(nbytes) * rows * len(arrays) / _shortest_together(read, seconds)


def _shortest_together(action: Callable[[int], None], seconds: float) -> float:
    """Shortest time in which all processors do something once, all at a time."""
    count = processors()
    if count == 1:
        return shortest(lambda: action(0), seconds)
    gate = threading.Barrier(count)
    going = True

    def work(worker: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            while True:
                gate.wait()
                if not going:
                    return
                action(worker)
                gate.wait()

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(1, count)]
    for thread in threads:
        thread.start()

    def once() -> None:
        gate.wait()
        action(0)
        gate.wait()

    try:
        least = shortest(once, seconds)
        going = False
        gate.wait()
    except BaseException:
        gate.abort()
        raise
    finally:
        for thread in threads:
            thread.join(timeout=10)
    return least


def processors() -> int:
    """How many processors this process may use."""
    return len(own_processors())
