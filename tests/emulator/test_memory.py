"""What a plan needs besides its arguments, and what compiling leaves behind."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp

from emulator.xla_options import xla_options


def test_a_chain_ends_before_the_next_one_starts() -> None:
    """Of eight large intermediates one is alive at a time; breadth first it would be all."""

    def total(x: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
        return sum((jnp.tanh(x @ w) @ w.T).sum() for w in weights)

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
    import emulator.allocator as allocator

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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, check=True
    )
    after_short, after_long = map(float, done.stdout.split())
    assert abs(after_short) < 5
    assert after_long > 45
