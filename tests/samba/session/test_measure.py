"""Measuring: what is run, printed, returned and written; the clock is a fake."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path

import numpy as np
import pytest

import samba
import samba.utils as utils
from samba.errors import SambaError
from samba.support import timeline
from samba.utils import measure
from tests.api.covers import covers
from tests.samba.session.loading import FINE
from tests.samba.worlds import INFERENCE, MLP, close, named, other_batch, told


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock takes a quarter of a second, which floats hold exactly."""
    ticks = iter(range(1_000_000))
    fake = types.SimpleNamespace(perf_counter=lambda: next(ticks) / 4)
    monkeypatch.setattr(measure, "time", fake)
    monkeypatch.setattr(timeline, "time", fake)


@covers("samba.utils.measure_performance", ".measure_performance(n_iterations, batch_size)")
def test_performance(scene, clock, capsys, tmp_path):
    report, copy = tmp_path / "report.json", tmp_path / "stats.json"
    result = utils.measure_performance(
        scene.model,
        scene.inputs,
        5,
        1,
        False,
        n_iterations=10,
        json=str(report),
        compiled_stats_json=str(copy),
        data_parallel=False,
        reduce_on_rdu=False,
        use_sambaloader=True,
        min_duration=0.0,
    )
    # The clock is looked at before and after: 0.25 s for 10 runs of 5 samples.
    assert result == (200.0, 0.025)
    assert capsys.readouterr().out.splitlines() == [
        "initial run starts.",
        "initial run completes.",
        "e2e_throughput: 200.0 samples/s, measured over 10 iterations. Average latency: 0.025 s.",
        "e2e_latency: 0.25 s",
    ]
    assert json.loads(report.read_text()) == {
        "throughput_samples_per_s": 200.0,
        "average_latency_s": 0.025,
        "total_s": 0.25,
        "iterations": 10,
        "batch_size": 5,
        "run_graph_only": False,
        "inference": False,
    }
    stats = json.loads(copy.read_text())
    memory, metrics = stats.pop("memory"), stats.pop("metrics")
    assert stats == json.loads(report.read_text())
    assert (
        metrics["runs"] == samba.session.metrics().runs
        and memory["program"] == samba.session.program.name
    )
    assert [plan["measured"]["peak_bytes"] > 0 for plan in memory["plans"]] == [True]
    # One run to warm up and ten to measure, each a training step on the same data.
    assert samba.session.counters.runs == 11
    for _ in range(11):
        scene.host_step()
    scene.assert_follows()


@covers("samba.utils.measure_performance(run_graph_only)")
def test_performance_of_the_graph_only(scene, clock, capsys):
    scene.run(named(other_batch()))
    utils.measure_performance(
        scene.model, scene.inputs, batch_size=5, run_graph_only=True, n_iterations=4
    )
    out = capsys.readouterr().out
    assert "graph_only_throughput: 80.0 samples/s, measured over 4 iterations." in out
    assert "graph_only_latency: 0.25 s" in out
    assert samba.session.counters.runs == 6


@covers("samba.utils.measure_performance(inference)")
def test_performance_of_inference(pefs, clock):
    scene = pefs.loaded(MLP)
    before = scene.weights()
    utils.measure_performance(scene.model, scene.inputs, inference=True, n_iterations=2)
    assert all((weight == before[path]).all() for path, weight in scene.weights().items())
    samba.session.reset()
    scene = pefs.loaded(INFERENCE)
    throughput, latency = utils.measure_performance(scene.model, scene.inputs, n_iterations=2)
    assert (throughput, latency) == (40.0, 0.125)  # in batches of 5, as the inputs are


def test_performance_goes_on_for_a_while(scene, clock, capsys):
    utils.measure_performance(scene.model, scene.inputs, n_iterations=2, min_duration=1.0)
    assert "measured over 8 iterations" in capsys.readouterr().out


