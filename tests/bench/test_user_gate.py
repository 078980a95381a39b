"""The gate of a user's PEF: its usage, its verdicts on a simulated machine, and once for real."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import user_gate
from bench.__main__ import main
from bench.errors import BadSectionTimes, OtherProgram, ScriptFailed
from bench.gate import GateSettings
from bench.measurement import FULL
from bench.process import case_of
from bench.suites.sections import PefContestant, section_seconds
from bench.user_gate import left_out_of, left_out_of_files, measure_script
from bench.worker import _contestant
from pef_schema import Program, read_pef, write_pef
from tests import warm
from tests.bench.conftest import SECTIONS
from tests.bench.simulated import Machine
from tests.samba.inspection.programs import chain


def written(path: Path, program: Program) -> Path:
    write_pef(str(path), program)
    return path


def wider(program: Program) -> Program:
    """The same with an input of another shape, told by the graph alone."""
    (graph,) = program.graphs
    first, *others = graph.values
    values = (dataclasses.replace(first, shape=(4, 3)), *others)
    return dataclasses.replace(program, graphs=(dataclasses.replace(graph, values=values),))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Machine]:
    """Put a simulated machine in the place of processes that take times."""

    def put(machine: Machine) -> Machine:
        monkeypatch.setattr(user_gate, "measure_sides", machine)
        return machine

    return put


def test_quiet_runs_are_quiet_and_a_fifth_more_is_caught(
    pef: Path, on: Callable[[Machine], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    on(Machine(1))
    assert main(["selftest", f"--pef={pef}", "--plant=fwd_1=1.2", "--quiet-runs=20"]) == 0
    text = capsys.readouterr().out
    assert "the gate finds that section fwd_1 was made 1.2 times as slow" in text
    assert "20 runs of identical code: the gate tripped 0 times" in text
    # A plant that is too small to be told from noise is not said to be caught.
    assert main(["selftest", f"--pef={pef}", "--plant=fwd_1=1.01"]) == 1
    assert (
        "the gate does NOT find that section fwd_1 was made 1.01 times as slow"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_users_slowdown_fails_the_gate_by_pef_and_by_kept_base(
    pef: Path,
    base: Path,
    seed: int,
    on: Callable[[Machine], Machine],
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = written(pef.with_name("head.pef"), chain(SECTIONS))
    report, array = pef.with_name("report.json"), pef.with_name("array.json")
    options = [f"--json={report}", f"--smaller-is-better={array}"]
    for against in (pef, base):
        machine = on(Machine(seed, {"head.pef": {"fwd_2": 1.2}}))
        assert main(["gate", f"--pef={head}", f"--base={against}", *options]) == 1
        assert machine.asked[0] == 3 and sum(machine.asked) >= 9, "it asks again"
        text = capsys.readouterr().out
        assert text.startswith("head.pef: SLOWER") and "asked again" in text
        assert ("of the time that it took" in text) == (against == base)
        (case,) = json.loads(report.read_text())["cases"]
        assert case["slower"] == ["fwd_2"]
        assert [c["name"] for c in case["first"]] == ["fwd_0", "fwd_1", "fwd_2", FULL]
        assert json.loads(array.read_text())[0]["name"] == "head.pef / fwd_0"
        on(Machine(seed))
        assert main(["gate", f"--pef={head}", f"--base={against}"]) == 0
        assert capsys.readouterr().out.startswith("head.pef: good")


def test_a_kept_base_holds_the_samples_of_both_sides(
    tmp_path: Path, pef: Path, on: Callable[[Machine], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    on(Machine(3))
    kept = tmp_path / "kept.json"
    assert main(["gate", f"--pef={pef}", f"--keep={kept}", "--processes=2", "--rounds=5"]) == 0
    assert capsys.readouterr().out == f"kept: {kept}, net.pef with 3 sections\n"
    times = json.loads(kept.read_text())["nanoseconds"]
    assert list(times) == ["fwd_0", "fwd_1", "fwd_2", FULL]
    assert all(len(t) == 20 for t in times.values())


def test_sections_of_other_modules_are_left_out_and_named(
    pef: Path, on: Callable[[Machine], Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer that is put in moves the names of those behind it."""
    head = written(pef.with_name("head.pef"), chain((SECTIONS[0], "new.relu", *SECTIONS[1:])))
    found = left_out_of_files(pef, head, name="x")
    assert found == {
        "fwd_3": "only in head",
        "fwd_1": "other modules than in base",
        "fwd_2": "other modules than in base",
    }
    on(Machine(1))
    assert main(["gate", f"--pef={head}", f"--base={pef}"]) == 1, "one more layer takes longer"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "head.pef: SLOWER"
    assert [line.split()[0] for line in lines[1:3]] == ["fwd_0", "(full"]
    assert lines[2].endswith("asked again")
    assert any(line.startswith("  (full") and line.endswith("slower") for line in lines[3:])
    assert lines[-3:] == [
        "  fwd_3: only in head; not compared",
        "  fwd_1: other modules than in base; not compared",
        "  fwd_2: other modules than in base; not compared",
    ]


