"""A program that needs more memory than there is is refused before it takes any."""

from __future__ import annotations

import jax
import pytest

from emulator.device import Device
from emulator.errors import DeviceError, OutOfMemory
from emulator.memory.budget import LIMIT_VARIABLE, BadLimit, memory_limit
from pef_schema import DType, Role, verify
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference

CPU = jax.devices("cpu")[0]


def test_the_limit_is_the_machines_or_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    assert 2**28 < memory_limit(CPU) < 2**50
    monkeypatch.setenv(LIMIT_VARIABLE, "12345")
    assert memory_limit(CPU) == 12345
    for bad in ("a lot", "0", "-1", "1.5", "\u0661"):
        monkeypatch.setenv(LIMIT_VARIABLE, bad)
        with pytest.raises(BadLimit, match="wanted a whole number of bytes from 1 up"):
            memory_limit(CPU)


def test_memory_between_runs() -> None:
    """262144 GiB: no machine has them, and no byte is taken."""
    program = edit(
        inference(), "regions.2", shape=(2**48,), dtype=DType.UINT8, role=Role.OPTIMIZER_STATE
    )
    verify(program)
    with pytest.raises(OutOfMemory, match=r"its memory between runs, .* z \[281474976710656\],"):
        Device(program)


def test_a_result_of_an_operation() -> None:
    program = edit(inference(), "graphs.0.values.1", shape=(2**20, 2**20))
    program = edit(program, "regions.1", shape=(2**20, 2**20), role=Role.ACTIVATION)
    program = edit(
        program, "graphs.0.nodes.0", op="aten.expand.default", args=(*_X, (2**20, 2**20))
    )
    verify(program)
    with pytest.raises(OutOfMemory, match=r"aten.expand.default in tiny at tiny.py:3: its result"):
        Device(program)


_X = edit(inference(), "").graphs[0].nodes[0].args[:1]


def test_what_a_plan_needs_beside_its_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "24")
    with pytest.raises(OutOfMemory) as caught:
        Device(inference())
    assert (caught.value.need, caught.value.have) == (48, 24)
    monkeypatch.setenv(LIMIT_VARIABLE, "48")
    Device(inference()).plan(((0, 0),))
    device = Device(inference())
    monkeypatch.setenv(LIMIT_VARIABLE, "47")
    with pytest.raises(OutOfMemory, match=r"program tiny: a run of 1 step\(s\) needs 48 bytes"):
        device.plan(((0, 0),))


def test_it_is_an_error_of_the_device_and_of_memory() -> None:
    error = OutOfMemory(what="x", need=2**40, have=2**30)
    assert isinstance(error, DeviceError) and isinstance(error, MemoryError)
    assert "x needs 1024.00 GiB, the device may take 1.00 GiB" in str(error)
    assert "EMULATOR_MEMORY_LIMIT=BYTES" in str(error)
