"""PEFs and executables that several tests share."""

from __future__ import annotations

import pytest

from tests.samba.worlds import Pefs


@pytest.fixture(scope="session")
def pefs(tmp_path_factory: pytest.TempPathFactory) -> Pefs:
    """Each world's PEF, compiled when first asked for."""
    return Pefs(tmp_path_factory.mktemp("pefs"))


@pytest.fixture(scope="session", autouse=True)
def shared_executables():
    """Devices that run the same program share what XLA made of it.

    A plan follows from program, steps and variant alone. Devices count it all the same.
    """
    from emulator import device

    compile_plan, plans = device.compile_plan, {}

    def shared(program, memory, steps, variant, where):
        key = (program, steps, variant)
        if key not in plans:
            plans[key] = compile_plan(program, memory, steps, variant, where)
        return plans[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "compile_plan", shared)
        yield
