"""What workers measure beside steps: sections, host time, memory, limits."""

from __future__ import annotations

from contextlib import closing

import pytest

from bench import models
from bench.measurement import FULL
from bench.memory_parts import PARTS, parts_of, resident_now
from bench.process import Contestant, Worker
from bench.suites.host import host_seconds
from bench.suites.limit import copy, gemm, work
from bench.suites.memory import peak_memory, status_bytes
from bench.suites.sections import WHOLE, seconds_in_parts, section_seconds
from emulator.plans.linked import layers, parts
from pef_schema.program import DType
from tests.emulator.costs.counting import counted_step


@pytest.fixture
def logreg() -> Contestant:
    return Contestant(models.SMALL["logreg-1"], "ours")


def test_sections_are_timed_and_weights_stay(logreg):
    import samba

    found = section_seconds(logreg, count=1)
    assert list(found) == ["fwd_0", "bckwd_0", "opt_sgd0", FULL]
    names = samba.session.get_weight_names()
    before = [t.clone() for t in samba.session.get_tensors_by_name(names)]
    found = section_seconds(logreg, count=2)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())
    after = samba.session.get_tensors_by_name(names)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_a_schedule_in_parts_beside_one_executable(logreg, monkeypatch):
    assert list(seconds_in_parts(logreg, count=1)) == [FULL]  # it has no equal layers
    for module in (layers, parts):
        monkeypatch.setattr(module, "LEAST_SPARED", 4)
        monkeypatch.setattr(module, "LEAST_SECONDS", 1e-12)
    found = seconds_in_parts(Contestant(models.SMALL["gpt2"], "ours"), count=2)
    assert list(found) == [FULL, WHOLE]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())


@pytest.mark.slow
def test_a_planted_slowdown_is_really_spent(logreg):
    section_seconds(logreg, count=0)
    plain = section_seconds(logreg, count=3)
    slow = section_seconds(logreg, count=3, plants={"bckwd_0": 20.0})
    assert min(slow["bckwd_0"]) > 5 * min(plain["bckwd_0"])
    assert min(slow["fwd_0"]) < 5 * max(plain["fwd_0"])


def test_host_time_is_what_the_executable_leaves(logreg):
    found = host_seconds(logreg, count=3)
    assert 0 < found["regions"] <= 13
    pairs = list(zip(found["total"], found["executable"], strict=True))
    assert len(pairs) == 3 and all(0 < inside < total for total, inside in pairs)


@pytest.mark.slow
def test_memory_sees_what_a_step_holds():
    """A GPT of 4 MB needs four times that: weights, gradients and two moments."""
    with closing(Worker(case="layers-12", contender="eager", threads=1)) as worker:
        found = worker.ask(peak_memory, warm=1, count=1)
    weights = sum(4 * p.numel() for p in models.STARTED_ALONE["layers-12"].model().parameters())
    net = found["peak"] - found["baseline"]
    assert 3.5 * weights < net < 6.5 * weights + (32 << 20)


def test_the_parts_of_a_steps_memory(logreg):
    """They add up to the peak, and name what the model has."""
    result = peak_memory(logreg, warm=1, count=1)
    parts = result["parts"]
    assert tuple(parts) == PARTS
    weights = [tensor.nbytes for tensor in models.SMALL["logreg-1"].model().state_dict().values()]
    assert parts["tensors of the model on the host"] == sum(weights)
    assert parts["regions on the device"] > 2 * sum(weights)  # weights and gradients
    assert abs(parts["mapped files and generated code"]) < 64 << 20
    assert parts["free pieces of heaps, and Python's objects"] > -(8 << 20)


def test_memory_in_use_is_seen():
    before = resident_now()
    block = bytearray(b"x" * (40 << 20))
    after = resident_now()
    sizes = parts_of(before, after, peak=len(block), held=len(block), temporary=0, tensors={})
    assert abs(after.used - before.used - len(block)) < 4 << 20
    assert abs(sizes["objects of XLA and jax"]) < 4 << 20
    assert abs(sizes["mapped files and generated code"]) < 1 << 20


def test_a_field_that_is_missing():
    with pytest.raises(LookupError, match="VmHWM"):
        status_bytes("VmHWM", "VmPeak: 8 kB\n")


@pytest.mark.parametrize("contender", ["eager", "jax"])
def test_rates(contender):
    contestant = Contestant(models.SMALL["logreg-1"], contender)
    for dtype in ("float32", "bfloat16"):
        assert gemm(contestant, (8, 16, 8), dtype, 0.0)["rate"] > 0
    assert copy(Contestant(models.SMALL["logreg-1"], "eager"), 4096, 0.0)["rate"] > 0


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "logreg-1" else [pytest.mark.slow]) for n in models.SMALL],
)
def test_every_case_has_a_bound(name):
    found = work(models.SMALL[name])
    assert found.product_flops == counted_step(models.SMALL[name]) > 0 and found.nbytes > 0


def test_work_of_a_case():
    found = work(models.res_ffn(batch=4, width=8, classes=8))
    # Three layers forward, three weight gradients, two input gradients.
    assert found.products == ((DType.FLOAT32, 8 * 2 * 4 * 8 * 8),)
    weights = 4 * (3 * (8 * 8 + 8) + 2 * (8 + 8))
    assert found.nbytes == 4 * weights + 4 * 4 * 8 + 8 * 4
    assert [dtype for dtype, _ in work(models.SMALL["mlp_bf16"]).products] == [DType.BFLOAT16]
    assert [dtype for dtype, _ in work(models.SMALL["lstm"]).products] == [DType.FLOAT32]
