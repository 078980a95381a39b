"""Elements that are a stride apart, as numpy takes them, and in a form that can be divided."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, strategies as st

from emulator.kernels.strides import strided


@given(data=st.data(), size=st.integers(1, 20), stride=st.integers(1, 9))
def test_as_numpy_slices(data: st.DataObject, size: int, stride: int) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    x = np.arange(size, dtype=np.float32)
    found = strided(jnp.asarray(x), start, stop, stride, 0)
    np.testing.assert_array_equal(found, x[start:stop:stride])


def test_one_element_alone_is_taken_without_a_stride() -> None:
    """XLA's partitioner takes another one where there is a stride."""
    text = jax.jit(lambda x: strided(x, 7, 8, 8, 0)).lower(jnp.arange(8.0)).as_text()
    assert "[7:8]" in text
    assert "[7:8:8]" not in text
    text = jax.jit(lambda x: strided(x, 1, 8, 2, 0)).lower(jnp.arange(8.0)).as_text()
    assert "[1:8:2]" in text
