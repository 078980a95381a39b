"""Where a step's time goes: HLO text, events of the profiler, and a real step."""

from __future__ import annotations

import jax
import pytest

from bench import models
from bench.measurement import OURS, Results
from bench.process import Contestant, steps
from bench.suites.thunks import (
    IDLE,
    KIND,
    LARGEST,
    OP,
    STEP,
    THUNK,
    add_thunks,
    step_times,
    thunk_seconds,
)
from emulator.plans.hlo_text import parsed

TEXT = """\
HloModule jit_run, is_scheduled=true, entry_computation_layout={(f32[4,8]{1,0})->f32[]}

FileNames
1 "net.py"

%add.1 (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="reduce_sum"}
}

%inner (p: f32[4,8], q: f32[8,2]) -> f32[4,2] {
  %p = f32[4,8]{1,0} parameter(0)
  %q = f32[8,2]{1,0} parameter(1)
  ROOT %dot.1 = f32[4,2]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%windowed (w: f32[4,64]) -> f32[4,2] {
  %w = f32[4,64]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %reduce-window.1 = f32[4,2]{1,0} reduce-window(%w, %zero), window={size=1x32 stride=1x32}, to_apply=%add.1
}

%moved (m: f32[4,8]) -> f32[8,4] {
  %m = f32[4,8]{1,0} parameter(0)
  %t = f32[8,4]{1,0} transpose(%m), dimensions={1,0}
  ROOT %c = f32[8,4]{1,0} copy(%t)
}

%mixed (m: f32[4,8]) -> f32[4,8] {
  %m2 = f32[4,8]{1,0} parameter(0)
  ROOT %e = f32[4,8]{1,0} exponential(%m2)
}

%body (s: (f32[], f32[4,8])) -> (f32[], f32[4,8]) {
  %s = (f32[], f32[4,8]{1,0}) parameter(0)
  %inside = f32[4,8]{1,0} get-tuple-element(%s), index=1
  %step.1 = f32[4,8]{1,0} fusion(%inside), kind=kLoop, calls=%mixed
  %n = f32[] get-tuple-element(%s), index=0
  ROOT %again = (f32[], /*index=1*/f32[4,8]{1,0}) tuple(%n, %step.1)
}

ENTRY %main (x: f32[4,8], y: f32[8,2]) -> f32[] {
  %x = f32[4,8]{1,0} parameter(0), metadata={op_name="arrays[0]"}
  %y = f32[8,2]{1,0} parameter(1), metadata={op_name="arrays[1]"}
  %ynn_fusion = f32[4,2]{1,0} fusion(%x, %y), kind=kCustom, calls=%inner, metadata={op_name="jit(run)/fwd_0/net__lin/jit(aten.linear.default)/dot_general"}, backend_config={"fusion_config":{"kind":"__ynn_fusion"},"outer_dimension_partitions":[]}
  %window = f32[4,2]{1,0} fusion(%x), kind=kLoop, calls=%windowed
  %bit = f32[2,4]{1,0} bitcast(%window), metadata={op_name="jit(run)/fwd_0/net/jit(aten.sum.default)/reduce_sum"}
  %turn = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%moved
  %own = (f32[4,2]{1,0}, s8[16]{0}) custom-call(%x, %y), custom_call_target="__onednn$matmul"
  %plain = f32[4,8]{1,0} fusion(%x), kind=kLoop, calls=%mixed
  %loop = (f32[], f32[4,8]{1,0}) while(%plain), condition=%add.1, body=%body
  ROOT %d = f32[] dot(%bit, %ynn_fusion), metadata={op_name="jit(run)/bckwd_0/net__lin__grad/jit(aten.linear.default__grad)/dot_general"}
}
"""  # noqa: E501  # as XLA writes it


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ynn_fusion", "dot (ynn)"),
        ("window", "reduce-window"),
        ("turn", "transpose"),
        ("own", "custom call __onednn$matmul"),
        ("plain", "fusion"),
        ("loop", "while"),
        ("d", "dot"),
    ],
)
def test_kinds(name, kind):
    assert parsed(TEXT).kind(name) == kind


def test_what_instructions_say():
    module = parsed(TEXT)
    assert module.instructions["own"].shape == "(f32[4,2], s8[16])"
    assert module.instructions["loop"].calls == ("add.1", "body")
    assert module.says("ynn_fusion").endswith("/dot_general")
    # "reduce_sum" alone is the name of a part of a reduction, not of an operation.
    assert module.says("window") == ""
    assert module.users("window") == ["bit", "d"]


