"""The communicator of threads, what all communicators promise, and how replicas agree."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections import Counter

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from emulator.memory.host_view import writable_view
from emulator.replicas.comm import (
    CollectiveMismatch,
    CollectiveTimeout,
    Communicator,
    DataParallelError,
    PeerLost,
    ReduceOp,
)
from emulator.replicas.comm.agreement import same_on_all_ranks, texts_unless_same
from emulator.replicas.comm.inprocess import InProcess, run_ranks

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8]
OPS = {
    ReduceOp.SUM: np.add.reduce,
    ReduceOp.MIN: np.minimum.reduce,
    ReduceOp.MAX: np.maximum.reduce,
}


def data(rank: int, dtype: object, count: int = 12) -> np.ndarray:
    return np.random.default_rng(rank).integers(0, 9, count).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 4, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_collectives(size: int, dtype: object) -> None:
    given = [data(r, dtype, 4 * size) for r in range(size)]

    def work(comm: Communicator) -> None:
        mine = given[comm.rank]
        for op, reduce in OPS.items():
            buffer = mine.copy()
            comm.all_reduce(buffer, op)
            np.testing.assert_array_equal(buffer, reduce(np.stack(given)).astype(dtype))
        for root in range(size):
            buffer = mine.copy()
            comm.broadcast(buffer, root)
            np.testing.assert_array_equal(buffer, given[root])
        whole = np.zeros(size * mine.size, dtype)
        comm.all_gather(whole, mine)
        np.testing.assert_array_equal(whole, np.concatenate(given))
        out = np.zeros_like(mine)
        comm.all_to_all(out, mine)
        parts = [g.reshape(size, -1)[comm.rank] for g in given]
        np.testing.assert_array_equal(out, np.concatenate(parts))
        comm.exchange(out, mine, (comm.rank + 1) % size, (comm.rank - 1) % size)
        np.testing.assert_array_equal(out, given[(comm.rank - 1) % size])
        assert comm.gather_bytes(b"x" * comm.rank) == [b"x" * r for r in range(size)]
        comm.barrier()

    assert run_ranks(size, work) == [None] * size


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_mean_divides_the_sum(dtype: object) -> None:
    given = [data(r, dtype) for r in range(3)]

    def work(comm: Communicator) -> np.ndarray:
        buffer = given[comm.rank].copy()
        comm.all_reduce(buffer, ReduceOp.MEAN)
        return buffer

    total = given[0] + given[1] + given[2]
    for found in run_ranks(3, work):
        np.testing.assert_array_equal(found, total / np.dtype(dtype).type(3))


def test_groups_and_duplicates_are_apart() -> None:
    def work(comm: Communicator) -> tuple[float, float, int]:
        half = comm.split([[0, 1], [2, 3]], "halves")
        second = comm.duplicate("second")
        one, two = np.full(1, comm.rank, np.float32), np.full(1, comm.rank, np.float32)
        half.all_reduce(one)
        second.all_reduce(two)
        none = comm.split([[1, 2]], "middle")
        return float(one[0]), float(two[0]), -1 if none is None else none.rank

    assert run_ranks(4, work) == [(1, 6, -1), (1, 6, 0), (5, 6, 1), (5, 6, -1)]


def test_a_rank_that_raises_ends_the_others_at_once() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            raise ValueError("no data")
        comm.barrier()

    start = time.monotonic()
    results = run_ranks(3, work, deadline=120)
    assert time.monotonic() - start < 60
    for error in results[:2]:
        assert isinstance(error, PeerLost) and error.ranks == (2,)
        assert "rank 2 is gone: ValueError: no data" in str(error)


def test_a_rank_that_does_not_come_is_named() -> None:
    others, gave_up = threading.Barrier(2), threading.Barrier(3)

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            gave_up.wait(60)
            return
        others.wait(60)
        try:
            comm.barrier()
        finally:
            gave_up.wait(60)

    results = run_ranks(3, work, deadline=0.5)
    assert results[0] is None
    for error in results[1:]:
        assert isinstance(error, CollectiveTimeout) and error.ranks == (0,)
        assert str(error) == "all_reduce sum float32[1]: no answer from rank 0 within 0.5 s"


def test_different_calls_are_an_error_everywhere() -> None:
    def work(comm: Communicator) -> None:
        comm.all_reduce(np.zeros(3 if comm.rank == 1 else 4, np.float32))

    for error in run_ranks(3, work):
        assert isinstance(error, CollectiveMismatch) and error.ranks == (1,)
        assert "rank 1: all_reduce sum float32[3]" in str(error)
    wrong = run_ranks(
        2,
        lambda c: c.exchange(np.zeros(1, np.uint8), np.zeros(1, np.uint8), c.rank, 1 - c.rank),
    )
    assert all(isinstance(error, DataParallelError) for error in wrong)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.float16, np.int64]
)
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_view_is_the_device_memory_itself(dtype: object, count: int) -> None:
    with jax.enable_x64(True):
        array = jax.jit(lambda x: x + x)(jax.device_put(np.arange(count).astype(dtype)))
    view = writable_view(array)
    assert view.dtype == array.dtype and view.shape == (count,)
    view[:] = 7
    if count:
        assert view.ctypes.data == array.unsafe_buffer_pointer()
        assert np.asarray(array).astype(float).tolist() == [7.0] * count


@pytest.mark.slow
def test_view_keeps_the_memory_alive() -> None:
    views = []
    for i in range(20):
        views.append(writable_view(jnp.full(100_000, i, jnp.float32) + 0))
        gc.collect(1)  # what was made just now: among all that there is, it takes a second
    assert [v[0] for v in views] == list(range(20)) and [v[-1] for v in views] == list(range(20))


def test_reduction_of_device_arrays_stays_in_place() -> None:
    def work(comm: Communicator) -> None:
        array = jnp.full(64, comm.rank, jnp.float32) + 1
        where = array.unsafe_buffer_pointer()
        result = comm.all_reduce_device(array, ReduceOp.MEAN)
        assert result.unsafe_buffer_pointer() == where
        assert np.asarray(result).tolist() == [1.5] * 64

    assert run_ranks(2, work) == [None, None]


TEXTS = st.sampled_from([b"", b"a", b"b", b"a" * 1000])


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=9))
def test_every_rank_has_the_right_answer(values: list[tuple[bytes, bytes]]) -> None:
    found = run_ranks(len(values), lambda comm: same_on_all_ranks(comm, values[comm.rank]))
    assert found == [[len(set(column)) == 1 for column in zip(*values, strict=True)]] * len(values)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_one_rank_that_differs_is_seen_by_all_wherever_it_is(size: int) -> None:
    for odd in range(size):
        texts = [b"odd" if rank == odd else b"same" for rank in range(size)]
        found = run_ranks(size, lambda comm, texts=texts: texts_unless_same(comm, texts[comm.rank]))
        assert found == [texts] * size


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """What rank 0 calls, with the bytes that it brings."""
    counts: Counter[tuple[str, int]] = Counter()
    meet = InProcess._meet

    def counting(self: InProcess, call: str, brought: object) -> list[object]:
        if self.rank == 0:
            part = brought[1] if isinstance(brought, tuple) else brought
            nbytes = part.nbytes if isinstance(part, np.ndarray) else len(part)
            counts[call.split(maxsplit=1)[0], nbytes] += 1
        return meet(self, call, brought)

    monkeypatch.setattr(InProcess, "_meet", counting)
    return counts


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 33])
def test_a_rank_sends_as_many_messages_as_the_logarithm_has(sent, size: int) -> None:
    text = b"x" * 5000
    assert run_ranks(size, lambda comm: texts_unless_same(comm, text)) == [None] * size
    rounds = math.ceil(math.log2(size))
    assert sent == ({("exchange", 17): rounds} if rounds else {})


def test_texts_are_gathered_only_where_they_differ(sent) -> None:
    texts = [b"one", b"two!", b"one"]
    assert run_ranks(3, lambda comm: texts_unless_same(comm, texts[comm.rank])) == [texts] * 3
    assert sent == {("exchange", 17): 2, ("gather_bytes", 3): 1}


def test_a_rank_that_is_gone_is_an_error_on_the_others() -> None:
    def work(comm: Communicator) -> list[bytes] | None:
        if comm.rank == 1:
            raise ValueError("no")
        return texts_unless_same(comm, b"here")

    found = run_ranks(5, work, deadline=20)
    assert isinstance(found[1], ValueError)
    assert all(isinstance(error, PeerLost) for i, error in enumerate(found) if i != 1)
