"""The gate's rule on simulated timings, and the gate itself on a planted slowdown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.__main__ import main
from bench.errors import NoRevision, UnknownSection
from bench.gate import GateSettings, decide, measure_in
from bench.measurement import FULL
from bench.stats import P_VALUE, RATIO, compare, compare_pairs, compare_processes
from bench.tree import ROOT, file_at, tree_of
from tests.processes import finished

SECTIONS = 12
PROCESSES, ROUNDS = 3, 12


def simulated(rng, processes: int, *, slower: dict[int, float], bias: float, drift: float):
    """One measurement of a case: lognormal jitter, a tail of interruptions, a bias of each
    process, and a machine that drifts, which both sides meet alike as they take turns.
    """
    times = np.geomspace(1e-4, 1e-2, SECTIONS)
    samples = {}
    for s in range(SECTIONS):
        sides = []
        for side in (0, 1):
            process = np.exp(rng.normal(0, bias, (processes, 1)))
            jitter = np.exp(rng.normal(0, 0.04, (processes, ROUNDS)))
            tail = np.where(rng.random((processes, ROUNDS)) < 0.05, rng.uniform(1, 4), 1.0)
            trend = np.linspace(1, 1 + drift, ROUNDS)
            factor = slower.get(s, 1.0) if side else 1.0
            sides.append((times[s] * factor * process * jitter * tail * trend).ravel().tolist())
        samples[f"section {s}"] = tuple(sides)
    return samples


@pytest.mark.parametrize(("bias", "drift"), [(0.0, 0.0), (0.04, 0.5)])
def test_identical_code_does_not_trip_it(bias, drift):
    rng = np.random.default_rng(1)
    for _ in range(50):
        verdict = decide(
            "x", lambda _, n: simulated(rng, n, slower={}, bias=bias, drift=drift), PROCESSES
        )
        assert verdict.slower == ()


@pytest.mark.parametrize(("bias", "drift"), [(0.0, 0.0), (0.04, 0.5)])
def test_a_fifth_more_is_caught(bias, drift):
    """Each time, at the bias of processes at which identical code is quiet, and nothing else is."""
    rng = np.random.default_rng(2)
    slower = {7: 1.2}
    for _ in range(50):
        verdict = decide(
            "x", lambda _, n: simulated(rng, n, slower=slower, bias=bias, drift=drift), PROCESSES
        )
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
    assert decide("x", measure, 1).faster == (), "one process is no witness"


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
def test_the_command(capsys):
    """Identical code, unless the working tree differs from the last commit."""
    argv = ["gate", "--base", "HEAD", "--model", "logreg-64", "--processes", "1", "--rounds", "5"]
    assert main(argv) in (0, 1)
    text = capsys.readouterr().out
    assert "counts: as kept" in text and "logreg-64: " in text and "bckwd_0" in text
