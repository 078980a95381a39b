"""``samba.session.metrics()``, what is told at exit, and ``compile --compiled-stats-json``."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

import samba
from emulator.costs.memory import memory_need, schedule_steps
from emulator.costs.steps import section_cost
from emulator.counters import RunTimes, Source
from emulator.kept_files import CACHE_VARIABLE
from pef_schema import read_pef
from samba.errors import ArgumentError
from samba.session.metrics import METRICS_VARIABLE, MetricsBook, Totals, totals_of
from tests.pages import page
from tests.samba.session.loading import loaded
from tests.samba.worlds import MLP, World, named, other_batch
from tests.warm import forked

BATCH = 5 * 4 * 4 + 5 * 8
"""Bytes of a batch of the MLP: five rows of four floats, five labels of 64 bits."""
OUTPUTS = 4 + 5 * 3 * 4
"""Bytes of its outputs: the loss, and five rows of three floats."""


def counted() -> dict:
    return samba.session.metrics().as_dict()


def more(before: dict, key: str) -> float:
    return counted()[key] - before[key]


def test_runs_and_bytes_are_counted(scene):
    before = counted()
    for seed in range(6):
        samba.session.run(named(other_batch(seed)), scene.model.output_tensors)
    assert more(before, "runs") == 6
    assert more(before, "prepared") == 1
    assert more(before, "compiles") == 1
    assert more(before, "bytes_from_device") == 6 * OUTPUTS
    moved = more(before, "bytes_to_device")
    # What a first run fills with zeros: outputs, gradients and momentum.
    zeros = sum(
        r.nbytes
        for r in samba.session.program.regions
        if r.role.name in ("OUTPUT", "GRADIENT", "OPTIMIZER_STATE")
    )
    assert moved == 6 * BATCH + zeros
    # What is not fed is not moved, and what is not asked for neither.
    before = counted()
    samba.session.run(None, ())
    samba.session.run(None, scene.model.output_tensors[:1])
    assert more(before, "bytes_to_device") == 0
    assert more(before, "bytes_from_device") == 4
    assert more(before, "prepared") == 2


def test_inputs_of_other_forms_are_counted_too(scene):
    batch = other_batch()
    samba.session.run(named(batch), ())
    before = counted()
    samba.session.run(batch, ())  # plain tensors by name take the slow way
    samba.session.run({"x": batch["x"]}, scene.model.output_tensors)
    assert more(before, "bytes_to_device") == BATCH + 5 * 4 * 4


def test_tensors_that_are_read_and_written_are_counted(scene):
    before = counted()
    weight = scene.model.first.weight
    name = "mlp__first__weight"
    assert samba.session.get_tensors_by_name(name)[0].shape == weight.shape
    assert more(before, "bytes_from_device") == 6 * 4 * 4
    weight.sn_data = weight.sn_data * 2
    assert more(before, "bytes_to_device") == 6 * 4 * 4
    before = counted()
    samba.session.to_cpu(scene.model)
    parameters = sum(4 * p.numel() for p in scene.model.parameters())
    assert more(before, "bytes_from_device") == parameters


def test_an_output_that_was_never_computed_is_counted_once(pefs):
    """Zeros of a gradient that no run has written come from the host, by another way."""
    pefs.loaded(MLP)
    before = counted()
    (found,) = samba.session.run(None, ("mlp__first__weight__grad",), section_types=["fwd"])
    assert not found.any()
    assert more(before, "bytes_from_device") == 6 * 4 * 4


def test_a_call_that_is_refused_counts_nothing_but_what_it_fed(scene):
    samba.session.run(named(other_batch()), scene.model.output_tensors)
    before = counted()
    with pytest.raises(samba.errors.SambaError):
        samba.session.run(named(other_batch(batch=4)), scene.model.output_tensors)
    assert all(
        more(before, key) == 0
        for key in ("runs", "compiles", "bytes_to_device", "bytes_from_device")
    )


def test_plans_are_counted_by_where_they_are_from(tmp_path, monkeypatch):
    """The first process makes, the second reads: here two loads with a cache of their own."""
    from emulator.native.library import without_native

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    world = World(name="cached")
    scene = world.build()
    scene.compile(tmp_path)
    from emulator import device
    from emulator.plans.plan import compile_plan

    monkeypatch.setattr(device, "compile_plan", compile_plan)  # these tests share plans otherwise
    for key in ("misses", "hits"):
        scene.trace()
        before = counted()
        with without_native():
            samba.session.run(scene.inputs, ())
        after = counted()
        changed = {k for k in after["cache"] if after["cache"][k] != before["cache"][k]}
        assert changed == {key}
        assert after["cache"][key] == before["cache"][key] + 1
        assert after["lowering_seconds"] > before["lowering_seconds"]
        assert after["xla_seconds"] > before["xla_seconds"]
    monkeypatch.setenv(CACHE_VARIABLE, "0")
    scene.trace()
    before = counted()
    with without_native():
        samba.session.run(scene.inputs, ())
    assert counted()["cache"]["off"] == before["cache"]["off"] + 1


def test_host_times_of_runs(scene):
    samba.session.run(named(other_batch()), scene.model.output_tensors)  # compiles
    before = counted()
    assert before["timed_runs"] == samba.session.metrics().totals.timed
    for seed in range(200):
        samba.session.run(named(other_batch(seed)), scene.model.output_tensors)
    found = counted()
    timed = found["timed_runs"] - before["timed_runs"]
    assert 30 < timed < 40  # the first 32, then two in 61
    for key in ("host_seconds", "wait_seconds", "between_seconds"):
        times = found[key]
        assert 0 < times["median"] <= times["p95"] <= times["max"]
        assert 0 < times["mean"] < 1


def test_time_between_two_runs_is_the_scripts(scene):
    """What the script does between two runs is in no time of a run."""
    for _ in range(6):
        samba.session.run(scene.inputs, scene.model.output_tensors)
        time.sleep(0.05)
    times = samba.session.need_loaded("metrics()").device.counters.times
    assert times.pauses == times.count - 1 == 4  # the first run compiles
    assert min(times.latest_pauses) >= 0.05
    assert times.between == pytest.approx(sum(times.latest_pauses))
    assert "between two runs" in str(samba.session.metrics())


def test_two_runs_in_a_prime_number_are_timed_later():
    times = RunTimes()
    noted = []
    for left in range(1000, 0, -1):
        if left <= times.due:
            times.note(left, begun=10.0 * (1000 - left), host=1.0, wait=2.0)
            noted.append(1000 - left)
    assert noted[:34] == [*range(32), 31 + 60, 31 + 61]
    assert {b - a for a, b in itertools.pairwise(noted[33::2])} == {61}
    assert (times.count, times.host, times.wait) == (len(noted), len(noted), 2 * len(noted))
    assert times.pauses == sum(b - a == 1 for a, b in itertools.pairwise(noted))
    assert set(times.latest_pauses) == {7.0}


def test_traces_are_counted_with_their_time(tmp_path):
    before = counted()
    loaded(World(name="traced"), tmp_path)
    assert more(before, "traces") == 2
    assert more(before, "trace_seconds") > 0


def test_evaluators_count_too_and_a_reset_forgets_nothing(scene):
    samba.session.run(scene.inputs, ())
    before = counted()
    evaluator = samba.session.evaluator(scene.model)
    evaluator.run(scene.inputs)
    assert more(before, "runs") == more(before, "compiles") == 1
    del evaluator
    after = counted()
    samba.session.reset()
    assert counted() == after | {"rank": 0}
    assert samba.SambaSession().metrics().runs == 0


def test_devices_that_are_gone_leave_their_counts():
    class Device:
        def __init__(self) -> None:
            from emulator.counters import DeviceCounters

            self.counters = DeviceCounters()

    book = MetricsBook()
    for turn in range(5):
        device = Device()
        device.counters.to_device += 10
        device.counters.times.note(turn, begun=0.0, host=1.0, wait=0.0)
        book.add(device)
        assert len(book._devices) <= 2
    found = book.metrics()
    assert (found.totals.to_device, found.totals.timed) == (50, 5)
    assert sum(entry[1].to_device for entry in book._devices) <= 20


def test_totals_add_up_in_every_count():
    from emulator.counters import DeviceCounters

    counters = DeviceCounters()
    for name in ("compiles", "prepared", "to_device", "from_device"):
        setattr(counters, name, 3)
    counters.lowering_seconds, counters.xla_seconds = 0.5, 0.25
    for source in Source:
        counters.sources[source] = 2
    next(counters.ticks)
    for left, begun in ((1, 0.0), (0, 4.0)):
        counters.times.note(left, begun=begun, host=1.0, wait=2.0)
    one = totals_of(counters)
    both = one + one
    for field in Totals.__dataclass_fields__:
        single, double = getattr(one, field), getattr(both, field)
        if field == "sources":
            assert double == tuple(2 * n for n in single) and min(single) == 2
        elif field in ("latest", "latest_pauses"):
            assert double == (*single, *single) and single
        else:
            assert double == 2 * single > 0, field


def test_the_report_says_what_the_figures_say(scene):
    for _ in range(3):
        samba.session.run(scene.inputs, scene.model.output_tensors)
    found = samba.session.metrics()
    text = str(found)
    assert f"runs                 {found.runs:,}; prepared again {found.totals.prepared:,}" in text
    assert "timed run" in text and "executable cache" in text
    assert "none timed" in str(samba.SambaSession().metrics())
    json.dumps(found.as_dict(), allow_nan=False)


ASKED = {"1": "", "0": "", "m.json": "m.json", "m.txt": "m.txt", "none/m.json": "", ".": ""}
"""What a process is asked for, and the file that it writes then."""
SCRIPT = """
import importlib, os
os.chdir({folder!r})
os.environ[{variable!r}] = {wanted!r}
process = importlib.import_module("samba.session.process")
process = importlib.reload(process)  # as the first import of samba does
pid = os.fork()
if not pid:
    raise SystemExit
