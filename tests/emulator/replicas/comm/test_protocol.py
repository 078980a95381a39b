"""Device memory that collectives work on in place."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from emulator.memory.host_view import writable_view
from emulator.replicas.comm import Communicator, ReduceOp
from emulator.replicas.comm.inprocess import run_ranks


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
        gc.collect()
    assert [v[0] for v in views] == list(range(20)) and [v[-1] for v in views] == list(range(20))


def test_reduction_of_device_arrays_stays_in_place() -> None:
    def work(comm: Communicator) -> None:
        array = jnp.full(64, comm.rank, jnp.float32) + 1
        where = array.unsafe_buffer_pointer()
        result = comm.all_reduce_device(array, ReduceOp.MEAN)
        assert result.unsafe_buffer_pointer() == where
        assert np.asarray(result).tolist() == [1.5] * 64

    assert run_ranks(2, work) == [None, None]
