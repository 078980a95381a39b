"""The engine on ``jax.distributed``: collectives inside executables over a mesh of processes.

It is needed where device memory is not the host's; on the CPU it serves as a cross-check. It is
stricter than others: a process whose peer is gone is aborted by jax's own runtime soon after, so
a program that uses it must leave by :func:`leave` when it fails.
"""

# pyright: standard
# Nearly every line calls a collective of jax, and those have no types.

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config, distributed, xla_bridge
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]  # nothing else takes a host
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from emulator.replicas.comm.errors import DataParallelError, PeerLost
from emulator.replicas.comm.protocol import Communicator, ReduceOp
from emulator.start import device_number

_AXIS = "dp"
_SHUTDOWN_SECONDS = 5
_START_SECONDS = 60
_COLLECTIVES: dict[ReduceOp, Callable[..., jax.Array]] = {
    ReduceOp.SUM: jax.lax.psum,
    ReduceOp.MEAN: jax.lax.psum,
    ReduceOp.MIN: jax.lax.pmin,
    ReduceOp.MAX: jax.lax.pmax,
}


def start(
    address: str,
    *,
    rank: int,
    size: int,
    deadline: float,
    hostname: str | None = None,
    interface: str | None = None,
) -> JaxMesh:
    """Join the processes of a job; all of them call it, before any of them opens a device.

    Args:
        address: ``host:port`` at which rank 0 will listen.
        rank: Number of this process.
        size: How many processes there are.
        deadline: Seconds that a collective may take.
        hostname: Address of this host at which this process listens for the others.
        interface: Interface of this host at which it listens, in place of an address.

    Returns:
        The communicator of all processes.

    Raises:
        DataParallelError: If jax runs already, or the processes do not meet.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    try:
        jax.distributed.initialize(
            address,
            size,
            rank,
            cluster_detection_method="deactivate",
            coordinator_bind_address=address if rank == 0 else None,
            initialization_timeout=_START_SECONDS,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            heartbeat_timeout_seconds=max(10, int(deadline) + 10),
        )
    except RuntimeError as error:
        raise DataParallelError(
            f"engine jax: the processes did not meet at {address}: {error} Replicas start before "
            "anything runs on the device; parse_app_args does so for `run --data-parallel`.",
            ranks=(rank,),
        ) from error
    _listen_at(hostname, interface)
    by_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    # The device that this process opens its programs on, told to the others.
    chosen = device_number(len(by_process[rank]))
    client: Any = distributed.global_state.client
    client.key_value_set(f"samba/device/{rank}", str(chosen))
    client.wait_at_barrier("samba/devices", _START_SECONDS * 1000)
    # One request for all of them: one for each would be a square of requests to rank 0.
    numbers = {
        int(key.rsplit("/", 1)[1]): value for key, value in client.key_value_dir_get("samba/device")
    }
    devices = [by_process[r][int(numbers[r])] for r in range(size)]
    return JaxMesh(devices, rank=rank, deadline=deadline)


def _listen_at(hostname: str | None, interface: str | None) -> None:
    """Let the processes' devices listen there: jax itself takes what the host's name means."""
    if config.cpu_collectives_implementation.value != "gloo":
        return  # somebody has asked for others on purpose, and those have settings of their own
    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=hostname, interface=interface
    )
    xla_bridge.register_backend_factory(
        "cpu",
        functools.partial(xla_bridge.make_cpu_client, collectives),
        priority=0,
        fail_quietly=False,
    )


class JaxMesh(Communicator):
    """Processes with a device each, which need not be the only one that it sees.

    Calls must come from one thread, the same one in every process: jax matches collectives of a
    device by the order in which they are dispatched.

    Args:
        devices: Their devices, in the order of ranks.
        rank: Number of this process.
        deadline: Seconds that a collective may take. XLA itself waits for its own timeout; this
            one is applied by waiting for the communication thread.
    """

    engine = "jax"

    def __init__(self, devices: Sequence[Any], *, rank: int, deadline: float) -> None:
        super().__init__(rank=rank, size=len(devices), deadline=deadline)
        self._devices = list(devices)
        self._mesh = Mesh(np.array(self._devices), (_AXIS,))
        self._sharding = NamedSharding(self._mesh, PartitionSpec(_AXIS))
        self._lock = threading.Lock()
        self._jits: dict[Any, Callable[[jax.Array], jax.Array]] = {}

    def _run(
        self, key: Any, function: Callable[[jax.Array], jax.Array], local: jax.Array
    ) -> jax.Array:
        """Run a collective over one flat array per process; gives this process's result."""
        with self._lock, jax.enable_x64(True):
            compiled = self._jits.get(key)
            if compiled is None:
                compiled = self._jits[key] = jax.jit(
                    jax.shard_map(
                        function,
                        mesh=self._mesh,
                        in_specs=PartitionSpec(_AXIS),
                        out_specs=PartitionSpec(_AXIS),
                        check_vma=False,
                    ),
                    donate_argnums=0 if key[0] == "reduce" else (),
                )
            whole = jax.make_array_from_single_device_arrays(
                (self.size * local.size,), self._sharding, [local]
            )
            try:
                result = compiled(whole).addressable_shards[0].data
                result.block_until_ready()
            except (RuntimeError, ValueError) as error:
                text = str(error).strip().splitlines()
                raise PeerLost(operation=key[0], reason=text[0] if text else "") from error
            return result

    def _put(self, buffer: np.ndarray) -> jax.Array:
        with jax.enable_x64(True):
            return jax.device_put(np.array(buffer, copy=True), self._devices[self.rank])

    def all_reduce_device(self, array: jax.Array, op: ReduceOp = ReduceOp.SUM) -> jax.Array:
        if len(array.devices()) > 1:  # each of this process's chips has it as a whole
            return super().all_reduce_device(array, op)
        collective, size = _COLLECTIVES[op], self.size

        def reduce(part: jax.Array) -> jax.Array:
            total = collective(part, _AXIS)
            return total / total.dtype.type(size) if op is ReduceOp.MEAN else total

        return self._run(("reduce", op), reduce, array)

    def all_reduce(self, buffer: np.ndarray, op: ReduceOp = ReduceOp.SUM) -> None:
        buffer[:] = np.asarray(self.all_reduce_device(self._put(buffer), op))

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        # Bytes, so that no arithmetic can touch what is sent.
        whole = self._gather(buffer.view(np.uint8))
        buffer.view(np.uint8)[:] = whole[root]

    def all_gather(self, out: np.ndarray, part: np.ndarray) -> None:
        out.view(np.uint8)[:] = self._gather(part.view(np.uint8)).reshape(-1)

    def all_to_all(self, out: np.ndarray, whole: np.ndarray) -> None:
        parts = self._gather(whole.view(np.uint8)).reshape(self.size, self.size, -1)
        out.view(np.uint8)[:] = parts[:, self.rank].reshape(-1)

    def exchange(self, out: np.ndarray, part: np.ndarray, to: int, source: int) -> None:
        out.view(np.uint8)[:] = self._gather(part.view(np.uint8))[source]

    def _gather(self, part: np.ndarray) -> np.ndarray:
        """Equally many bytes of every rank, one row each."""
        if part.size == 0:
            return np.zeros((self.size, 0), np.uint8)

        def gather(local: jax.Array) -> jax.Array:
            return jax.lax.all_gather(local, _AXIS).reshape(-1)

        return np.asarray(self._run(("gather",), gather, self._put(part))).reshape(self.size, -1)

    def split(self, groups: Sequence[Sequence[int]], name: str) -> Communicator | None:
        for group in groups:
            ranks = list(group)
            if self.rank in ranks:
                if len(ranks) == self.size:
                    # Two threads would dispatch in different orders in different processes.
                    raise DataParallelError(
                        f"engine jax: {name} needs collectives from a second thread, which this "
                        "engine cannot keep apart. Use the engine torch for it.",
                        ranks=(self.rank,),
                    )
                devices = [self._devices[r] for r in ranks]
                return JaxMesh(devices, rank=ranks.index(self.rank), deadline=self.deadline)
        return None
