"""Rates of this machine: that they are measured, and that nothing is left behind."""

from __future__ import annotations

import threading

import pytest

from emulator.costs import measuring, timing
from pef_schema.program import DType


def test_a_machine_is_measured(monkeypatch):
    monkeypatch.setattr(measuring, "SHAPES", ((8, 16, 8),))
    monkeypatch.setattr(timing, "_NEAR", (1 << 12, 1 << 13))
    monkeypatch.setattr(timing, "COPIED", 1 << 14)
    monkeypatch.setattr(timing, "_LEAST_COPIED", 1 << 14)
    types = (DType.FLOAT64, DType.FLOAT32)
    before = threading.active_count()
    machine = measuring.measured_machine(types, seconds=0.0)
    assert [d for d, _ in machine.rates] == sorted(types)
    assert all(rate > 0 for _, rate in machine.rates) and machine.bandwidth > 0
    assert all(c.bandwidth > machine.bandwidth for c in machine.caches)
    sizes = [c.nbytes for c in machine.caches]
    assert sizes == sorted(sizes)
    assert str(timing.processors()) in machine.name
    assert threading.active_count() == before


@pytest.mark.slow
def test_products_of_every_type_are_measured(monkeypatch):
    monkeypatch.setattr(measuring, "SHAPES", ((8, 16, 8),))
    for dtype in DType:
        if dtype is not DType.BOOL:
            assert measuring._product_rate(dtype, 0.0) > 0, dtype


def test_memory_of_a_device(monkeypatch):
    monkeypatch.setattr(measuring, "COPIED", 1 << 12)
    assert measuring._device_rate(0.0) > 0


def test_a_failure_ends_the_threads(monkeypatch):
    monkeypatch.setattr(timing, "processors", lambda: 3)
    before = threading.active_count()

    def fail(worker: int) -> None:
        if worker == 0:
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        timing._shortest_together(fail, 0.0)
    assert threading.active_count() == before


def test_the_shortest_time_is_of_one_turn():
    turns = []
    least = timing.shortest(lambda: turns.append(1), 0.01)
    assert 0 <= least <= 0.01 and len(turns) > 2
