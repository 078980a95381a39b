"""Zeros for first values: views of one block that no device array shares."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from emulator.dtypes import TO_NUMPY
from emulator.memory.zeros import Zeros
from emulator.trace_settings import wide_types

SHAPES = [(), (0, 3), (1,), (7, 5), (300, 400)]


@pytest.mark.parametrize("dtype", sorted(set(TO_NUMPY.values()), key=str), ids=str)
def test_views_are_zeros_that_nobody_can_write(dtype):
    zeros = Zeros((shape, dtype) for shape in SHAPES)
    for shape in SHAPES:
        view = zeros.view(shape, dtype)
        assert (view.shape, view.dtype) == (shape, dtype)
        assert not np.any(view)
        assert not view.flags.writeable


@pytest.mark.parametrize("dtype", sorted(set(TO_NUMPY.values()), key=str), ids=str)
def test_device_arrays_have_memory_of_their_own(dtype):
    """Two that shared it could not be donated, and would be written together."""
    zeros = Zeros([((300, 400), dtype)])
    with wide_types():
        arrays = [jax.device_put(zeros.view((300, 400), dtype)) for _ in range(3)]
        places = {array.unsafe_buffer_pointer() for array in arrays}
    assert zeros.view((1,), dtype).ctypes.data not in places
    assert len(places) == 3
    assert not any(np.any(np.asarray(array)) for array in arrays)
