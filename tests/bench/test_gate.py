"""The gate's rule on simulated timings, and the gate itself on a planted slowdown."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from bench import counts
from bench.__main__ import main
from bench.errors import BadBase, BadSectionTimes, NoRevision, TimesOfTwoProcessors, UnknownSection
from bench.gate import ROOT, GateSettings, decide, file_at, measure_in, tree_of
from bench.measurement import FULL, Results
from bench.section_times import compared, load_section_times, opened_base
from bench.stats import P_VALUE, RATIO, compare, compare_pairs, compare_processes
from emulator.processor import processor
from pef_schema import write_pef
from tests.bench.conftest import TIMES
from tests.bench.simulated import BIAS, DRIFT, times
from tests.processes import finished
from tests.samba.inspection.programs import chain

SECTIONS = 12
PROCESSES, ROUNDS = 3, 12


def simulated(rng, processes: int, *, slower: dict[int, float], bias: float, drift: float):
    """One measurement of a case, both sides of which meet the machine's drift."""
    return {
        f"section {s}": tuple(
            times(rng, typical * factor, processes, ROUNDS, bias=bias, drift=drift)
            for factor in (1.0, slower.get(s, 1.0))
        )
        for s, typical in enumerate(np.geomspace(1e-4, 1e-2, SECTIONS))
    }


MACHINES = pytest.mark.parametrize(
    ("bias", "drift"), [pytest.param(0.0, 0.0, marks=pytest.mark.slow), (BIAS, DRIFT)]
)