def test_other_operations_of_the_same_modules_are_compared() -> None:
    """A slower activation is what the gate is for."""
    other = chain(("a.gelu", *SECTIONS[1:]))
    assert left_out_of(chain(SECTIONS), other, name="x", head_name="y") == {}


def test_another_program_is_refused(pef: Path) -> None:
    for other, what in (
        (wider(chain(SECTIONS)), "input x of"),
        (dataclasses.replace(chain(SECTIONS), inference=False), "use"),
    ):
        with pytest.raises(OtherProgram, match="keep a new base") as caught:
            left_out_of(read_pef(str(pef)), other, name="base.json", head_name="net.pef")
        assert caught.value.what.startswith(what)
        assert caught.value.found != caught.value.wanted


def test_a_script_that_times_no_common_section_is_an_error(
    pef: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = written(tmp_path / "head.pef", chain(("z.relu", "y.relu")))
    script = tmp_path / "app.py"
    script.write_text(SCRIPT.replace('"s"', '"fwd_0"'))
    argv = ["gate", f"--pef={head}", f"--base={pef}", f"--script={script} --big"]
    assert main(argv) == 2
    assert f"{head} and {pef} have no section in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gate", "--pef=PEF"], "give --base"),
        (["gate", "--pef=PEF", "--base=PEF", "--keep=x"], "give --base"),
        (["gate", "--pef=PEF", "--keep=x", "--json=y"], "--keep compares nothing"),
        (["gate", "--pef=PEF", "--base=PEF", "--model", "lenet-32"], "--model is for the bench's"),
        (["gate", "--pef=PEF", "--base=PEF", "--script=none.py"], "there is no file 'none.py'"),
        (["gate", "--pef=PEF", "--base=PEF", "--script='"], "No closing quotation"),
        (["gate", "--pef=PEF", "--base=PEF", "--base-script=x"], "needs --script and --base"),
        (["gate", "--pef=PEF", "--base=PEF", "--json=FOLDER"], "a folder of this name"),
        (["gate", "--pef=PEF", "--base=PEF", "--json=none/x"], "there is no folder"),
        (["gate", "--pef=PEF", "--keep=FOLDER/none/x"], "there is no folder"),
        (["gate", "--pef=missing.pef", "--base=PEF"], "missing.pef"),
        (["gate", "--pef=FOLDER", "--base=PEF"], "path of the .pef file itself"),
        (["gate", "--pef=FOREIGN", "--base=PEF"], "a file that `compile` wrote"),
        (["gate", "--pef=CUT", "--base=PEF"], "Copy the file again"),
        (["gate", "--pef=PEF", "--base=missing.json"], "missing.json: cannot be read"),
        (["gate", "--pef=PEF", "--base=FOLDER"], "cannot be read: Is a directory"),
        (["gate", "--pef=PEF", "--base=FOREIGN"], "It has to be a PEF, or a file"),
        (["gate", "--pef=PEF", "--base=CUT"], "It has to be a PEF, or a file"),
        (["gate", "--keep=x"], "give --base REV, or --pef"),
        (["gate"], "give --base REV, or --pef"),
        (["selftest", "--pef=PEF"], "give --plant or --quiet-runs"),
        (["selftest", "--pef=missing.pef", "--plant"], "missing.pef"),
        (["run", "--json=none/x"], "there is no folder"),
    ],
)
def test_bad_input_is_one_line(
    pef: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cut, foreign = pef.with_name("cut.pef"), pef.with_name("foreign.pef")
    cut.write_bytes(pef.read_bytes()[:-9])
    foreign.write_bytes(b"no program " * 99)
    words = {"PEF": pef, "FOLDER": pef.parent, "CUT": cut, "FOREIGN": foreign}
    before = sorted(pef.parent.iterdir())
    given = []
    for argument in arguments:
        option, _, value = argument.partition("=")
        head, *rest = value.split("/")
        value = "/".join([str(words.get(head, head)), *rest])
        given.append(f"{option}={value}" if "=" in argument else argument)
    assert main(given) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("bench: ") and said in line
    assert sorted(pef.parent.iterdir()) == before


@pytest.mark.parametrize("plant", ["fwd_0=x", "fwd_0=0.5", "fwd_0=nan"])
def test_a_plant_is_a_factor_above_one(
    pef: Path, plant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["selftest", f"--pef={pef}", f"--plant={plant}"])
    err = capsys.readouterr().err
    assert caught.value.code == 2 and ("FACTOR above 1" in err or "SECTION=FACTOR value" in err)


def test_every_section_of_a_pef_runs_on_drawn_numbers(pef: Path) -> None:
    contestant = _contestant(case_of(pef), "ours", small=False)
    assert isinstance(contestant, PefContestant) and contestant.path == str(pef)
    found = section_seconds(contestant, 2)
    assert list(found) == ["fwd_0", "fwd_1", "fwd_2", FULL]
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())


