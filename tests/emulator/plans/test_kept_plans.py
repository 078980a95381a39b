"""Plans that outlive the process: they are not traced again, and do the same."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from emulator.counters import Source
from emulator.device import Device
from emulator.errors import LostMemory
from emulator.kept_files import CACHE_VARIABLE, KeptFiles
from emulator.kernels import products
from emulator.lowering.variant import Variant
from emulator.native.library import NATIVE_VARIABLE, native_library, without_native
from emulator.ops import registry
from emulator.plans import executable_cache, kept_plans, plan, xla_options
from emulator.plans.kept_plans import KeptPlan, KeptPlans
from emulator.plans.linked import layers, parts
from emulator.plans.steps import all_steps
from pef_schema.program import Program, Role
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests import processes
from tests.emulator.plans.test_executable_cache import only_file, same, trained
from tests.emulator.plans.test_sharing import Tower, device_of, program_of
from tests.tracing import trace
from tests.warm import finished


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept" / "plans"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of plans that were traced and compiled since the fixture began."""
    found: list[str] = []
    before = KeptPlans.keep

    def keep(self: KeptPlans, key: str, plan: KeptPlan) -> None:
        found.append(key)
        before(self, key, plan)

    monkeypatch.setattr(KeptPlans, "keep", keep)
    return found


@pytest.fixture
def patched_code_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test puts in the place of this project's functions is taken for its own code."""
    monkeypatch.setattr(kept_plans, "is_as_imported", lambda: True)


def test_a_kept_plan_is_not_traced_and_gives_the_same_bits(kept: Path, made: list[str]) -> None:
    first = trained()
    assert len(made) == 1
    assert same(first, trained())
    assert len(made) == 1
    assert not same(first, trained(steps=4))
    only_file(kept)


_SCRIPT = """
from emulator.plans.kept_plans import KeptPlans
from tests.emulator.plans.test_executable_cache import trained
def refuse(*args):
    raise AssertionError("it is traced again")
KeptPlans.keep = refuse
print(*[float(a.sum()).hex() for a in trained()])
"""


def test_a_second_process_traces_nothing(kept: Path) -> None:
    first = trained()
    done = finished([sys.executable, "-c", _SCRIPT])
    assert done.stdout.split() == [float(a.sum()).hex() for a in first], done.stderr


def convolved() -> float:
    """The mean of a convolution by native kernels, whose plan is kept."""
    torch.manual_seed(0)
    layer, x = torch.nn.Conv2d(64, 64, 3, padding=1), torch.ones(4, 64, 16, 16)
    program = build_program(trace(layer, (x,)), [], CompileOptions(name="conv", inference=True))
    device = Device(program)
    tensors = {f"conv2d__{name}": p.detach() for name, p in layer.named_parameters()}
    for index, region in enumerate(program.regions):
        if region.role is Role.INPUT or region.name in tensors:
            device.write(index, tensors.get(region.name, x).numpy())
    device.run(device.plan(all_steps(program)))
    (result,) = [device.read(v) for v, r in enumerate(program.regions) if r.role is Role.OUTPUT]
    return float(result.mean())


