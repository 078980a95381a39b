"""Time that data takes between host and device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.inside import Contestant


def transfer(contestant: Contestant, nbytes: int, count: int) -> dict[str, Any]:
    """Time transfers of one float32 array.

    For this project it is a weight, moved by ``session.to_rdu`` and ``session.to_cpu``. For torch
    it is a copy into memory that is there, for jax a copying ``jnp.array`` and ``np.array``.

    Args:
        contestant: ``ours``, ``eager`` or ``jax``.
        nbytes: Size of the array.
        count: Samples.

    Returns:
        Lists of seconds: ``to_device`` and ``to_host``.
    """
    make = {"ours": _ours, "eager": _eager, "jax": _jax}[contestant.contender]
    runs = make(nbytes // 4)
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def _ours(size: int) -> dict[str, Callable[[], object]]:
    from bench.inside import holding  # noqa: PLC0415  # a process loads its own library only

    return holding.transfers(size)


def _eager(size: int) -> dict[str, Callable[[], object]]:
    import torch  # noqa: PLC0415  # as above

    source, target = torch.zeros(size), torch.ones(size)
    return {"to_device": lambda: target.copy_(source), "to_host": lambda: source.copy_(target)}


def _jax(size: int) -> dict[str, Callable[[], object]]:
    import jax.numpy as jnp  # noqa: PLC0415  # as above

    host = np.zeros(size, np.float32)
    device = jnp.array(host)
    return {
        "to_device": lambda: jnp.array(host).block_until_ready(),
        "to_host": lambda: np.array(device),
    }