def test_times_that_overlap_are_divided():
    """A convolution's end comes later on another thread; two steps of 10 and 20 ms."""
    ms = 1e-3
    events = [
        *((STEP, 0.0, 10 * ms), (STEP, 100 * ms, 120 * ms)),
        *(("d", 1 * ms, 2 * ms), ("end: d", 5 * ms, 5 * ms)),
        *(("plain", 3 * ms, 7 * ms), ("end: plain", 7 * ms, 7 * ms)),
        *(("d", 101 * ms, 102 * ms), ("end: d", 103 * ms, 103 * ms)),
        *(("plain", 103 * ms, 107 * ms), ("end: plain", 107 * ms, 107 * ms)),
        ("ThunkExecutor::Execute", 0.0, 9 * ms),
    ]
    found = step_times(events, parsed(TEXT))
    # Step one: d alone for 2, both for 2, plain alone for 2. Step two: 2 and 4.
    assert found.seconds == pytest.approx({"d": 2.5e-3, "plain": 3.5e-3})
    assert found.elapsed == pytest.approx({"d": 3e-3, "plain": 4e-3})
    assert found.calls == {"d": 1.0, "plain": 1.0}
    assert found.idle == pytest.approx((4e-3 + 14e-3) / 2)


def test_a_loop_has_what_its_body_leaves():
    ms = 1e-3
    events = [
        (STEP, 0.0, 20 * ms),
        ("loop", 0.0, 10 * ms),
        *((name, start * ms, (start + 3) * ms) for name, start in (("step.1", 1), ("step.1", 5))),
    ]
    found = step_times(events, parsed(TEXT))
    assert found.seconds == pytest.approx({"loop": 4e-3, "step.1": 6e-3})
    assert found.calls == {"loop": 1.0, "step.1": 2.0}


@pytest.mark.slow
def test_a_step_of_this_project():
    """All that the thunks and the host take is the step; the profiler leaves nothing behind."""
    contestant = Contestant(models.SMALL["logreg-1"], OURS)
    found = thunk_seconds(contestant, count=4)
    seen = {thunk["name"]: thunk for thunk in found["thunks"]}
    assert found["plain"] > 0 and found["idle"] > 0
    total = found["idle"] + sum(thunk["seconds"] for thunk in seen.values())
    # Medians of few and tiny steps: of the same size, no more.
    assert 0.2 * found["traced"] < total < 5 * found["traced"]
    assert all(thunk["calls"] == 1 for thunk in seen.values())
    ops = {(thunk["section"], thunk["op"], thunk["module"]) for thunk in seen.values()}
    assert ("fwd_0", "aten.linear.default", "logreg__lin_layer") in ops
    lines = {thunk["lines"] for thunk in seen.values() if thunk["module"] == "logreg__lin_layer"}
    assert all(line.startswith("nets.py:") for line in lines) and lines
    # A second trace could not start if the first were still open.
    again = thunk_seconds(contestant, count=4)
    assert {thunk["name"] for thunk in again["thunks"]} == set(seen)
    assert steps(contestant, 2)["seconds"] > 0


@pytest.mark.slow
def test_a_loop_is_its_operation():
    found = thunk_seconds(Contestant(models.SMALL["gru"], OURS), count=2)
    ops = {thunk["op"]: thunk["lines"] for thunk in found["thunks"]}
    assert ops["aten.gru.input"].startswith("unseen.py:")
    assert any(thunk["calls"] > 1 for thunk in found["thunks"])


@pytest.mark.slow
def test_a_trace_that_fails_is_closed(monkeypatch):
    contestant = Contestant(models.SMALL["logreg-1"], OURS)
    steps(contestant, 1)
    whole = contestant._prepared
    assert whole is not None
    calls = []

    def failing(batch):
        calls.append(batch)
        if len(calls) > 7:  # five to warm up, two without the profiler
            raise RuntimeError("planted")
        return whole[1](batch)

    contestant._prepared = whole[0], failing
    with pytest.raises(RuntimeError, match="planted"):
        thunk_seconds(contestant, count=2)
    with pytest.raises(RuntimeError, match="No profile started"):
        jax.profiler.stop_trace()


def test_what_the_suite_adds():
    def thunk(number, kind="dot", **more):
        place = {"section": "fwd_0", "op": "linear", "module": "m", "lines": "a.py:1"}
        times = {"seconds": 1e-3 * (40 - number), "elapsed": 1e-3 * (40 - number), "calls": 1.0}
        shape = {"name": f"t{number}", "kind": kind, "shape": "f32[2]", "argument": ""}
        return {**place, **times, **shape, **more}

    found = {
        "plain": 1.0,
        "traced": 2.0,
        "idle": 0.5,
        "thunks": [
            thunk(0, elapsed=0.08),
            thunk(1, "copy", argument="w", op=""),
            *(thunk(n) for n in range(2, 30)),
        ],
    }
    results = Results()
    add_thunks("gpt", found, results)
    by_what = {m.what: m for m in results.select("thunks", "gpt")}
    assert by_what[IDLE].note == "30 thunks in the step"
    dots = by_what[f"{KIND}dot"]
    assert dots.median == pytest.approx(1e-3 * (sum(range(11, 41)) - 39))
    assert dots.note == "36.3%, 29 x"
    assert by_what[f"{OP}(none)"].median == pytest.approx(0.039)
    assert (
        by_what[f"{THUNK}t0"].note
        == "dot; f32[2]; fwd_0; m; linear; a.py:1; 80.000 ms beside others"
    )
    assert by_what[f"{THUNK}t1"].note == "copy; f32[2]; fwd_0; m; a.py:1; of w"
    assert sum(what.startswith(THUNK) for what in by_what) == LARGEST