@pytest.mark.slow
@pytest.mark.skipif(native_library() is None, reason="there are no native kernels here")
def test_where_kernels_want_more_memory_a_plan_is_compiled_again(
    kept: Path, made: list[str]
) -> None:
    """How much oneDNN wants depends on its settings, too, which no name of a plan contains."""
    code = "from tests.emulator.plans.test_kept_plans import convolved; print(convolved())"
    first = convolved()
    assert len(made) == 1
    environ = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = processes.finished([sys.executable, "-c", code], env=environ)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(first, rel=1e-5)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are divided however little is spared."""
    for module in (parts, layers):
        monkeypatch.setattr(module, "LEAST_SPARED", 4)
        monkeypatch.setattr(module, "LEAST_SECONDS", 1e-12)
    monkeypatch.setattr(layers, "_BESIDE", 0.0)


def tower(blocks: int) -> Device:
    torch.manual_seed(0)
    model = Tower(blocks)
    return device_of(program_of(model), model)


def stepped() -> tuple[Device, list[np.ndarray]]:
    """A tower of equal layers after three steps."""
    device = tower(6)
    for _ in range(3):
        device.run(device.plan(all_steps(device.program)))
    return device, [np.array(b) for b in device.pool.buffers if b is not None]


@pytest.mark.usefixtures("small_parts", "patched_code_counts")
def test_a_plan_in_parts_is_kept_as_one(kept: Path, made: list[str]) -> None:
    device, first = stepped()
    ((_, _, first_plan),) = device.plans()
    assert len(first_plan.executables) > 1
    again, second = stepped()
    ((_, _, loaded),) = again.plans()
    assert len(made) == 1
    assert same(first, second)
    assert len(loaded.executables) == len(first_plan.executables)
    assert (loaded.memory, loaded.making.source) == (first_plan.memory, Source.CACHE)


def test_it_says_that_it_is_from_the_cache(kept: Path) -> None:
    device, _ = stepped()
    again, _ = stepped()
    ((_, _, made),), ((_, _, loaded),) = device.plans(), again.plans()
    assert (made.making.source, loaded.making.source) == (Source.COMPILED, Source.CACHE)
    assert loaded.memory == made.memory


def test_first_values_are_written_while_it_is_loaded(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped()
    device, load, empty = tower(6), plan.load_kept, []

    def slow(*how: Any) -> Any:
        missing: list[int] = []
        for _ in range(200):  # two seconds at most: nobody waits for this thread meanwhile
            missing = [home for home in states_of(device) if device.pool.buffers[home] is None]
            if not missing:
                break
            time.sleep(0.01)
        empty.extend(missing)
        return load(*how)

    monkeypatch.setattr(plan, "load_kept", slow)
    monkeypatch.setattr(kept_plans, "is_as_imported", lambda: True)
    device.plan(all_steps(device.program))
    assert not empty


def test_lost_memory_is_not_filled_while_a_plan_is_loaded(kept: Path) -> None:
    stepped()
    device = tower(6)
    device.run(device.plan(all_steps(device.program)))
    lost = states_of(device)[0]
    jax.block_until_ready(device.pool.buffers)
    device.pool.buffers[lost].delete()
    assert device.find_lost()
    device._plans.clear()  # as many others in between would
    again = device.plan(all_steps(device.program))
    assert again.making.source is Source.CACHE
    with pytest.raises(LostMemory):
        device.run(again)


def states_of(device: Device) -> list[int]:
    """Buffers of optimizer states."""
    regions = enumerate(device.program.regions)
    return [index for index, region in regions if region.role is Role.OPTIMIZER_STATE]


# -- what it depends on ---------------------------------------------------------------------------


def key_of(device: Device, variant: Variant | None = None, *, whole: bool = False) -> str:
    steps = all_steps(device.program)
    composition = plan.composition_of(
        device.program, device.buffer_map, steps, variant or device.variant
    )
    return KeptPlans(device.program, device.placement.chips).key(composition, whole=whole)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    yield tower(2)


def _patched(*change: Any) -> Callable[[pytest.MonkeyPatch], Any]:
    return lambda patch: patch.setattr(*change)


_SURROUNDINGS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "processor": _patched(executable_cache, "_processor", lambda: "another processor"),
    "versions": _patched(executable_cache, "_machine", lambda: b"another version"),
    "options": _patched(xla_options, "_CPU", {"xla_cpu_enable_fast_math": False}),
    "flags": lambda patch: patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false"),
    "own code": _patched(kept_plans, "FILES", (("emulator/device.py", 1, 2),)),
}


@pytest.mark.usefixtures("patched_code_counts")
@pytest.mark.parametrize("change", _SURROUNDINGS.values(), ids=_SURROUNDINGS)
def test_what_every_plan_depends_on_is_part_of_its_name(
    change: Callable[[pytest.MonkeyPatch], Any],
    device: Device,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = key_of(device)
    change(monkeypatch)
    assert key_of(device) != before


@pytest.mark.skipif(native_library() is None, reason="there are no native kernels here")
def test_without_native_kernels_it_is_another_plan(
    device: Device, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(device)
    with without_native():
        assert key_of(device) != before
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    assert key_of(device) != before


_config: Any = jax


@pytest.mark.parametrize(
    "context",
    [
        lambda: _config.default_matmul_precision("bfloat16"),
        lambda: _config.numpy_dtype_promotion("strict"),
        lambda: _config.debug_nans(True),
        lambda: _config.threefry_partitionable(False),
    ],
)
def test_jaxs_settings_of_the_thread_are_part_of_its_name(
    context: Callable[[], Any], device: Device, kept: Path
) -> None:
    before = key_of(device)
    with context():
        assert key_of(device) != before
    assert key_of(device) == before


def test_what_a_plan_is_made_of_is_part_of_its_name(device: Device, kept: Path) -> None:
    program = device.program
    keys = [key_of(device), key_of(device, whole=True)]
    keys += [
        key_of(device, replace(device.variant, **change))
        for change in (
            {"ones": False},
            {"seeded": frozenset([1])},
            {"no_momentum": frozenset([0])},
            {"no_dropout": frozenset([1])},
            {"checks": frozenset([1])},
        )
    ]
    graph = program.graphs[0]
    tanh = replace(graph.nodes[0], op="aten.tanh.default")
    changed: list[Program] = [
        replace(program, name="other"),
        replace(program, sections=program.sections[::-1]),
        replace(
            program,
            graphs=(replace(graph, nodes=(tanh, *graph.nodes[1:])),),
        ),
        replace(program, regions=(replace(program.regions[0], shape=(7,)), *program.regions[1:])),
    ]
    for other in changed:
        files = KeptPlans(other, device.placement.chips)
        composition = plan.composition_of(
            program, device.buffer_map, all_steps(program), device.variant
        )
        keys.append(files.key(composition, whole=False))
    some = all_steps(program)[:1]
    composition = plan.composition_of(program, device.buffer_map, some, device.variant)
    keys.append(KeptPlans(program, device.placement.chips).key(composition, whole=False))
    assert "" not in keys
    assert len({*keys}) == len(keys)


def test_every_fact_of_a_variant_counts() -> None:
    """A field that is added to it is part of the name, too."""
    assert [name for name, _ in Variant().facts] == [*Variant.__dataclass_fields__]


def test_operations_of_others_are_never_kept(
    device: Device, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(x: jax.Array) -> jax.Array:
        return x

    monkeypatch.setitem(registry._OPS, "mine.op", registry.OpSpec(name="mine.op", lower=lower))
    assert key_of(device) == ""
    trained(steps=1)
    assert not kept.exists()


def test_a_plan_of_patched_code_is_neither_kept_nor_recalled(
    device: Device, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(device)
    monkeypatch.setattr(products, "a_new_name", 7, raising=False)
    assert key_of(device) == before, "a new name replaces nothing"
    monkeypatch.setattr(products, "_FEW_COLUMNS", 9)
    assert key_of(device) == ""


def test_nothing_is_kept_where_the_cache_is_off(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "0")
    assert key_of(device) == ""


# -- what can be wrong with it --------------------------------------------------------------------


def _without(*names: str) -> Callable[[Any], Any]:
    return lambda found: {name: value for name, value in found.items() if name not in names}


def _with(**parts: Any) -> Callable[[Any], Any]:
    return lambda found: {**found, **parts}


def _first_with(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Facts of the first executable, each made from what it was."""

    def damaged(found: Any) -> Any:
        first, *others = found["executables"]
        changed = {name: change(first[name]) for name, change in changes.items()}
        return {**found, "executables": [{**first, **changed}, *others]}

    return damaged


