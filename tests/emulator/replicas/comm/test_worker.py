"""The communication thread and the backend: fixed order, failures that surface, no leaks."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from emulator.replicas.comm import CollectiveTimeout, Communicator, DataParallelError, ReduceOp
from emulator.replicas.comm.backend import Backend
from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.comm.link import SlowLink
from emulator.replicas.comm.worker import CommThread


@dataclass(eq=False)
class Tensor:
    name: str
    values: np.ndarray


@dataclass(eq=False)
class Bucket:
    name: str
    tensors: list[Tensor]
    op: Callable[[Tensor], None]
    done: list[str] = field(default_factory=list)

    def members(self) -> Sequence[Tensor]:
        return self.tensors

    def run_ops(self) -> None:
        for tensor in self.tensors:
            self.op(tensor)
        self.done.append(self.name)


def buckets(op: Callable[[Tensor], None], count: int, log: list[str]) -> list[Bucket]:
    made = []
    for b in range(count):
        tensors = [Tensor(f"{b}.{t}", np.zeros(3, np.float32)) for t in range(1 + b % 3)]
        made.append(Bucket(str(b), tensors, op, log))
    return made


def test_works_run_in_order_and_one_at_a_time() -> None:
    thread, log = CommThread("t", deadline=5), []
    works = [thread.submit(str(i), lambda i=i: log.append(i)) for i in range(100)]
    thread.finish(works)
    assert log == list(range(100)) and all(w.done() for w in works)


def test_the_first_failure_is_final() -> None:
    thread, log = CommThread("t", deadline=5), []

    def fail() -> None:
        raise OSError("cable")

    first = thread.submit("bucket 1", fail)
    second = thread.submit("bucket 2", lambda: log.append(2))
    with pytest.raises(OSError, match="cable"):
        thread.wait((first,))
    with pytest.raises(DataParallelError, match="bucket 2: not tried, because bucket 1 failed"):
        thread.wait((second,))
    assert not log and isinstance(thread.failure, OSError)


def test_waiting_ends_at_the_deadline_or_at_an_alarm() -> None:
    gate = threading.Event()
    thread = CommThread("t", deadline=0.3)
    work = thread.submit("bucket 7", lambda: gate.wait(60))
    start = time.monotonic()
    with pytest.raises(CollectiveTimeout, match="bucket 7: no answer"):
        thread.wait((work,))
    assert 0.3 < time.monotonic() - start < 30

    def alarm(name: str) -> None:
        raise DataParallelError(f"{name}: rank 1 is gone")

    thread.alarm, thread.deadline = alarm, 60.0
    with pytest.raises(DataParallelError, match="bucket 7: rank 1 is gone"):
        thread.wait((work,))
    gate.set()


def test_a_forgotten_thread_ends() -> None:
    thread = CommThread("forgotten", deadline=5)
    thread.finish([thread.submit("x", lambda: None)])
    inner = thread._thread
    del thread
    gc.collect()
    inner.join(5)
    assert not inner.is_alive()


def test_buckets_leave_in_order_whatever_is_ready_first() -> None:
    log: list[str] = []
    backend = Backend("m", CommThread("t", deadline=5))
    made = buckets(lambda t: None, 5, log)
    backend.register_ordered_buckets(made)
    tensors = [t for b in made for t in b.tensors]
    rng = random.Random(0)
    for step in range(3):
        for tensor in rng.sample(tensors, len(tensors)):
            backend.mark_communication_ready(tensor)
        assert backend.wait_pending_comm_ops() == 5
        assert log == [str(b) for b in range(5)] * (step + 1)
    assert backend.wait_pending_comm_ops() == 0
    for tensor in tensors[1:]:
        backend.mark_communication_ready(tensor)
    assert backend.wait_pending_comm_ops() == 0, "all wait for the first"


def test_ranks_that_mark_in_different_orders_get_the_right_sums() -> None:
    def work(comm: Communicator) -> list[float]:
        backend = Backend("m", CommThread("t", deadline=5))
        made = buckets(lambda t: comm.all_reduce(t.values, ReduceOp.SUM), 4, [])
        backend.register_ordered_buckets(made)
        tensors = [t for b in made for t in b.tensors]
        rng = random.Random(comm.rank)
        for step in range(5):
            for i, tensor in enumerate(tensors):
                tensor.values[:] = 10**i * (comm.rank + 1) + step
            for tensor in rng.sample(tensors, len(tensors)):
                backend.mark_communication_ready(tensor)
            backend.wait_pending_comm_ops()
        return [float(t.values[0]) for t in tensors]

    results = run_ranks(3, work)
    assert results[0] == results[1] == results[2]
    assert results[0] == [10**i * 6 + 12 for i in range(7)]


def test_backend_refuses_what_could_not_work() -> None:
    backend = Backend("m", CommThread("t", deadline=5))
    log: list[str] = []
    one, two = buckets(lambda t: None, 2, log)
    with pytest.raises(DataParallelError, match="bucket 0 is empty"):
        backend.register_ordered_buckets([Bucket("0", [], lambda t: None)])
    with pytest.raises(DataParallelError, match=r"'0\.0' is registered twice"):
        backend.register_ordered_buckets([one, Bucket("x", one.tensors, lambda t: None)])
    same_name = Bucket("y", [Tensor("0.0", np.zeros(1, np.float32))], lambda t: None)
    with pytest.raises(DataParallelError, match="registered twice"):
        backend.register_ordered_buckets([one, same_name])
    backend.register_ordered_buckets([one])
    with pytest.raises(DataParallelError, match=r"'1\.0' is in no registered bucket"):
        backend.mark_communication_ready(two.tensors[0])


def test_the_wait_of_a_tensor_comes_before_its_bucket() -> None:
    log: list[str] = []
    backend = Backend("m", CommThread("t", deadline=5))
    made = buckets(lambda t: log.append(f"op {t.name}"), 2, [])
    backend.register_ordered_buckets(made)
    for tensor in (t for b in made for t in b.tensors):
        backend.mark_communication_ready(tensor, lambda n=tensor.name: log.append(f"wait {n}"))
    backend.wait_pending_comm_ops()
    assert log == ["wait 0.0", "op 0.0", "wait 1.0", "wait 1.1", "op 1.0", "op 1.1"]


def test_errors_of_an_operation_surface() -> None:
    backend = Backend("m", CommThread("t", deadline=5))

    def fail(tensor: Tensor) -> None:
        raise ValueError("bad python operation")

    made = buckets(fail, 1, [])
    backend.register_ordered_buckets(made)
    backend.mark_communication_ready(made[0].tensors[0])
    with pytest.raises(ValueError, match="bad python operation"):
        backend.wait_pending_comm_ops()


def test_a_slow_link_takes_its_time() -> None:
    def work(comm: Communicator) -> float:
        slow = SlowLink(comm, latency=0.05, bytes_per_second=400.0)
        buffer = np.full(10, comm.rank + 1, np.float32)
        start = time.monotonic()
        slow.all_reduce(buffer)
        assert buffer.tolist() == [3.0] * 10
        return time.monotonic() - start

    taken = run_ranks(2, work)
    assert all(isinstance(seconds, float) and seconds >= 0.15 for seconds in taken)
