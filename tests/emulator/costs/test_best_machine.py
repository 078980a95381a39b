"""The best rates of a machine are kept; what was measured beside other work is told as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.costs import best_machine as module
from emulator.costs.best_machine import best_machine
from emulator.costs.roofline import Machine
from pef_schema.program import DType

F32, BF16 = DType.FLOAT32, DType.BFLOAT16


def machine(rate: float, bandwidth: float, *dtypes: DType) -> Machine:
    return Machine(name="m", rates=tuple((d, rate) for d in sorted(dtypes)), bandwidth=bandwidth)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what share others take, measurement by measurement; the last one stays."""

    def takes(*shares: float) -> None:
        left = list(shares)

        def share(busy: float, own: float, seconds: float) -> float:
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(module, "share_of_others", share)

    return takes


def test_a_quiet_machine_is_measured_once(busy: Callable[..., None]) -> None:
    busy(0.02)
    tries: list[Machine] = []

    def measure() -> Machine:
        tries.append(machine(1e9, 1e9, F32))
        return tries[-1]

    found = best_machine(measure, {F32})
    assert found.is_quiet and found.machine == tries[0] and len(tries) == 1


def test_a_busy_one_is_measured_again_and_the_best_counts(busy: Callable[..., None]) -> None:
    busy(0.9, 0.5, 0.7)
    tries = [machine(3e9, 1e9, F32), machine(2e9, 4e9, F32), machine(1e9, 1e9, F32)]
    found = best_machine(lambda: tries.pop(0), {F32})
    assert not tries and not found.is_quiet and found.others == 0.5
    assert found.machine == machine(3e9, 4e9, F32)
    busy(0.9, 0.05)
    tries = [machine(1e9, 1e9, F32), machine(2e9, 1e9, F32), machine(9e9, 9e9, F32)]
    assert best_machine(lambda: tries.pop(0), {F32}).is_quiet
    assert len(tries) == 1


def test_the_best_is_kept(
    busy: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATOR_CACHE", str(tmp_path / "cache"))
    busy(0.0)
    best_machine(lambda: machine(5e9, 2e9, F32), {F32})
    busy(0.8)
    found = best_machine(lambda: machine(1e9, 3e9, F32), {F32})
    assert found.is_quiet and found.machine == machine(5e9, 3e9, F32)
    # Of another type nothing was measured quietly.
    found = best_machine(lambda: machine(1e9, 1e9, F32, BF16), {F32, BF16})
    assert not found.is_quiet and found.machine.rate(F32) == 5e9
    assert best_machine(lambda: machine(1e9, 1e9, F32), {F32}).machine == machine(5e9, 3e9, F32)
    (kept,) = (tmp_path / "cache" / "machines").iterdir()
    kept.write_bytes(b"damaged")
    assert not best_machine(lambda: machine(1e9, 1e9, F32), {F32}).is_quiet


def test_what_an_other_version_kept_is_left_out() -> None:
    assert module._read(b"# quiet: FLOAT32\nunknown = 3\n") == (None, set())
    assert module._read(None) == (None, set())
