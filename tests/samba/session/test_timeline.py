"""The timeline of runs: what is on it, what it changes of the runs, and how it ends."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import samba
from emulator.plans.kernel_trace import ProfilerInUse
from samba.profiler import PROFILER
from samba.support.timeline import NoTimeline, Timeline, Track
from samba.utils.argparser import parse_app_args
from tests.samba.session.loading import FINE, load
from tests.samba.worlds import Pefs, Scene


@pytest.fixture
def scene(pefs: Pefs) -> Scene:
    return pefs.loaded(FINE)


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a file that have a duration; all of it is checked against the format."""
    found = json.loads(path.read_text())
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    names = {}
    timed: list[dict[str, Any]] = []
    for event in found["traceEvents"]:
        assert event["ph"] in ("M", "X") and isinstance(event["pid"], int)
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0
            timed.append(event)
    lanes = {tid: name for tid, name in names.items() if tid >= Track.KERNELS}
    assert lanes == {Track.KERNELS + i: f"kernels {i}" for i in range(len(lanes))}
    others = [track for track in Track if track is not Track.KERNELS]
    assert names == {track.value: track.name.lower() for track in others} | lanes
    for track in names:
        ends: list[float] = []
        last = 0.0
        for event in (e for e in timed if e["tid"] == track):
            assert event["ts"] >= last, "in the order of their beginnings"
            last = event["ts"]
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1] + 2e-3, "a span lies within another or beside it"
            ends.append(end)
        assert all(e["cat"] == names[track].split()[0] for e in timed if e["tid"] == track)
    assert found["otherData"]["events"] == len(timed)
    return timed


