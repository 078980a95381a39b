"""``python -m samba estimate``: its table, its data, and files that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.costs.machine_file import read_machine
from emulator.costs.roofline import Machine
from emulator.costs.steps import schedule_cost, section_cost
from pef_schema import read_pef, write_pef
from pef_schema.program import Call, Schedule
from samba.__main__ import main

ROOT = Path(__file__).parents[3]
PEF = str(ROOT / "tests/golden/v1_training.pef")
TOML = "float32_gflops = 100.0\nbandwidth_gb_s = 20.0\n"


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text(TOML)
    return str(path)


def run(capsys, *arguments):
    """Exit code, output and errors."""
    try:
        code = main(["estimate", *map(str, arguments)])
    except SystemExit as error:
        code = error.code
    return (code, *capsys.readouterr())


def test_the_table(capsys, machine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run(capsys, PEF, "--machine", machine)
    assert (code, err) == (0, "")
    assert "machine chip.toml: float32 100 GFLOP/s, memory 20 GB/s" in out
    assert "id  section    type       at least  bound by" in out
    assert "net.bckwd" in out and "fc, loss" in out
    assert "as one executable: at least 0.0108 us, bound by memory" in out
    assert "not counted, cost unknown: gradient of test.all_kinds.default" in out
    assert "small sections take longer" in out
    assert all(len(line) <= 120 for line in out.splitlines())


@pytest.mark.parametrize("columns", [20, 40, 240])
def test_any_width(capsys, machine, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, PEF, "--machine", machine)
    assert code == 0 and "net.fwd" in out


def test_json_says_what_the_costs_are(capsys, machine):
    code, out, _ = run(capsys, PEF, "--machine", machine, "--json")
    assert code == 0
    found, program = json.loads(out), read_pef(PEF)
    (graph,) = found["graphs"]
    assert [s["id"] for s in graph["sections"]] == [c.section for c in program.schedules[0].calls]
    for section in graph["sections"]:
        cost = section_cost(program, section["id"])
        assert section["product_flops"] == cost.product_flops
        assert section["other_flops"] == cost.other_flops
        assert section["bytes_read"] == cost.bytes_read
        assert section["bytes_written"] == cost.bytes_written
        assert section["intensity"] == cost.intensity
        times = section["compute_seconds"], section["memory_seconds"]
        assert times == (cost.product_flops / 1e11, cost.nbytes / 2e10)
        assert section["seconds"] == max(times) and section["modules"]
    assert graph["sections_seconds"] == pytest.approx(sum(s["seconds"] for s in graph["sections"]))
    assert graph["whole"]["product_flops"] == schedule_cost(program, 0).product_flops
    assert found["machine"]["flops_per_second"] == {"float32": 1e11}


@pytest.mark.parametrize("key", ["time", "flops", "bytes", "intensity"])
def test_sorting(capsys, machine, key):
    _, out, _ = run(capsys, PEF, "--machine", machine, "--json", "--sort", key)
    sections = json.loads(out)["graphs"][0]["sections"]
    value = {
        "time": lambda s: s["seconds"],
        "flops": lambda s: s["product_flops"] + s["other_flops"],
        "bytes": lambda s: s["bytes_read"] + s["bytes_written"],
        "intensity": lambda s: s["intensity"],
    }[key]
    values = [value(s) for s in sections]
    assert values == sorted(values, reverse=True) and len(set(values)) > 1


def test_a_section_that_is_called_twice(capsys, machine, tmp_path):
    program = read_pef(str(ROOT / "tests/golden/v1_inference.pef"))
    calls = tuple(Call(call_id=i, section=0) for i in range(3))
    path = tmp_path / "thrice.pef"
    write_pef(path, replace(program, schedules=(Schedule(graph=0, calls=calls),)))
    _, out, _ = run(capsys, path, "--machine", machine, "--json")
    (graph,) = json.loads(out)["graphs"]
    (section,) = graph["sections"]
    assert section["calls"] == 3
    assert graph["sections_seconds"] == pytest.approx(3 * section["seconds"])
    _, out, _ = run(capsys, path, "--machine", machine)
    assert " x3" in out


def test_this_machine_is_measured_and_kept_where_that_is_asked(capsys, tmp_path, monkeypatch):
    from emulator.costs import best_machine, measuring, timing

    monkeypatch.setattr(measuring, "SHAPES", ((8, 8, 8),))
    monkeypatch.setattr(timing, "_NEAR", (1 << 12,))
    monkeypatch.setattr(timing, "COPIED", 1 << 14)
    monkeypatch.setattr(timing, "_LEAST_COPIED", 1 << 14)
    measured = measuring.measured_machine
    monkeypatch.setattr(measuring, "measured_machine", lambda dtypes: measured(dtypes, 0.0))
    monkeypatch.setattr(best_machine, "share_of_others", lambda busy, own, seconds: 0.0)
    code, _, err = run(capsys, PEF, "--machine", "this")
    assert (code, err) == (0, "") and list(tmp_path.iterdir()) == []
    kept = tmp_path / "this.toml"
    assert run(capsys, PEF, "--machine", "this", "--save", kept)[0] == 0
    names = [d.name for d, _ in read_machine(str(kept)).rates]
    assert names == ["BFLOAT16", "FLOAT32"]
    code, again, _ = run(capsys, PEF, "--machine", kept)
    assert code == 0 and "net.fwd" in again
    with monkeypatch.context() as patched:  # nothing is measured for an output that cannot be
        patched.setattr(measuring, "measured_machine", None)
        code, _, err = run(capsys, PEF, "--machine", "this", "--save", tmp_path / "none" / "m.toml")
    assert code == 1 and err.startswith("error: ") and "there is no folder" in err
    code, _, err = run(capsys, PEF, "--machine", "this", "--save", PEF)
    assert code == 2 and "would replace the PEF" in err


def test_a_measurement_under_load_is_told(capsys, monkeypatch):
    from emulator.costs import best_machine, measuring

    tries = []

    def measured(dtypes):
        tries.append(dtypes)
        rates = tuple((dtype, 1e9 * len(tries)) for dtype in sorted(dtypes))
        return Machine(name="m", rates=rates, bandwidth=1e9)

    monkeypatch.setattr(measuring, "measured_machine", measured)
    monkeypatch.setattr(best_machine, "share_of_others", lambda busy, own, seconds: 0.48)
    code, out, err = run(capsys, PEF, "--machine", "this")
    assert code == 0 and "float32 3 GFLOP/s" in out and len(tries) == 3
    (line,) = err.splitlines()
    assert line.startswith("measured under load: other processes took 48% of the processors")


def test_files_that_are_none(capsys, machine, tmp_path):
    damaged = tmp_path / "damaged.pef"
    damaged.write_bytes(Path(PEF).read_bytes()[:-100])
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    for pef, chip, code in (
        (tmp_path / "none.pef", machine, 3),
        (tmp_path, machine, 3),
        (damaged, machine, 3),
        (machine, machine, 3),
        (PEF, tmp_path / "none.toml", 3),
        (PEF, tmp_path, 3),
        (PEF, PEF, 3),
        (PEF, empty, 3),
    ):
        found, out, err = run(capsys, pef, "--machine", chip)
        assert (found, out) == (code, ""), err
        assert err.startswith("error: ") and err.count("error: ") == 1


def test_a_type_without_a_rate(capsys, tmp_path):
    chip = tmp_path / "chip.toml"
    chip.write_text("bfloat16_gflops = 1\nbandwidth_gb_s = 1")
    code, out, err = run(capsys, PEF, "--machine", chip)
    assert (code, out) == (1, "")
    assert "multiplies float32, whose rate is not known: found bfloat16_gflops" in err
    assert "Add float32_gflops" in err


def test_wrong_usage(capsys, machine):
    code, _, err = run(capsys, PEF, "--machine", machine, "--graph", "nt")
    assert code == 2 and "it has no graph nt" in err and "net" in err
    code, _, err = run(capsys, PEF)
    assert code == 2 and "--machine" in err
    code, _, err = run(capsys, PEF, "--machine", machine, "--sort", "size")
    assert code == 2 and "size" in err
    code, _, err = run(capsys, PEF, "--machine", machine, "--save", "x.toml")
    assert code == 2 and "--machine this" in err and not Path("x.toml").exists()
    assert run(capsys, PEF, "--machine", machine, "--graph", "net")[0] == 0
