"""What a plan needs besides its arguments, and what compiling leaves behind."""

import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

from emulator.plans.executable_cache import xla_options
from tests.processes import finished


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