def verdicts(seed, slower, bias, drift):
    """What the gate says of measurements of a machine, one after the other."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        yield decide(
            "x", lambda _, n: simulated(rng, n, slower=slower, bias=bias, drift=drift), PROCESSES
        )


@MACHINES
def test_identical_code_does_not_trip_it(bias, drift):
    for verdict in verdicts(1, {}, bias, drift):
        assert verdict.slower == ()


@MACHINES
def test_a_fifth_more_is_caught(bias, drift):
    """Each time, at the bias of processes at which identical code is quiet, and nothing else is."""
    for verdict in verdicts(2, {7: 1.2}, bias, drift):
        assert verdict.slower == ("section 7",)
        assert "SLOWER" in str(verdict) and "asked again" in str(verdict)


def answering(*groups):
    """A measure that gives these answers, the last one for ever, and how often it was asked."""
    asked = []

    def measure(case, processes):
        asked.append(processes)
        return groups[min(len(asked), len(groups)) - 1]

    return measure, asked


def one_section(*ratios):
    """A group of processes, four samples each; each process is slower by a ratio of its own."""
    steady = np.linspace(1.0, 1.01, 4)
    return {"a": (np.tile(steady, len(ratios)).tolist(), np.outer(ratios, steady).ravel().tolist())}


def test_it_asks_again_before_it_cries():
    measure, asked = answering(one_section(1.3, 1.31, 1.29), one_section(1.0, 0.99, 1.01))
    verdict = decide("x", measure, 3)
    assert verdict.first[0].slower and verdict.slower == () and len(verdict.together) == 1
    assert asked[:3] == [3, 3, 3] and verdict.processes == 3 * len(asked)
    measure, asked = answering(one_section(1.3, 1.31, 1.29))
    verdict = decide("x", measure, 3)
    assert verdict.slower == ("a",) and len(asked) == 3, "clear after nine processes"
    assert json.loads(json.dumps(verdict.fields()))["slower"] == ["a"]
    (entry,) = verdict.smaller_is_better()
    assert (entry["name"], entry["unit"]) == ("x / a", "s") and entry["value"] > 1.2
    measure, asked = answering(one_section(1.0, 1.0, 1.0))
    assert decide("x", measure, 3).together == () and asked == [3]


def test_faster_is_said_only_where_all_processes_say_so():
    measure, _ = answering(one_section(0.5, 0.51, 0.49))
    verdict = decide("x", measure, 3)
    assert verdict.faster == ("a",) and str(verdict).endswith("  faster")
    measure, _ = answering(one_section(0.5, 0.5, 0.99))
    verdict = decide("x", measure, 3)
    assert verdict.first[0].faster and verdict.faster == () and "faster" not in str(verdict)
    measure, _ = answering(one_section(0.5))
    assert decide("x", measure, 1).faster == (), "one process is not a witness"


def test_what_stays_open_is_asked_more_processes():
    """Where memory lies makes these processes differ: nine do not tell a fifth for certain."""
    uneven = one_section(0.95, 1.2, 1.5)
    measure, asked = answering(uneven)
    verdict = decide("x", measure, 3)
    assert len(asked) == 7 and verdict.processes == 21
    assert verdict.slower == ("a",)
    nine = np.tile([0.95, 1.2, 1.5], 3)
    assert not compare_processes("a", *one_section(*nine)["a"], 9).slower


def test_one_process_is_one_witness_however_many_samples_it_gives():
    """Of nine processes two are twice as slow: by samples that is no chance, by processes it is."""
    samples = one_section(*[2.0] * 2, *[1.0] * 7)["a"]
    found = compare_processes("a", *samples, 9)
    assert found.ratio > RATIO and not found.slower
    assert compare_processes("a", *one_section(*[1.2] * 9)["a"], 9).slower


def test_a_machine_that_slows_down_is_slow_for_both_of_a_pair():
    """It takes three times as long at the end: samples of sides, each by itself, tell no fifth."""
    minutes = np.linspace(1.0, 3.0, 20)
    head = 1.2 * minutes
    assert compare_pairs("a", minutes.tolist(), head.tolist()).slower
    assert compare_pairs("a", minutes.tolist(), head.tolist()).ratio == pytest.approx(1.2)
    assert not compare("a", minutes.tolist(), head.tolist()).slower
    assert compare_pairs("a", head.tolist(), minutes.tolist()).faster
    assert compare_pairs("a", [1.0, 2.0], [1.0, 2.0]).p_slower == 0.5


def test_both_parts_of_the_rule_count():
    steady = list(np.linspace(1.0, 1.001, 30))
    a_little = compare("x", steady, [1.09 * t for t in steady])
    assert a_little.p_slower < P_VALUE and not a_little.slower
    few = compare("x", [1.0, 1.01, 1.02], [1.5, 1.51, 1.52])
    assert few.ratio > RATIO and not few.slower
    enough = compare("x", steady, [1.11 * t for t in steady])
    assert enough.slower and not enough.faster
    assert compare("x", [1.11 * t for t in steady], steady).faster


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_the_gate_catches_a_section_made_slower():
    """One process a side and a large factor: the machinery, not the statistics."""
    settings = GateSettings(processes=1, rounds=6, threads=1, small=True, plants={"bckwd_0": 3.0})
    with tree_of(None) as tree:
        samples = measure_in(tree, tree, settings)("logreg-1", settings.processes)
        with pytest.raises(UnknownSection, match=r"no section 'x'; there are fwd_0"):
            wrong = GateSettings(processes=1, rounds=1, threads=1, small=True, plants={"x": 2.0})
            measure_in(tree, tree, wrong)("logreg-1", wrong.processes)
    assert list(samples) == ["fwd_0", "bckwd_0", "opt_sgd0", FULL]
    assert all(len(base) == len(head) == 6 for base, head in samples.values())
    assert compare("bckwd_0", *samples["bckwd_0"]).slower


def test_a_revision_is_checked_out_and_removed():
    if not (ROOT / ".git").exists():
        return  # an unpacked archive has no revisions
    with tree_of("HEAD") as tree:
        assert (tree / "emulator" / "device.py").is_file()
        assert (tree / "bench").resolve() == ROOT / "bench"
        checkout = (tree / "emulator").resolve().parent
        assert checkout != ROOT
    assert not checkout.exists()
    listed = finished(["git", "worktree", "list"], cwd=ROOT, check=True)
    assert str(checkout) not in listed.stdout
    with pytest.raises(NoRevision, match="no-such-revision"), tree_of("no-such-revision"):
        pass


def test_files_of_a_revision():
    if not (ROOT / ".git").exists():
        return  # an unpacked archive has no revisions
    text = file_at("HEAD", "pef_schema/program.py")
    assert text is not None and "class Program" in text
    assert file_at("HEAD", "no/such/file") is None


@pytest.mark.slow
def test_the_command(capsys, monkeypatch):
    """Identical code, unless the working tree differs from the last commit.

    Counts of one case: test_counts.py and test_fusion_counts.py look at each of the others.
    """
    for name in ("check", "check_fused"):
        whole = getattr(counts, name)
        monkeypatch.setattr(counts, name, lambda whole=whole: whole(["logreg-1"]))
    argv = ["gate", "--base", "HEAD", "--model", "logreg-64", "--processes", "1", "--rounds", "5"]
    assert main(argv) in (0, 1)
    text = capsys.readouterr().out
    assert "counts: as kept" in text and "logreg-64: " in text and "bckwd_0" in text


def test_a_base_holds_the_program_and_its_times(pef: Path, base: Path) -> None:
    with opened_base(base) as found:
        assert found.pef != pef and found.pef.read_bytes() == pef.read_bytes()
        assert found.processor == str(processor())
        assert {name: pytest.approx(t) for name, t in found.seconds.items()} == TIMES
        assert found.since_then(10e-3).startswith("base takes 2.000 of the time")
    assert not found.pef.exists()
    with opened_base(pef) as found:
        assert found.pef == pef and found.since_then(1.0) == ""


def test_what_is_no_base_is_told(tmp_path: Path, pef: Path, base: Path) -> None:
    whole = base.read_text()
    cut = base64.b64encode(zlib.compress(pef.read_bytes())[:-9]).decode()
    other = base64.b64encode(zlib.compress(b"SAMB" * 40)).decode()
    another = tmp_path / "another.pef"
    write_pef(str(another), chain(["relu"]))
    swapped = base64.b64encode(zlib.compress(another.read_bytes())).decode()
    for said, text in (
        ("not JSON", whole[: len(whole) // 2]),
        ("it only holds times", json.dumps([{"name": "fwd_0", "median_ms": 1.0}])),
        ("expected 'bench.gate' version 1", json.dumps({"format": 3, "measurements": []})),
        ("found format 'bench.gate' version 9", json.dumps(json.loads(whole) | {"version": 9})),
        ("it holds no PEF", json.dumps(json.loads(whole) | {"pef": "%%"})),
        ("is cut", json.dumps(json.loads(whole) | {"pef": cut})),
        ("the PEF in it is bad", json.dumps(json.loads(whole) | {"pef": other})),
        ("not the one that it names", json.dumps(json.loads(whole) | {"pef": swapped})),
        ("whole nanoseconds", json.dumps(json.loads(whole) | {"nanoseconds": {"a": [0]}})),
        ("whole nanoseconds", json.dumps(json.loads(whole) | {"nanoseconds": {}})),
    ):
        base.write_text(text)
        with pytest.raises(BadBase, match=said) as caught, opened_base(base):
            pass
        assert caught.value.path == str(base)


def reported(path: Path, factor: float) -> Path:
    """A report of measure-sections whose second section takes longer by a factor."""
    rows = [
        {"name": f"fwd_{i}", "samples_ms": [(1 + i) * factor**i * (1 + k / 500) for k in range(20)]}
        for i in range(2)
    ]
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1)])
def test_compare_takes_section_times(
    tmp_path: Path, factor: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = reported(tmp_path / "a.json", 1.0), reported(tmp_path / "b.json", factor)
    assert main(["compare", str(before), str(after)]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["fwd_0", "fwd_1"]
    assert lines[1].endswith("slower") == bool(code)
    assert lines[-1].startswith("This verdict is weak") and "in turns" in lines[-1]


def test_compare_takes_kept_bases_of_one_processor(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(base.read_text()) | {"processor": "another"}))
    found, lines = compared(base, reported(tmp_path / "a.json", 1.0))
    assert [one.name for one in found] == ["fwd_0"]
    assert lines == ["fwd_1: only in head", f"{FULL}: only in base"]
    with pytest.raises(TimesOfTwoProcessors, match="such ratios say nothing") as caught:
        compared(base, other)
    assert caught.value.processors == (str(processor()), "another")
    assert main(["compare", str(base), str(other)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["compare", str(base), str(other), "--across-processors"]) == 0
    assert "ACROSS PROCESSORS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "not JSON"),
        ("{}", "not a list of sections"),
        ("[]", "a section without times"),
        ('[{"name": "a"}]', "a row without 'samples_ms'"),
        ('[{"name": "a", "samples_ms": []}]', "a section without times"),
        ('[{"name": "a", "samples_ms": [NaN]}]', "a section without times"),
        ('[{"name": "a", "samples_ms": ["x"]}]', "no rows"),
        ("[3]", "no rows"),
    ],
)
def test_bad_section_times_are_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(BadSectionTimes, match=said):
        load_section_times(path)


def test_section_times_and_results_do_not_mix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, results = reported(tmp_path / "a.json", 1.0), tmp_path / "results.json"
    Results().save(results)
    none = tmp_path / "none.json"
    none.write_text('[{"name": "other", "samples_ms": [1.0]}]')
    for base, head, said in (
        (times, results, "not a list of sections"),
        (results, times, "not a list of sections"),
        (times, none, "it has no section of"),
        (times, tmp_path / "missing", "cannot be read"),
    ):
        assert main(["compare", str(base), str(head)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