def test_every_section_of_every_run_is_on_it(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    samba.session.start_timeline(path)
    for _ in range(3):
        scene.run()
    samba.session.stop_timeline()
    found = events(path)
    loaded = samba.session._slot.loaded
    assert loaded is not None
    program = loaded.program
    sections = [e for e in found if e["tid"] == Track.SECTIONS]
    called = [program.sections[c.section].name for c in program.schedules[0].calls]
    assert [e["name"] for e in sections] == called * 3
    host = Counter(e["name"] for e in found if e["tid"] == Track.HOST)
    # The first run compiles each section, which is none of its time.
    compiled = [e for e in found if e["name"] == "compile"]
    assert [e["args"]["section"] for e in compiled] == [
        e["args"]["section"] for e in sections[: len(called)]
    ]
    ran = {"session.run": 3, "feed": 3, "fetch": 3, "dispatch": len(sections)}
    assert host == ran | {"compile": len(called)}
    (linear,) = {json.dumps(e["args"]) for e in sections if e["name"] == called[0]}
    facts = json.loads(linear)
    assert facts["types"] == "FWD" and facts["section"] == program.schedules[0].calls[0].section
    assert facts["modules"] and all(":" in line for line in facts["lines"])


def test_runs_give_what_sections_one_by_one_give(pefs: Pefs, tmp_path: Path) -> None:
    def trained(*, on_timeline: bool) -> list[torch.Tensor]:
        made = pefs.loaded(FINE)
        loaded = samba.session._slot.loaded
        assert loaded is not None
        first, *others = [call.section for call in loaded.program.schedules[0].calls]
        if on_timeline:
            samba.session.start_timeline(tmp_path / "t.json")
        for _ in range(3):
            if on_timeline:
                made.run()
                continue
            samba.session.run(made.inputs, (), section_ids=[first])
            for section in others:
                samba.session.run(None, (), section_ids=[section])
        if on_timeline:
            samba.session.stop_timeline()
        weights = [weight.clone() for weight in made.weights().values()]
        samba.session.reset()
        return weights

    ours, theirs = trained(on_timeline=True), trained(on_timeline=False)
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_outputs_parts_and_hyperparameters_pass_through(scene: Scene, tmp_path: Path) -> None:
    samba.session.start_timeline(tmp_path / "t.json")
    before = {name: w.clone() for name, w in scene.weights().items()}
    scene.run(section_types=["fwd"])
    assert all(w.equal(before[name]) for name, w in scene.weights().items())
    (loss, *_) = scene.run(hyperparam_dict={"lr": 0.0})
    torch.testing.assert_close(loss, scene.host(**scene.tensors)[0].detach(), rtol=1e-5, atol=1e-6)
    assert all(w.equal(before[name]) for name, w in scene.weights().items())
    scene.run(hyperparam_dict={"lr": 0.1})
    assert not all(w.equal(before[name]) for name, w in scene.weights().items())
    samba.session.stop_timeline()
    names = [e["name"] for e in events(tmp_path / "t.json") if e["tid"] == Track.SECTIONS]
    assert names and not any(name == "all sections" for name in names)
    assert scene.run()[0].isfinite(), "runs as before"


def test_a_run_that_fails_is_on_it_and_the_next_one_works(scene: Scene, tmp_path: Path) -> None:
    samba.session.start_timeline(tmp_path / "t.json")
    with pytest.raises(samba.errors.SambaError):
        scene.run((torch.ones(1),))
    scene.run()
    samba.session.stop_timeline()
    assert sum(e["name"] == "session.run" for e in events(tmp_path / "t.json")) == 2


def test_kernels_lie_within_their_sections(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    scene.run()
    samba.session.start_timeline(path, kernels=True)
    for _ in range(2):
        scene.run()
    with pytest.raises(NoTimeline, match="was started before"):
        samba.session.start_timeline(tmp_path / "u.json", kernels=True)
    samba.session.stop_timeline()
    found = events(path)
    sections = [e for e in found if e["tid"] == Track.SECTIONS]
    kernels = [e for e in found if e["tid"] >= Track.KERNELS]
    within = {e["args"]["section"] for e in kernels}
    assert within == {e["name"] for e in sections}
    for kernel in kernels:
        (around,) = [e for e in sections if e["ts"] <= kernel["ts"] + 1 <= e["ts"] + e["dur"] + 2]
        assert around["name"] == kernel["args"]["section"]
        assert kernel["args"]["kind"]
        module = kernel["args"].get("module", "").removesuffix("__grad")
        assert not module or module in around["args"]["modules"]
    told = [e for e in kernels if "tanh" in e["args"].get("op", "")]
    assert told and all(e["args"]["module"] for e in told)


def test_kernels_of_sections_that_share_an_executable(tmp_path: Path) -> None:
    """Each is of its own module, though the executable was made for another one's."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    inputs = (samba.randn(4, 8, name="x", batch_dim=0),)
    samba.from_torch_model_(model)
    outputs = load(model, inputs, tmp_path, config={"optim_level": "o0"}, inference=True)
    samba.session.start_timeline(tmp_path / "t.json", kernels=True)
    for _ in range(2):
        samba.session.run(inputs, outputs)
    samba.session.stop_timeline()
    assert samba.session.counters.compiles == 3, "the first, the last, and one for all between"
    kernels = [e["args"] for e in events(tmp_path / "t.json") if e["tid"] >= Track.KERNELS]
    found = {(k["section"], k["module"]) for k in kernels if "module" in k}
    assert found == {(f"fwd_{i}", f"sequential__{i}") for i in range(5)}


def test_kernels_need_the_profiler_for_themselves(tmp_path: Path) -> None:
    jax.profiler.start_trace(str(tmp_path / "other"))
    try:
        with pytest.raises(ProfilerInUse, match="jax's profiler cannot be started"):
            samba.session.start_timeline(tmp_path / "t.json", kernels=True)
        assert PROFILER.timeline is None and not (tmp_path / "t.json").exists()
    finally:
        jax.profiler.stop_trace()


def test_a_profiler_that_somebody_else_has_stopped(
    scene: Scene, tmp_path: Path, caplog: Any
) -> None:
    samba.session.start_timeline(tmp_path / "t.json", kernels=True)
    scene.run()
    jax.profiler.stop_trace()
    samba.session.stop_timeline()
    assert {e["tid"] for e in events(tmp_path / "t.json")} == {Track.HOST, Track.SECTIONS}
    (line,) = [r.getMessage() for r in caplog.records if "no kernels" in r.getMessage()]
    assert "t.json" in line


def test_starting_and_stopping(tmp_path: Path) -> None:
    with pytest.raises(NoTimeline, match="no timeline was started"):
        samba.session.stop_timeline()
    samba.session.start_timeline(tmp_path / "a.json")
    try:
        with pytest.raises(NoTimeline, match="was started before"):
            samba.session.start_timeline(tmp_path / "b.json")
    finally:
        samba.session.stop_timeline()
    assert not PROFILER.active and not (tmp_path / "b.json").exists()
    for path, problem in (
        (tmp_path, r"it is a folder\. Name a file\."),
        (tmp_path / "none" / "t.json", r"files cannot be made in .*none\. Name a file in"),
    ):
        with pytest.raises(NoTimeline, match=problem):
            samba.session.start_timeline(path)
        assert PROFILER.timeline is None


def test_kernels_of_no_timeline_are_refused(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        parse_app_args(["run", "--pef=t.pef", "--timeline-kernels"])
    assert "--timeline FILE" in capsys.readouterr().err


def test_it_is_bounded_and_says_so(tmp_path: Path, caplog: Any, scene: Scene) -> None:
    samba.session.start_timeline(tmp_path / "t.json", most=4)
    scene.run()
    samba.session.stop_timeline()
    assert len(events(tmp_path / "t.json")) == 4
    found = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert found["left_out"] > 0
    (line,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert str(found["left_out"]) in line


def test_a_profile_beside_it(scene: Scene, tmp_path: Path) -> None:
    samba.session.start_timeline(tmp_path / "t.json")
    with samba.session.samba_profile() as profiler:
        scene.run()
    assert PROFILER.active and PROFILER.timeline is not None
    samba.session.stop_timeline()
    assert not PROFILER.active
    with samba.session.samba_profile() as profiler:
        scene.run()
    assert "PyRT_RUN" in profiler.names


def test_spans_nest_and_are_of_their_tracks(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "t.json")
    with timeline.span(Track.HOST, "outer"), timeline.span(Track.HOST, "inner\x1b", {"a": 1}):
        pass
    with pytest.raises(ZeroDivisionError), timeline.span(Track.COMMUNICATION, "fails"):
        _ = 1 / 0
    timeline.write()
    assert [e["name"] for e in events(tmp_path / "t.json")] == ["outer", "inner\x1b", "fails"]
    assert b"\x1b" not in (tmp_path / "t.json").read_bytes()
