"""Contenders that are several replicas: how they are asked, and what each of them does."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np

from bench.peers import REPLICA
from bench.peers.ours import loaded
from bench.process import Contestant, Worker
from emulator.replicas.comm.link import SlowLink
from pef_schema.program import Role
from samba.distributed import job as jobs
from samba.distributed.environment import share_of_cores

REPLICAS = 2

CHECKED_STEPS = 3
"""Steps from the start in each mode that must lead to the same."""


class Replicas:
    """Workers that are asked all at once.

    Args:
        start: Starts the worker of a contender for a case: ``Settings.start``.
        case: The case.
        contender: Whose they are.
    """

    def __init__(self, start: Callable[..., Worker], case: str, contender: str = REPLICA) -> None:
        self._workers = [
            start(case, contender, environ=_environment(rank)) for rank in range(REPLICAS)
        ]
        self._pool = ThreadPoolExecutor(REPLICAS)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()  # whoever is still asked has an answer then
        self._pool.shutdown()

    def ask(self, what: Callable[..., dict[str, Any]], **details: Any) -> list[dict[str, Any]]:
        """Send all the same request; returns their answers by rank.

        Raises:
            WorkerFailed: If one of them ended instead of answering.
        """
        futures = [self._pool.submit(worker.ask, what, **details) for worker in self._workers]
        return [future.result() for future in futures]


def _environment(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(REPLICAS),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(REPLICAS),
        "MASTER_ADDR": "",  # they are on one host, and meet through their common parent
        "MASTER_PORT": "",
    }


def rank_and_size() -> tuple[int, int]:
    """This replica's rank among how many; it keeps to its share of the cores from now on."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if hasattr(os, "sched_setaffinity"):
        # XLA looks at the cores it may use when it starts; two replicas on one core would
        # wait for each other.
        os.sched_setaffinity(0, share_of_cores(sorted(os.sched_getaffinity(0)), rank, size))
    return rank, size


class Replica:
    """This process among the replicas.

    Args:
        contestant: This project with a PEF for replicas.
    """

    def __init__(self, contestant: Contestant) -> None:
        rank, size = rank_and_size()
        job = jobs.start()
        assert job is not None  # the environment has what it looks for
        job.data = self.link = SlowLink(job.data, latency=0.0)
        self._job, self._step = job, contestant.step
        self._batches = contestant.batches(len(contestant.case.batches()))[rank::size]

        session = loaded()
        session.replicas.mode = None  # any may come
        self._device = session.device
        roles = (Role.WEIGHT, Role.BUFFER, Role.OPTIMIZER_STATE)
        regions = enumerate(self._device.program.regions)
        self._start = {r: self._device.read(r) for r, of in regions if of.role in roles}

    @property
    def bucket_bytes(self) -> list[int]:
        """Sizes of the buckets."""
        return [b.size * b.dtype.itemsize for b in self._device.buffer_map.buckets]

    def start_over(self) -> None:
        """Take weights and optimizer states back to where they were at first."""
        for region, values in self._start.items():
            self._device.write(region, values)

    def run(self, mode: str, count: int) -> tuple[float, float]:
        """Run steps and return their seconds, and the loss of the last one.

        Args:
            mode: ``data_parallel_mode``.
            count: How many.
        """
        batches = self._batches
        self._job.together("bench", lambda control: control.barrier())
        loss = 0.0
        begin = time.perf_counter()
        for i in range(count):
            loss = self._step(batches[i % len(batches)], data_parallel_mode=mode)
        self._device.synchronize()
        return time.perf_counter() - begin, loss

    def state(self) -> str:
        """A digest of the weights and the optimizer's state."""
        digest = hashlib.sha256()
        for region in self._start:
            digest.update(np.ascontiguousarray(self._device.read(region)).tobytes())
        return digest.hexdigest()


_replicas: dict[int, Replica] = {}


def join(contestant: Contestant) -> dict[str, Any]:
    """Meet the other replicas; all of them are asked at the same time, as with what follows.

    Returns:
        ``bytes`` of each bucket of gradients.
    """
    replica = _replicas[id(contestant)] = Replica(contestant)
    return {"bytes": replica.bucket_bytes}


def link(contestant: Contestant, latency: float, bytes_per_second: float | None) -> dict[str, Any]:
    """Set what every reduction takes longer.

    Args:
        contestant: A replica.
        latency: Seconds, whatever is reduced.
        bytes_per_second: Bandwidth, None for unlimited.

    Returns:
        ``seconds``: what all reductions of a step take longer.
    """
    replica = _replicas[id(contestant)]
    replica.link.latency, replica.link.bytes_per_second = latency, bytes_per_second
    return {"seconds": sum(map(replica.link.seconds, replica.bucket_bytes))}


def train(contestant: Contestant, mode: str, count: int) -> dict[str, Any]:
    """Go on training in a mode.

    Args:
        contestant: A replica.
        mode: ``data_parallel_mode``.
        count: Steps.

    Returns:
        ``seconds`` of all steps, and the ``loss`` of the last one.
    """
    seconds, loss = _replicas[id(contestant)].run(mode, count)
    return {"seconds": seconds, "loss": loss}


def first_state(contestant: Contestant, mode: str) -> dict[str, Any]:
    """Run the first steps once more, in a mode.

    Args:
        contestant: A replica.
        mode: ``data_parallel_mode``.

    Returns:
        ``state``: a digest of the weights and optimizer states that they led to.
    """
    replica = _replicas[id(contestant)]
    replica.start_over()
    replica.run(mode, CHECKED_STEPS)
    return {"state": replica.state()}
