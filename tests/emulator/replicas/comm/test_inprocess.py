"""Collectives between threads: the right numbers, and errors that name who is missing."""

from __future__ import annotations

import threading
import time

import ml_dtypes
import numpy as np
import pytest

from emulator.replicas.comm import (
    CollectiveMismatch,
    CollectiveTimeout,
    Communicator,
    DataParallelError,
    PeerLost,
    ReduceOp,
)
from emulator.replicas.comm.inprocess import run_ranks

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
