"""The communication thread: one thing after the other, failures that surface, no leaks."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from emulator.replicas.comm import CollectiveTimeout, Communicator, DataParallelError
from emulator.replicas.comm.inprocess import run_ranks
from emulator.replicas.comm.link import SlowLink
from emulator.replicas.comm.worker import CommThread


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
    assert not log and isinstance(first.error, OSError)


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