_DAMAGED: dict[str, Callable[[Any], Any]] = {
    "no JSON": lambda found: None,
    "another form": lambda found: [found],
    "no executables": _without("executables"),
    "no chain": _without("chain"),
    "a number for a name": _with(executables=[{"name": 3}]),
    "a link of three parts": _with(chain={"links": [[0, [], []]], "made": 0, "results": []}),
    "another executable": _first_with(name=lambda name: "another"),
    "no executable at all": _with(executables=[]),
    "a place that there is not": _with(
        chain={"links": [[0, [10**6], [0], []]], "made": 1, "results": [0]}
    ),
    "a result that nobody makes": _with(chain={"links": [], "made": 1, "results": [0]}),
    "fewer arguments": _first_with(takes=lambda takes: takes[1:]),
    "an argument of another shape": _first_with(takes=lambda takes: [[[5], "float32"], *takes[1:]]),
    "an unknown type": _first_with(gives=lambda gives: [[[], "float7"], *gives[1:]]),
}


_SLOW = (
    *("another form", "no chain", "a number for a name", "no executable at all"),
    *("a place that there is not", "an unknown type"),
)


def test_a_plan_of_another_form_is_made_anew(kept: Path, made: list[str]) -> None:
    first = trained()
    path = only_file(kept)
    files = KeptFiles(kept, limit=1 << 26)
    data = files.get(path.stem)
    assert data is not None
    fast = bool(os.environ["XLA_FLAGS"])  # `make test-all` tries each damage
    damages = [name for name in _DAMAGED if not (fast and name in _SLOW)]
    for count, name in enumerate(damages, 2):
        found = _DAMAGED[name](json.loads(data))
        files.put(path.stem, b"no JSON" if found is None else json.dumps(found).encode())
        assert same(first, trained()), name
        assert len(made) == count, name
        assert files.get(path.stem) == data, f"{name}: it was kept again"
    assert same(first, trained())
    assert len(made) == len(damages) + 1


def test_a_plan_whose_executable_is_gone_is_made_anew(kept: Path, made: list[str]) -> None:
    first = trained()
    only_file(kept.parent / "executables").unlink()
    assert same(first, trained())
    assert len(made) == 2
    assert same(first, trained())
    assert len(made) == 2


@pytest.mark.usefixtures("patched_code_counts")
def test_a_plan_that_calls_into_this_process_is_not_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan.composed

    def calling(made_of: Any) -> Callable[..., Any]:
        run = before(made_of)

        def called(*arrays: Any) -> Any:
            jax.debug.callback(lambda: None)
            return run(*arrays)

        return called

    monkeypatch.setattr(plan, "composed", calling)
    trained(steps=1)
    assert not kept.exists()
