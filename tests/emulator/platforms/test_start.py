"""Which device a process takes: what jax finds, what is asked for, and one for each replica."""

from __future__ import annotations

import os
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.errors import DeviceError
from emulator.start import NoDevice, device_number, prefer_device
from tests import warm
from tests.processes import finished, host_devices
from tests.samba.distributed.processes import free_port

ROOT = Path(__file__).parents[3]


TWO = "import jax; jax.config.update('jax_platforms', 'cpu')\n"
"""What begins a process that takes two devices of XLA:CPU, as JAX_PLATFORMS=cpu does."""


def on_two_devices(code: str, *arguments: str) -> str:
    """Run code in a process that sees two devices, and return what it prints."""
    done = warm.finished(
        [sys.executable, "-c", TWO + textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": host_devices(2)},
        seconds=60,
        server=warm.JAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_platform_that_is_not_there_is_told() -> None:
    """The CPU is not taken on the quiet in the place of what was asked for."""
    code = """
        from emulator.start import NoDevice, first_device
        try:
            first_device()
        except NoDevice as error:
            print(error.wanted, error, sep="|")
        """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "tpu"}
    done = finished([sys.executable, "-c", textwrap.dedent(code)], env=env)
    assert done.returncode == 0, done.stderr
    wanted, text = done.stdout.strip().split("|")
    assert wanted == "tpu"
    assert "JAX_PLATFORMS=tpu" in text and "Set JAX_PLATFORMS=cpu to run on the CPU" in text
    assert issubclass(NoDevice, DeviceError)


def test_a_replica_takes_the_device_of_its_number() -> None:
    """Two devices of XLA:CPU stand for two GPUs: memory and executables are those of the second."""
    out = on_two_devices(
        """
        from emulator.device import Device
        from emulator.start import first_device, prefer_device
        import numpy as np
        from tests.pef_schema.samples import inference

        found = []
        for number in (0, 1, 2):
            prefer_device(number)
            device = Device(inference())
            device.write(0, np.array([[1, 2, 3], [4, -5, 6]], np.float32))
            plan = device.plan(((0, 0),))
            device.run(plan)
            places = {d.id for b in device.pool.buffers if b is not None for d in b.devices()}
            found.append((first_device().id, places, device.read(1).tolist()))
        assert found[0] == found[2] and found[0][2] == found[1][2], found
        print([(chosen, sorted(places)) for chosen, places, _ in found])
        """
    )
    assert out.strip() == "[(0, [0]), (1, [1]), (0, [0])]"


def test_devices_are_taken_in_turn() -> None:
    try:
        prefer_device(5)
        assert [device_number(count) for count in (1, 2, 4, 8)] == [0, 1, 1, 5]
    finally:
        prefer_device(0)


MESH = """
    import sys
    rank, port, numbers = int(sys.argv[1]), *sys.argv[2:]
    import jax, numpy as np
    from emulator.replicas.comm import jaxmesh
    from emulator.replicas.comm.protocol import ReduceOp
    from emulator.start import first_device, prefer_device

    prefer_device(int(numbers[rank]))
    comm = jaxmesh.start(f"127.0.0.1:{port}", rank=rank, size=2, deadline=30)
    device = first_device()
    mine = jax.device_put(np.arange(4, dtype=np.float32) * (rank + 1), device)
    total = comm.all_reduce_device(mine, ReduceOp.SUM)
    assert total.devices() == {device}, (total.devices(), device)
    assert comm.gather_bytes(bytes([rank])) == [bytes([0]), bytes([1])]
    assert len(jax.local_devices()) == 2 and device == jax.local_devices()[int(numbers[rank])]
    print(np.asarray(total).tolist())
"""


@pytest.mark.parametrize("numbers", ["01", pytest.param("11", marks=pytest.mark.slow)])
def test_replicas_on_jaxs_engine_reduce_between_their_own_devices(numbers: str) -> None:
    """Each process sees two devices and takes one; gradients never leave it for the host."""
    port = str(free_port())
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(on_two_devices, MESH, str(rank), port, numbers) for rank in range(2)]
    for out in [one.result() for one in both]:
        assert out.splitlines()[-1] == "[0.0, 3.0, 6.0, 9.0]"
