"""One of several replicas whose steps are predicted before they are measured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.inside import Contestant
from bench.inside.overlap import Replica
from bench.inside.sections import all_steps
from emulator.replicas.comm.link import SlowLink
from emulator.replicas.comm.protocol import ReduceOp
from emulator.replicas.parallel import prepare_parallel
from emulator.replicas.schedule import Mode
from emulator.replicas.simulation.links import AllReduce, Cluster, Link, all_reduce_seconds
from emulator.replicas.simulation.step import planned_step

FEWEST = 3
"""Reductions of one size in a row, at least."""

_COLD, _MOST = 48 << 20, 64
"""Bytes of different buffers that are reduced in turns, and how many buffers at most."""


class Mutable(SlowLink):
    """Another communicator that can be told to reduce nothing.

    Attributes:
        mute: Whether reductions return at once, with what they were given.
    """

    mute = False

    def all_reduce_device(self, array: jax.Array, op: ReduceOp = ReduceOp.SUM) -> jax.Array:
        return array if self.mute else self._inner.all_reduce_device(array, op)


class Predicted(Replica):
    """A replica whose tasks can be timed one by one, beside the others' and without reductions.

    Args:
        contestant: This project with a PEF for replicas.
    """

    def __init__(self, contestant: Contestant) -> None:
        super().__init__(contestant)
        self._job.data = self._link = Mutable(self._job.control, latency=0.0)

    def without(self, count: int) -> float:
        """Seconds of so many steps in which nothing is reduced."""
        self._link.mute = True
        try:
            return self.run("normal", count)[0]
        finally:
            self._link.mute = False

    def tasks(self, count: int, together: bool) -> list[list[float]]:
        """Seconds of each task of each step, 0 for reductions; each is waited for.

        Args:
            count: Steps.
            together: Whether replicas wait for each other where a reduction would be.
        """
        device = self._device
        plan = prepare_parallel(device, all_steps(device.program), Mode.NORMAL)
        steps: list[list[float]] = []
        self._job.together("bench", lambda control: control.barrier())
        for _ in range(count):
            spent = [0.0] * len(plan.parts)
            for i, part in enumerate(plan.parts):
                if part.plan is None:
                    if together:
                        self._job.together("bench", lambda control: control.barrier())
                    continue
                begin = time.perf_counter()
                device.run(part.plan, 0)
                buffers = device.pool.buffers
                jax.block_until_ready([buffers[home] for home in part.plan.writes])
                spent[i] = time.perf_counter() - begin
            steps.append(spent)
        return steps

    def reduce(self, nbytes: int, round_seconds: float) -> tuple[float, float]:
        """Seconds of a reduction, and of the processor meanwhile, while nobody computes."""
        # A step's buckets are not in the caches any more when their turn comes again.
        different = min(_MOST, max(1, _COLD // nbytes))
        arrays = deque(jnp.zeros(nbytes // 4, jnp.float32) for _ in range(different))

        def one() -> None:
            arrays.append(self._job.data.all_reduce_device(arrays.popleft(), ReduceOp.MEAN))

        def several(count: int) -> None:
            for _ in range(count):  # each is handed over and waited for, as in a step
                self._job.thread.wait((self._job.thread.submit("bench", one),))

        several(different)
        begin = time.perf_counter()
        several(FEWEST)
        guess = np.array([(time.perf_counter() - begin) / FEWEST])
        self._job.together("bench", lambda control: control.broadcast(guess))
        count = max(FEWEST, round(round_seconds / float(guess[0])))
        self._job.together("bench", lambda control: control.barrier())
        begin, busy = time.perf_counter(), time.process_time()
        several(count)
        return (
            (time.perf_counter() - begin) / count,
            (time.process_time() - busy) / count,
        )

    def simulated(
        self, mode: Mode, tasks: Sequence[float], link: Link, replicas: int, share: float
    ) -> float:
        """Seconds of a step, by the simulator."""
        cluster = Cluster(between=link, inside=link)
        step = planned_step(self._device.program)
        return step.simulate(
            mode,
            tasks.__getitem__,
            lambda nbytes: all_reduce_seconds(AllReduce.RING, cluster, replicas, nbytes),
            replicas=replicas,
            processor_share=share,
        ).seconds


_replicas: dict[int, Predicted] = {}


def join_predicted(contestant: Contestant) -> dict[str, Any]:
    """Meet the other replicas; all of them are asked at the same time, as with what follows.

    Returns:
        ``bytes`` of each bucket of gradients.
    """
    replica = _replicas[id(contestant)] = Predicted(contestant)
    return {"bytes": replica.bucket_bytes}


def muted(contestant: Contestant, count: int) -> dict[str, Any]:
    """Run steps that reduce nothing.

    Args:
        contestant: A replica.
        count: Steps.

    Returns:
        ``seconds`` of all of them.
    """
    return {"seconds": _replicas[id(contestant)].without(count)}


def tasks(contestant: Contestant, count: int, together: bool) -> dict[str, Any]:
    """Time the tasks of a step one by one.

    Args:
        contestant: A replica.
        count: Steps.
        together: Whether replicas wait for each other where a reduction would be.

    Returns:
        ``seconds`` of each task of each step, 0 for reductions.
    """
    return {"seconds": _replicas[id(contestant)].tasks(count, together)}


def reductions(contestant: Contestant, sizes: list[int], round_seconds: float) -> dict[str, Any]:
    """Time reductions of several sizes.

    Args:
        contestant: A replica.
        sizes: Bytes of a replica's buffer.
        round_seconds: About how long to repeat each.

    Returns:
        ``seconds`` of one reduction of each size, and ``processor`` seconds of this process.
    """
    replica = _replicas[id(contestant)]
    found = [replica.reduce(nbytes, round_seconds) for nbytes in sizes]
    return {"seconds": [s for s, _ in found], "processor": [p for _, p in found]}


def simulated(
    contestant: Contestant,
    mode: str,
    tasks: list[float],
    latency: float,
    bandwidth: float,
    replicas: int,
    share: float,
) -> dict[str, Any]:
    """Simulate a step.

    Args:
        contestant: A replica; its program is what is simulated.
        mode: ``data_parallel_mode``.
        tasks: Seconds of each task.
        latency: Seconds of a message.
        bandwidth: Bytes a second of a link.
        replicas: How many.
        share: The part of the processor that a reduction keeps busy.

    Returns:
        ``seconds`` of the step.
    """
    link = Link(latency=latency, bandwidth=bandwidth)
    replica = _replicas[id(contestant)]
    return {"seconds": replica.simulated(Mode(mode), tasks, link, replicas, share)}


def trained(contestant: Contestant, mode: str, count: int) -> dict[str, Any]:
    """Run real steps.

    Args:
        contestant: A replica.
        mode: ``data_parallel_mode``.
        count: How many.

    Returns:
        ``seconds`` of all of them.
    """
    return {"seconds": _replicas[id(contestant)].run(mode, count)[0]}
