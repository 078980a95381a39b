"""Host to device and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.inside import Contestant, seconds_of
from bench.measurement import OURS, Results
from bench.suites import Settings

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}


def transfer(settings: Settings, results: Results) -> None:
    """Time transfers of arrays of several sizes."""
    settings.tell("transfer")
    for name in (OURS, "eager", "jax"):
        for label, nbytes in SIZES.items():
            with settings.worker("logreg-1", name) as worker:
                times = worker.ask(transfer_seconds, nbytes=nbytes, count=10 * settings.rounds)
            results.add("transfer", label, name, "to device", "s", times["to_device"])
            results.add("transfer", label, name, "to host", "s", times["to_host"])


def transfer_seconds(contestant: Contestant, nbytes: int, count: int) -> dict[str, Any]:
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
            times[name].append(seconds_of(run))
    return times


def _ours(size: int) -> dict[str, Callable[[], object]]:
    from bench.peers.ours import moving  # noqa: PLC0415  # a process loads its own library only

    return moving(size)


def _eager(size: int) -> dict[str, Callable[[], object]]:
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