@covers("samba.utils.measure_sections", ".measure_sections(n_iterations, batch_size)")
def test_sections(scene, clock, capsys, tmp_path):
    report = tmp_path / "sections.json"
    rows = utils.measure_sections(
        scene.model,
        scene.inputs,
        num_sections=None,
        n_iterations=3,
        batch_size=5,
        data_parallel=False,
        reduce_on_rdu=False,
        json=str(report),
        min_duration=0.0,
    )
    assert [(r.section_id, r.type, r.name, r.calls) for r in rows] == [
        (0, "FWD", "fwd_0", 3),
        (1, "BCKWD", "bckwd_0", 3),
        (2, "OPT", "opt_sgd0", 3),
    ]
    assert all((r.min_ms, r.median_ms, r.max_ms) == (250.0, 250.0, 250.0) for r in rows)
    assert sum(r.share for r in rows) == pytest.approx(1.0)
    lines = capsys.readouterr().out.splitlines()
    # What reads the first columns by their places goes on doing so.
    assert [line[:63].rstrip() for line in lines[-5:]] == [
        "id  type   name      calls   min ms  median ms   max ms   share",
        " 0  FWD    fwd_0         3  250.000    250.000  250.000  33.3 %",
        " 1  BCKWD  bckwd_0       3  250.000    250.000  250.000  33.3 %",
        " 2  OPT    opt_sgd0      3  250.000    250.000  250.000  33.3 %",
        "sum of medians: 750.000 ms, 6.667 samples/s",
    ]
    assert [re.split(r" {2,}", line[65:].strip()) for line in lines[-5:-1]] == [
        ["modules", "operations"],
        ["first, mlp, second", "linear:2 tanh cross_entropy_loss"],
        ["first, mlp, second", "linear:2 tanh cross_entropy_loss"],
        ["first, second", "sgd:4"],
    ]
    legend = [part.partition(":")[0].strip() for x in lines[-8:-5] for part in x.split(";")]
    assert {"calls", "ms", "share", "modules", "operations"} <= set(legend)
    written = json.loads(report.read_text())
    assert written[1] == {
        "section_id": 1,
        "name": "bckwd_0",
        "type": "BCKWD",
        "calls": 3,
        "min_ms": 250.0,
        "median_ms": 250.0,
        "max_ms": 250.0,
        "share": rows[1].share,
        "modules": list(rows[1].modules),
        "operations": {"linear": 2, "tanh": 1, "cross_entropy_loss": 1},
        "samples_ms": [250.0] * 3,
    }
    assert len(written) == 3


def test_every_row_has_its_own_times(scene, monkeypatch):
    """Minimum, median, maximum and share come from the times of that section alone."""
    # Two passes over three sections: when each begins and ends, with a start and a last look.
    spans = [1.0, 8.0, 3.0, 2.0, 4.0, 5.0]
    edges = np.cumsum([0.0, *(value for span in spans for value in (0.0, span))])
    looks = iter([0.0, *edges[1:], 100.0])
    fake = types.SimpleNamespace(perf_counter=lambda: float(next(looks)))
    monkeypatch.setattr(measure, "time", fake)
    monkeypatch.setattr(timeline, "time", fake)
    rows = utils.measure_sections(scene.model, scene.inputs, n_iterations=2)
    found = [(r.min_ms, r.median_ms, r.max_ms) for r in rows]
    assert found == [(1e3, 1.5e3, 2e3), (4e3, 6e3, 8e3), (3e3, 4e3, 5e3)]
    assert [r.samples_ms for r in rows] == [(1e3, 2e3), (8e3, 4e3), (3e3, 5e3)]
    assert [r.share for r in rows] == pytest.approx([1.5 / 11.5, 6 / 11.5, 4 / 11.5])


def test_some_sections(pefs, clock, caplog):
    scene = pefs.loaded(FINE)
    rows = utils.measure_sections(scene.model, scene.inputs, num_sections=2, n_iterations=1)
    assert [(r.section_id, r.type) for r in rows] == [(0, "FWD"), (1, "FWD")]
    rows = utils.measure_sections(scene.model, scene.inputs, n_iterations=1, min_duration=10.0)
    assert len(rows) == len(samba.session.program.sections)
    assert all(row.calls > 1 for row in rows)
    last = len(rows) - 1
    utils.measure_sections(scene.model, scene.inputs, num_sections=last, n_iterations=1)
    assert told(caplog) == []  # gradients that no update uses: nothing is trained


