"""The profiler of the front end and runtime profiles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import samba
from samba.errors import ArgumentError
from samba.profiler import Profiler, UnknownEvent
from samba.session.profiling import RuntimeProfile
from tests.api.covers import covers


@pytest.fixture
def profiler() -> Iterator[Profiler]:
    profiler = Profiler()
    profiler.stop_profile()
    profiler.reset()
    yield profiler
    profiler.stop_profile()
    profiler.reset()


def test_there_is_one_profiler(profiler: Profiler) -> None:
    assert Profiler() is profiler
    profiler.start_profile()
    assert Profiler().started


def test_nothing_is_recorded_before_the_start(profiler: Profiler) -> None:
    handle = profiler.start_event("early")
    assert handle is None
    profiler.end_event(handle)
    with profiler.event("early"):
        pass
    assert profiler.names == []


def test_a_handle_times_what_lies_between(profiler: Profiler) -> None:
    profiler.start_profile()
    for _ in range(3):
        handle = profiler.start_event("sleep")
        time.sleep(0.01)
        profiler.end_event(handle)
    latency = profiler.get_latencies(["sleep"])["sleep"]
    assert 0.01 <= latency < 1
    assert len(profiler._get_iter_times("sleep", 1)) == 2


def test_an_event_that_outlasts_the_profile_is_recorded(profiler: Profiler) -> None:
    profiler.start_profile()
    handle = profiler.start_event("late")
    profiler.stop_profile()
    profiler.end_event(handle)
    assert profiler.names == ["late"]


def test_context_manager_records_in_spite_of_an_error(profiler: Profiler) -> None:
    profiler.start_profile()
    with pytest.raises(KeyError), profiler.event("fails"):
        raise KeyError
    assert profiler.names == ["fails"]


def test_a_decorator_made_before_the_start(profiler: Profiler) -> None:
    class Model:
        @profiler.event("forward")
        def forward(self, x: int) -> int:
            """Adds one."""
            return x + 1

    assert Model().forward(1) == 2 and Model.forward.__doc__ == "Adds one."
    assert profiler.names == []
    profiler.start_profile()
    assert Model().forward(2) == 3
    assert len(profiler.get_iter_times("forward")) == 1


def test_recursion_is_timed_call_by_call(profiler: Profiler) -> None:
    timer = profiler.event("level")

    def go(depth: int) -> None:
        with timer:
            if depth:
                go(depth - 1)

    profiler.start_profile()
    go(2)
    inner, middle, outer = profiler.get_iter_times("level")
    assert inner <= middle <= outer


def test_starting_again_forgets_and_starting_twice_does_not(profiler: Profiler) -> None:
    profiler.start()
    with profiler.event("a"):
        pass
    profiler.start()
    assert profiler.names == ["a"]
    profiler.stop()
    assert profiler.names == ["a"]
    profiler.start()
    assert profiler.names == []


def _known(profiler: Profiler) -> None:
    profiler.start_profile()
    for seconds in (4.0, 1.0, 3.0):
        profiler._record("step", seconds)
    profiler._record("save", 0.5)


def test_latencies_and_throughputs_leave_out_the_warmup(profiler: Profiler) -> None:
    _known(profiler)
    assert profiler.get_latencies() == {"step": pytest.approx(8 / 3), "save": 0.5}
    assert profiler.get_latencies(["step"], 1) == {"step": 2.0}
    assert profiler.get_throughputs(["step"], 16, warmup_iters=1) == {"step": 8.0}


def test_statistics_are_a_table(profiler: Profiler) -> None:
    _known(profiler)
    text = profiler.print_statistics(
        ["step"],
        warmup=1,
        num_samples_per_iter=16,
        measurements=["latency", "throughput", "count", "total", "median", "min", "max"],
    )
    head, row = text.splitlines()
    assert head.split()[0] == "event" and "throughput [samples/s]" in head
    assert row.split() == [
        "step", "2000.0000", "8.000", "2", "4.000000", "2000.0000", "1000.0000", "3000.0000",
    ]  # fmt: skip
    assert "save" in profiler.print_statistics()


def test_questions_without_an_answer_are_errors(profiler: Profiler) -> None:
    _known(profiler)
    with pytest.raises(UnknownEvent, match="found 'stop', expected one of step, save") as e:
        profiler.get_latencies(["stop"])
    assert isinstance(e.value, KeyError)
    with pytest.raises(ArgumentError, match=r"found 3, expected 0 to 2: it occurred 3 time"):
        profiler.get_latencies(["step"], 3)
    with pytest.raises(ArgumentError, match="found 'speed', expected some of latency, throughput"):
        profiler.print_statistics(measurements=["speed"])
    with pytest.raises(ArgumentError, match="the number of samples"):
        profiler.print_statistics(measurements=["throughput"])


def test_dump_writes_a_line_for_each_event(profiler: Profiler, tmp_path: Path) -> None:
    _known(profiler)
    path = tmp_path / "profile.txt"
    profiler.dump(path)
    lines = path.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["event", "step", "save"]
    assert lines[1].split()[1:3] == ["3", "8.000000"]


def test_times_are_limited(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samba.profiler._LIMIT", 2)
    _known(profiler)
    assert profiler.get_iter_times("step") == [4.0, 1.0]
    assert profiler.print_statistics(["step"], measurements=["count"]).split() == [
        "event", "count", "step", "3",
    ]  # fmt: skip


class _Counts:
    compiles = 1
    runs = 5


@pytest.mark.parametrize("level", ["SUMMARY", "detailed"])
def test_a_runtime_profile_is_written_each_time(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENABLE_RUNTIME_PERF", level)
    path = tmp_path / "profile.log"
    profile = RuntimeProfile()
    for _ in range(2):
        counts = _Counts()
        profile.start(counts=counts)
        sorted(range(10))
        counts.runs += 2
        profile.end(path)
        text = path.read_text()
        assert text.startswith(f"runtime profile ({level.lower()}): ")
        assert "device: 2 runs, 0 plans compiled" in text and "sorted" in text
        path.unlink()
    assert capsys.readouterr().out.count("between start and end") == 2


@pytest.mark.parametrize("level", [None, "", "SVP", "1"])
def test_a_runtime_profile_needs_the_variable(
    level: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level is None:
        monkeypatch.delenv("ENABLE_RUNTIME_PERF", raising=False)
    else:
        monkeypatch.setenv("ENABLE_RUNTIME_PERF", level)
    profile = RuntimeProfile()
    profile.start()
    profile.end(tmp_path / "profile.log")
    assert not (tmp_path / "profile.log").exists()


def test_an_end_without_a_start_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ENABLE_RUNTIME_PERF", "SUMMARY")
    RuntimeProfile().end(tmp_path / "profile.log")
    assert "no runtime profile was started" in caplog.text
    assert not (tmp_path / "profile.log").exists()


@covers("samba.session.start_runtime_profile(timer_enabled)")
def test_the_wall_time_of_a_profile_is_printed_unless_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENABLE_RUNTIME_PERF", "SUMMARY")
    for keywords, printed in (({}, 1), ({"timer_enabled": True}, 1), ({"timer_enabled": False}, 0)):
        samba.session.start_runtime_profile(**keywords)
        samba.session.end_runtime_profile(str(tmp_path / "log"))
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == printed and all("between start and end" in line for line in lines)
        assert (tmp_path / "log").read_text().startswith("runtime profile")
