"""Results say where they were measured, and those of two processors are never mixed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from bench import archive, report
from bench.__main__ import main
from bench.errors import BadResults, TwoProcessors
from bench.measurement import (
    OURS,
    Results,
    check_one_processor,
    environment,
    heading,
    load,
    processor_of,
)
from bench.suites.thunks import KIND, OP, THUNK
from emulator.processor import Processor, processor

INTEL = Processor(
    vendor="intel",
    family=6,
    model=143,
    stepping=8,
    name="Xeon",
    isa=("avx2", "avx512f", "avx512_bf16", "amx_bf16"),
)


def on(where: Processor, seconds: float = 0.1) -> Results:
    """Results as a run on a processor would give them."""
    fields = {**asdict(where), "isa": list(where.isa)}
    found = Results(environment=environment(2) | {"processor": fields}, settings={"rounds": 3})
    times = [1.123456789 * seconds, seconds, 1.2 * seconds]
    found.add("steps", "gpt", OURS, "step", "s", times)
    found.add("steps", "gpt", "eager", "step", "s", [0.2, 0.2, 0.2])
    found.add("host", "10", OURS, "host time beside the executable", "s", [1e-5] * 900)
    found.add("sections", "gpt", OURS, "fwd_0", "s", [1.0])
    found.add("thunks", "gpt", OURS, f"{KIND}dot", "s", [0.05], note="50.0%, 3 x")
    found.add("thunks", "gpt", OURS, f"{OP}aten.linear.default", "s", [0.05], note="50.0%, 3 x")
    for i in range(9):
        found.add("thunks", "gpt", OURS, f"{THUNK}dot.{i}", "s", [0.01], note="dot; f32[2,2]")
    return found


def test_the_processor_stands_in_the_file(tmp_path):
    path = tmp_path / "here.json"
    Results(environment=environment(2)).save(path)
    assert json.loads(path.read_text())["environment"]["processor"]["isa"] == list(processor().isa)
    assert processor_of(load(path)) == processor()
    assert heading(load(path)).startswith(f"processor: {processor()}, 2 threads, python ")
    assert processor_of(Results()) is None


@pytest.mark.parametrize(
    "found",
    [
        "AMD EPYC",
        {},
        {"vendor": "amd", "isa": []},
        {**dict.fromkeys(("vendor", "name"), "x"), **dict.fromkeys(("family", "model"), "6")},
        {"vendor": 1, "name": "x", "family": 6, "model": 1, "stepping": 1, "isa": []},
        {"vendor": "a", "name": "x", "family": "6", "model": 1, "stepping": 1, "isa": []},
    ],
)
def test_something_else_than_a_processor_is_refused(found):
    with pytest.raises(BadResults, match="x: no processor"):
        processor_of(Results(environment={"processor": found}), where="x")


@pytest.mark.parametrize(
    "change", [{"model": 1}, {"stepping": 2}, {"name": "another"}, {"isa": ("avx2",)}]
)
def test_generations_are_told_apart(change):
    amd = replace(INTEL, vendor="amd", **change)
    with pytest.raises(TwoProcessors):
        check_one_processor(on(replace(INTEL, vendor="amd")), on(amd), ("a", "b"))
    check_one_processor(on(amd), on(amd), ("a", "b"))


def test_two_processors_are_not_compared(tmp_path, capsys):
    paths = [tmp_path / "base.json", tmp_path / "head.json"]
    on(processor()).save(paths[0])
    on(INTEL, 0.4).save(paths[1])
    argv = ["compare", *map(str, paths)]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert str(processor()) in error and str(INTEL) in error and "--across-processors" in error
    with pytest.raises(TwoProcessors) as caught:
        check_one_processor(load(paths[0]), load(paths[1]), ("base", "head"))
    assert caught.value.processors == (str(processor()), str(INTEL))
    assert caught.value.names == ("base", "head")
    assert main([*argv, "--across-processors"]) == 0
    text = capsys.readouterr().out
    assert "ACROSS PROCESSORS" in text and "  slower" not in text
    assert main(["compare", str(paths[0]), str(paths[0])]) == 0
    assert "ACROSS" not in capsys.readouterr().out


def test_across_processors_nothing_is_called_slower():
    many = [0.1 + 0.001 * i for i in range(12)]
    base, head = on(processor()), on(INTEL)
    base.add("steps", "lenet-1", OURS, "step", "s", many)
    head.add("steps", "lenet-1", OURS, "step", "s", [2 * t for t in many])
    assert report.comparison(base, head)[1] is False
    head.environment["processor"] = base.environment["processor"]
    assert report.comparison(base, head)[1] is True


def test_files_stand_side_by_side(tmp_path, capsys):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    on(processor()).save(paths[0])
    on(INTEL, 0.4).save(paths[1])
    assert main(["table", *map(str, paths)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"one: processor: {processor()}")
    assert lines[1].startswith(f"two: processor: {INTEL}")
    (row,) = (line for line in lines if line.startswith("step time / better") and "gpt " in line)
    # Each column holds its own file's ratio: 0.112 / 0.2 and 0.449 / 0.2.
    assert "0.562" in row and "2.247" in row and "yes" in row and "NO" in row
    assert main(["table", str(paths[0])]) == 0
    assert capsys.readouterr().out.startswith(f"processor: {processor()}")


def test_files_of_one_name_are_told_apart(tmp_path, capsys):
    paths = [tmp_path / name / "bench.json" for name in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        on(INTEL).save(path)
    assert main(["table", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert all(f"{path}: processor: " in text for path in paths)


def test_what_is_kept_gives_the_same_table(tmp_path):
    found = on(INTEL)
    path = archive.keep(found, tmp_path)
    assert path.name == "intel-6-143-amx_bf16.json"
    again = load(path)
    rows = [(r.what, r.measured, r.met) for r in archive.rows(again) if "sections" not in r.what]
    assert rows == [
        (r.what, r.measured, r.met) for r in archive.rows(found) if "sections" not in r.what
    ]
    assert again.environment == json.loads(json.dumps(found.environment))
    by_suite = {m.suite: len(m.values) for m in again.measurements}
    assert by_suite == {"steps": 3, "host": 1, "thunks": 1}
    whats = [m.what for m in again.select("thunks")]
    assert whats == [f"{KIND}dot", *(f"{THUNK}dot.{i}" for i in range(archive.LARGEST))]
    ours = again.get("steps", "gpt", OURS, "step")
    assert ours is not None and ours.values == (0.11235, 0.1, 0.12)
    # Written once more it is the same, byte for byte.
    text = path.read_bytes()
    assert archive.keep(again, tmp_path).read_bytes() == text


def test_a_bench_is_kept_in_parts(tmp_path):
    first, second = on(INTEL), Results(environment=dict(on(INTEL).environment))
    second.add("memory", "gpt", OURS, "peak", "B", [5.0])
    second.add("host", "10", OURS, "host time beside the executable", "s", [2e-5])
    second.environment["commit"] = first.environment["commit"].rstrip("+") + "+"
    archive.keep(first, tmp_path)
    found = load(archive.keep(second, tmp_path))
    assert {m.suite for m in found.measurements} == {"steps", "thunks", "memory", "host"}
    assert [m.values for m in found.select("host")] == [(2e-5,)]
    second.environment["commit"] = "another"
    found = load(archive.keep(second, tmp_path))
    assert {m.suite for m in found.measurements} == {"memory", "host"}


def test_the_page_of_kept_results(tmp_path):
    archive.keep(on(INTEL), tmp_path)
    archive.keep(on(replace(INTEL, vendor="a/b |")), tmp_path)
    text = (tmp_path / archive.PAGE).read_text()
    assert [p.name for p in sorted(tmp_path.glob("*.json"))] == [
        "a_b_-6-143-amx_bf16.json",
        "intel-6-143-amx_bf16.json",
    ]
    assert "| step time / better of eager and compile: gpt | ≤ 0.95 | 0.562" in text
    assert "| gpt | 112.350 ms | 0.562 |" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("| step time")}
    assert len(widths) == 1
    with pytest.raises(BadResults, match="do not name their processor"):
        archive.file_name(Results())


def test_the_repositorys_page_is_that_of_its_files():
    """After a change of the goals: ``python -m bench results``."""
    assert (archive.FOLDER / archive.PAGE).read_text() == archive.page(archive.files())