os.waitpid(pid, 0)
print(process.session.metrics().runs)
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """How a process ended that was asked for its metrics before its session was made."""
    folders = {wanted: tmp_path_factory.mktemp("metrics") for wanted in ASKED}
    codes = [
        SCRIPT.format(folder=str(folder), variable=METRICS_VARIABLE, wanted=wanted)
        for wanted, folder in folders.items()
    ]
    ends = forked("", codes)
    return {key: (end, folders[key]) for key, end in zip(ASKED, ends, strict=True)}


@pytest.mark.parametrize("wanted", ["1", "0", "m.json", "m.txt"])
def test_a_process_tells_when_it_ends_if_it_is_asked(asked, wanted):
    """Once, and not by a child that was forked."""
    (done, folder), name = asked[wanted], ASKED[wanted]
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert done.stderr.count("executable cache") == (wanted == "1")
    assert [p.name for p in folder.iterdir()] == ([name] if name else [])
    if name == "m.json":
        found = json.loads((folder / name).read_text())
        assert (found["format"], found["version"], found["runs"]) == ("samba.metrics", 1, 0)
    elif name:
        assert "executable cache" in (folder / name).read_text()


@pytest.mark.parametrize("wanted", ["none/m.json", "."])
def test_a_file_that_cannot_be_written_is_one_line(asked, wanted):
    done, folder = asked[wanted]
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert done.stderr.startswith(f"error: {METRICS_VARIABLE}: ") and done.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []


# -- compile --compiled-stats-json -----------------------------------------------------


ROOT = Path(__file__).parents[3]


def compiled(folder: Path, stats: Path | str) -> str:
    scene = World(name="stats").build()
    return scene.compile(folder, command="compile", compiled_stats_json=str(stats))


def test_it_says_what_the_program_says(tmp_path):
    pef = compiled(tmp_path, tmp_path / "stats.json")
    found = json.loads((tmp_path / "stats.json").read_text())
    program = read_pef(pef)
    assert (found["format"], found["version"], found["pef"]) == ("samba.compiled_stats", 1, pef)
    assert [s["name"] for s in found["sections"]] == [s.name for s in program.sections]
    for told in found["sections"]:
        assert told["cost"] == section_cost(program, told["id"]).as_dict()
    need = memory_need(program, schedule_steps(program, 0))
    assert found["graphs"][0]["peak_bytes"] == need.peak
    assert "moments" not in found["graphs"][0]
    text = page("run.md", "Where does the memory go?")
    assert [key for key in found if f"`{key}`" not in text] == []
    assert [key for key in found["sections"][0] if f"`{key}`" not in text] == []


def test_other_commands_do_not_write_it(tmp_path):
    scene = World(name="stats").build()
    scene.compile(tmp_path, command="run", compiled_stats_json=str(tmp_path / "stats.json"))
    assert not (tmp_path / "stats.json").exists()


@pytest.mark.parametrize("where", ["none/stats.json", ".", "stats/stats.pef", "a\0b"])
def test_a_file_that_cannot_be_is_refused_before_anything_is_compiled(tmp_path, where):
    (tmp_path / "stats").mkdir()
    with pytest.raises(ArgumentError, match="compiled-stats-json"):
        compiled(tmp_path, f"{tmp_path}/{where}")
    assert list(tmp_path.rglob("*.pef")) == []


def test_the_switch_writes_it_beside_the_pef(tmp_path):
    scene = World(name="stats").build()
    asked = {"command": "compile", "compiled_stats_json": str(tmp_path / "stats.json")}
    pef = Path(scene.compile(tmp_path, **asked, dump_compiled_stats_json=True))
    beside = pef.with_suffix(".stats.json")
    assert beside.read_text() == (tmp_path / "stats.json").read_text()
    assert json.loads(beside.read_text())["format"] == "samba.compiled_stats"