def test_a_worker_of_a_peer_loads_no_jax() -> None:
    """It would be in the peer's memory and in its time to the first loss."""
    code = "import sys, bench.worker; print('jax' in sys.modules)"
    done = warm.finished([sys.executable, "-c", code], server=warm.TORCH)
    assert done.stdout == "False\n", done.stderr


SCRIPT = """\
import json, sys
options = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[2:] if "=" in a)
assert sys.argv[1] == "measure-sections" and sys.argv[-1] == "--big", sys.argv
if "bad" in options["pef"]:
    sys.exit("no such program")
slow = 2.0 if "head" in options["pef"] else 1.0
rows = [{"name": "s", "samples_ms": [slow] * int(options["num-iterations"])}]
json.dump(rows, open(options["bench-report-json"], "w"))
"""


def test_a_script_measures_both_sides_in_turns(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT)
    settings = GateSettings(rounds=4, plants={})
    words, base, head = [str(script), "--big"], Path("base.pef"), Path("head.pef")
    found = measure_script((words, words), (base, head), settings, 3)
    assert found == {"s": ([1e-3] * 12, [2e-3] * 12)}
    with pytest.raises(ScriptFailed, match=r"code 1: no such program.*--base-script"):
        measure_script((words, words), (base, Path("bad.pef")), settings, 1)
    # Where one side calls a section more often, its last calls have no partner.
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("[slow] *", "[slow] + [slow] *"))
    found = measure_script(([str(other), "--big"], words), (base, head), settings, 2)
    assert found == {"s": ([1e-3] * 8, [2e-3] * 8)}
    other.write_text("pass")
    with pytest.raises(BadSectionTimes, match="ended without a report"):
        measure_script(([str(other)], words), (base, head), settings, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_the_gate_on_a_pef(pef: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kept base, the gate against it, and a plant: the machinery, not the statistics."""
    kept, report = tmp_path / "kept.json", tmp_path / "report.json"
    assert main(["gate", f"--pef={pef}", f"--keep={kept}", "--processes=1", "--rounds=2"]) == 0
    times = json.loads(kept.read_text())["nanoseconds"]
    assert len(times) == 4 and all(len(t) == 4 and min(t) > 0 for t in times.values())
    few = ["--processes=1", "--rounds=6"]
    assert main(["gate", f"--pef={pef}", f"--base={kept}", f"--json={report}", *few]) in (0, 1)
    (case,) = json.loads(report.read_text())["cases"]
    assert [c["name"] for c in case["first"]] == list(times)
    capsys.readouterr()
    assert main(["selftest", f"--pef={pef}", "--plant", "fwd_1=3", *few]) == 0
    assert "the gate finds that section fwd_1 was made 3 times as slow" in capsys.readouterr().out