def test_every_row_names_its_layer_at_o0(pefs, clock, capsys):
    """``fwd_2`` alone does not say which layer it is."""
    scene = pefs.loaded(FINE)
    rows = utils.measure_sections(scene.model, scene.inputs, n_iterations=1)
    found = {row.name: (row.modules, row.operations) for row in rows}
    assert found["fwd_0"] == (("mlp__first",), (("linear", 1),))
    assert found["fwd_1"] == (("mlp",), (("tanh", 1),))
    assert found["bckwd_2"] == (("mlp__second",), (("linear", 1),))
    assert found["opt_sgd0"] == (("mlp__first", "mlp__second"), (("sgd", 4),))
    (line,) = [x for x in capsys.readouterr().out.splitlines() if " bckwd_2 " in x]
    assert line.endswith("  second         linear")
    log = Path(f"{scene.pef}.log").read_text()
    (line,) = [x for x in log.splitlines() if "  bckwd_2  " in x and "BCKWD" in x]
    assert line.split()[-2:] == ["second:", "linear"]


def test_training_goes_on_after_measuring(pefs, clock):
    scene = pefs.loaded(MLP)
    utils.measure_sections(scene.model, scene.inputs, n_iterations=1)
    samba.session.to_rdu(scene.model, scene.optimizer)
    scene.run()
    scene.host_step()
    scene.assert_follows()
    close(scene.run(section_types=["fwd"])[0], scene.host(**scene.tensors)[0].detach())


@pytest.mark.parametrize(
    "call, parts",
    [
        (lambda m, i: utils.measure_performance(m, i, n_iterations=0), ["n_iterations", "0"]),
        (lambda m, i: utils.measure_performance(m, i, batch_size=0), ["batch_size", "0"]),
        (lambda m, i: utils.measure_sections(m, i, n_iterations=0), ["n_iterations", "1 or more"]),
        (lambda m, i: utils.measure_sections(m, i, batch_size=0), ["batch_size", "1 or more"]),
        (lambda m, i: utils.measure_sections(m, i, num_sections=0), ["num_sections", "1 or more"]),
        (lambda m, i: utils.measure_performance(m, i, n_iterations="9"), ["n_iterations", "'9'"]),
        (lambda m, i: utils.measure_performance(m, i, n_iterations=2.5), ["n_iterations", "2.5"]),
        (lambda m, i: utils.measure_performance(m, i, batch_size="8"), ["batch_size", "str '8'"]),
        (lambda m, i: utils.measure_performance(m, i, min_duration="1"), ["min_duration", "'1'"]),
        (lambda m, i: utils.measure_performance(m, i, inference="no"), ["inference", "'no'"]),
        (lambda m, i: utils.measure_performance(m, i, run_graph_only="no"), ["graph_only", "'no'"]),
        (lambda m, i: utils.measure_performance(m, i, json=5), ["json", "int 5", "a path"]),
        (lambda m, i: utils.measure_sections(m, i, num_sections=2.0), ["num_sections", "2.0"]),
        (
            lambda m, i: utils.measure_performance(m, i, json="nowhere/x.json"),
            ["measure_performance(json='nowhere/x.json')", "no folder", "a folder that exists"],
        ),
        (
            lambda m, i: utils.measure_sections(m, i, json="nowhere/x.json"),
            ["measure_sections(json='nowhere/x.json')", "no folder"],
        ),
        (
            lambda m, i: utils.measure_performance(m, i, json="."),
            ["measure_performance(json='.')", "found a folder"],
        ),
        (
            lambda m, i: utils.measure_performance(m, (other_batch(batch=3)["x"], None)),
            ["tensor x", "[3, 4]", "[5, 4]"],
        ),
    ],
)
def test_bad_arguments(scene, call, parts):
    with pytest.raises(SambaError) as caught:
        call(scene.model, scene.inputs)
    assert all(part in str(caught.value) for part in parts)
    assert samba.session.counters.runs == 0
