"""What each chip has of a region: by the rule, and never more than its share."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, strategies as st

from emulator.kernels.slices import strided
from emulator.mesh.layout import Split, bytes_per_chip, split_axis
from pef_schema.program import Role
from tests.pef_schema.samples import inference

SHAPES = st.lists(st.integers(0, 12), max_size=4).map(tuple)
CHIPS = st.integers(1, 8)


@given(role=st.sampled_from(Role), shape=SHAPES, split=st.sampled_from(Split), chips=CHIPS)
def test_an_axis_is_divided_evenly_or_not_at_all(
    role: Role, shape: tuple[int, ...], split: Split, chips: int
) -> None:
    axis = split_axis(role, shape, split, chips)
    if axis == -1:
        return
    assert chips > 1 and split is not Split.NONE
    assert shape[axis] % chips == 0 < shape[axis]


@given(shape=SHAPES, chips=st.integers(2, 8))
def test_what_belongs_to_one_weight_is_divided_alike(shape: tuple[int, ...], chips: int) -> None:
    """Updates need nothing of other chips then."""
    roles = (Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER_STATE)
    axes = {split_axis(role, shape, Split.WEIGHT, chips) for role in roles}
    assert len(axes) == 1
    if any(n and n % chips == 0 for n in shape):
        assert axes != {-1}


def test_by_batch_samples_are_divided_and_weights_are_not() -> None:
    assert split_axis(Role.INPUT, (8, 3), Split.BATCH, 4) == 0
    assert split_axis(Role.COTANGENT, (8, 3), Split.BATCH, 4) == 0
    assert split_axis(Role.INPUT, (6, 4), Split.BATCH, 4) == -1  # samples are the first axis
    for role in (Role.WEIGHT, Role.GRADIENT, Role.OPTIMIZER_STATE, Role.BUFFER, Role.SEED):
        assert split_axis(role, (8, 4), Split.BATCH, 4) == -1


def test_by_weight_samples_are_not_divided() -> None:
    for role in (Role.INPUT, Role.OUTPUT, Role.ACTIVATION, Role.BUFFER, Role.ARGIN):
        assert split_axis(role, (8, 4), Split.WEIGHT, 4) == -1


@given(split=st.sampled_from(Split), chips=CHIPS)
def test_bytes_of_a_chip_are_its_parts(split: Split, chips: int) -> None:
    program = inference()
    wanted = 0
    for region in program.regions:
        if region.role.is_transient:
            continue
        shape = list(region.shape)
        axis = split_axis(region.role, shape, split, chips)
        if axis >= 0:
            shape[axis] //= chips
        wanted += math.prod(shape) * region.dtype.itemsize
    assert bytes_per_chip(program, split, chips) == wanted


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
