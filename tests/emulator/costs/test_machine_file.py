"""Machines from TOML and measured ones, and costs without jax; all problems are told at once."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from emulator.costs import measuring, timing
from emulator.costs.machine_file import (
    BadMachineFile,
    machine_toml,
    parsed_machine,
    read_machine,
)
from emulator.costs.roofline import Binding, Cache, Cost, Machine, NoRate, bound
from emulator.op_facts.flops import Flops
from pef_schema.program import DType
from tests.processes import finished
from tests.terminal import TEXT, foreign

GOOD = "float32_gflops = 100.0\nbandwidth_gb_s = 20\n"


def test_a_file_is_read(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text(
        f'name = "a chip"\nbfloat16_gflops = 400\n{GOOD}'
        "[[cache]]\nsize_mb = 32\nbandwidth_gb_s = 300\n"
    )
    machine = read_machine(str(path))
    assert machine.name == "a chip"
    assert machine.rate(DType.FLOAT32) == 1e11 and machine.rate(DType.BFLOAT16) == 4e11
    assert machine.bandwidth_of(32e6) == 3e11 and machine.bandwidth_of(33e6) == 2e10
    assert parsed_machine(machine_toml(machine), "again") == machine


def test_a_name_of_any_characters_survives():
    machine = Machine(name=f'"\\{TEXT}', rates=((DType.INT8, 1e9),), bandwidth=1e9)
    text = machine_toml(machine)
    assert not foreign(text)
    assert parsed_machine(text, "x") == machine


BAD = {
    "no TOML": ("float32_gflops =", ["is not valid TOML"]),
    "a key that is none": (
        GOOD + "float16_gflop = 1",
        ["float16_gflop: no such key; did you mean float16_gflops?"],
    ),
    "an unlike key": (GOOD + "zzz = 1", ["zzz: no such key; the keys are name"]),
    "negative": (
        "float32_gflops = -1\nbandwidth_gb_s = 0",
        ["float32_gflops: found -1", "bandwidth_gb_s: found 0, expected a number above 0"],
    ),
    "no number": (
        "float32_gflops = true\nbandwidth_gb_s = nan\nbfloat16_gflops = '3'",
        ["float32_gflops: found True", "bandwidth_gb_s: found nan", "bfloat16_gflops: found 3"],
    ),
    "too large": ("float32_gflops = 1\nbandwidth_gb_s = " + "9" * 400, ["bandwidth_gb_s: found"]),
    "nothing": ("", ["no rate of products", "bandwidth_gb_s: missing"]),
    "a cache of nothing": (
        GOOD + "[[cache]]\n[[cache]]\nsize = 3",
        [
            *("cache[0].size_mb: missing", "cache[0].bandwidth_gb_s: missing"),
            "cache[1].size: no such key; did you mean size_mb?",
        ],
    ),
    "a cache that is none": (GOOD + "cache = 3", ["cache: found 3, expected tables"]),
    "a list of numbers": (GOOD + "cache = [3]", ["cache[0]: found 3, expected a table"]),
    "a name that is none": (GOOD + "name = 3", ["name: found 3, expected a string"]),
    "a rate of truth": (GOOD + "bool_gflops = 3", ["bool_gflops: no such key"]),
    "deep": (GOOD + "name = " + "[" * 5000 + "]" * 5000, ["is n"]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_machine(name):
    text, wanted = BAD[name]
    with pytest.raises(BadMachineFile) as caught:
        parsed_machine(text, "chip.toml")
    error = caught.value
    assert error.path == "chip.toml"
    for part in wanted:
        assert any(part in problem for problem in error.problems), error.problems
        assert part in str(error)
    assert "docs/cost.md" in str(error)


def test_paths_that_are_no_files(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 21))
    for path, reason in (
        (tmp_path, "is a folder"),
        (tmp_path / "none.toml", "there is no such file"),
        (tmp_path / "binary.toml" / "x", "there is no such file"),
        (pipe, "is a folder, a pipe or a device"),
        (tmp_path / "binary.toml", "is not UTF-8 text (byte 0)"),
        (tmp_path / "large.toml", "has more than 1048576 bytes"),
        ("a\0b", "is not a path"),
    ):
        with pytest.raises(BadMachineFile, match=reason.replace("(", r"\(").replace(")", r"\)")):
            read_machine(str(path))


def test_types_without_a_rate_are_named_together():
    machine = Machine(name="m", rates=((DType.FLOAT32, 1e9),), bandwidth=1e9)
    work = Flops(products=((DType.INT8, 4), (DType.BFLOAT16, 8), (DType.FLOAT32, 2)))
    with pytest.raises(NoRate, match="int8_gflops and bfloat16_gflops") as caught:
        bound(Cost(work=work), machine)
    assert caught.value.dtypes == (DType.INT8, DType.BFLOAT16)
    assert caught.value.known == (DType.FLOAT32,)
    with pytest.raises(NoRate, match="float64"):
        machine.rate(DType.FLOAT64)


def test_bounds():
    machine = Machine(
        name="m",
        rates=((DType.BFLOAT16, 4e9), (DType.FLOAT32, 1e9)),
        bandwidth=1e9,
        caches=(Cache(nbytes=1000, bandwidth=1e10), Cache(nbytes=100, bandwidth=1e11)),
    )

    def of(nbytes: int, **products: int) -> tuple[float, Binding]:
        work = Flops(products=tuple((DType[k], v) for k, v in products.items()))
        found = bound(Cost(work=work, bytes_read=nbytes), machine)
        return found.seconds, found.binding

    assert of(0) == (0.0, Binding.NOTHING)
    assert of(2000) == (2e-6, Binding.MEMORY)
    assert of(1000) == (1e-7, Binding.CACHE)
    assert of(100) == (1e-9, Binding.CACHE)
    assert of(2000, BFLOAT16=8000, FLOAT32=1000) == (3e-6, Binding.PRODUCTS)


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


ROOT = Path(__file__).parents[3]


def test_costs_load_neither_torch_nor_jax():
    code = (
        "import sys, emulator.costs.machine_file, emulator.costs.roofline, emulator.costs.steps, "
        "emulator.costs.description, emulator.costs.timing; "
        "sys.exit(bool({'jax', 'torch'} & sys.modules.keys()))"
    )
    done = finished([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 0, done.stderr
