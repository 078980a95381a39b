"""A program that needs more memory than there is is refused before it takes any."""

from __future__ import annotations

import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

from emulator.device import Device
from emulator.errors import DeviceError, OutOfMemory
from emulator.memory.budget import LIMIT_VARIABLE, BadLimit, memory_limit
from emulator.plans.xla_options import xla_options
from pef_schema import DType, Role, verify
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import inference
from tests.processes import finished

CPU = jax.devices("cpu")[0]


def test_the_limit_is_the_machines_or_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    assert 2**28 < memory_limit(CPU) < 2**50
    monkeypatch.setenv(LIMIT_VARIABLE, "12345")
    assert memory_limit(CPU) == 12345
    for bad in ("a lot", "0", "-1", "1.5", "\u0661"):
        monkeypatch.setenv(LIMIT_VARIABLE, bad)
        with pytest.raises(BadLimit, match="expected a whole number of bytes from 1 up"):
            memory_limit(CPU)


def test_memory_between_runs() -> None:
    """262144 GiB: no machine has them, and no byte is taken."""
    program = edit(
        inference(), "regions.2", shape=(2**48,), dtype=DType.UINT8, role=Role.OPTIMIZER_STATE
    )
    verify(program)
    with pytest.raises(
        OutOfMemory, match=r"keeps between runs \(mostly z \[281474976710656\]\) needs"
    ):
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
    assert "x needs 1024.00 GiB, but the device may use 1.00 GiB" in str(error)
    assert "EMULATOR_MEMORY_LIMIT=BYTES" in str(error)


def test_a_chain_ends_before_the_next_one_starts() -> None:
    """Of eight large intermediates one is alive at a time; breadth first it would be all."""

    def total(x: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
        return sum((jnp.tanh(x @ w) @ w.T).sum() for w in weights)  # pyright: ignore[reportReturnType]  # there are some

    x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
    lowered = jax.jit(total).lower(x, (jax.ShapeDtypeStruct((64, 512), jnp.float32),) * 8)
    options = xla_options(jax.devices("cpu")[0])

    def temp(chosen: dict[str, str]) -> int:
        analysis = lowered.compile(compiler_options=chosen).memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    ours = temp(options)
    del options["xla_cpu_scheduler_type"]
    one = 4 * 512 * 512
    assert ours < 4 * one < temp(options), "if XLA's default is as lean, the option can go"


SCRIPT = """
    import emulator.memory.allocator as allocator

    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if "VmRSS" in line)

    assert allocator.keep_freed_memory()
    kept = []

    def leave_garbage():
        blocks = [bytearray(b"x") * 100_000 for _ in range(600)]
        kept.append(blocks.pop())  # at the end, so that nothing goes back by itself

    leave_garbage()
    full = resident()
    with allocator.garbage_given_back():
        pass
    short = resident()
    allocator._WORTH_IT = 0.0
    with allocator.garbage_given_back():
        pass
    print(full - short, short - resident())
"""


def test_long_compilations_give_their_garbage_back() -> None:
    done = finished([sys.executable, "-c", textwrap.dedent(SCRIPT)], check=True)
    after_short, after_long = map(float, done.stdout.split())
    assert abs(after_short) < 5
    assert after_long > 45


FAULTS = """
    import ctypes, resource, sys, threading
    import emulator.memory.allocator as allocator

    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    assert allocator.keep_freed_memory()
    assert sys.argv[1] == "own" or allocator.share_one_arena()

    def step():
        block = libc.malloc(100 << 20)
        libc.memset(block, 1, 100 << 20)
        libc.free(block)

    def steps():
        for _ in range(3):
            step()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(("arena", "mapped_anew"), [("own", True), ("shared", False)])
def test_large_blocks_of_threads_stay_mapped_in_the_main_arena(
    arena: str, mapped_anew: bool
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FAULTS), arena]
    faults = int(finished(command, check=True).stdout)
    assert (faults > 20) is mapped_anew, "at least one a huge page, none at all once it is kept"
