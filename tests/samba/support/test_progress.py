"""Progress is shown on a terminal, by tqdm or a plain line, and nowhere else."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace

import pytest

import samba
from samba.support.progress import counted, stages
from samba.utils.measure import measure_performance
from tests.samba.worlds import INFERENCE, MLP


class Terminal(io.StringIO):
    """A terminal to write to."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What stood in its line, one after the other."""
        return [line.strip() for line in self.getvalue().split("\r") if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()  # pytest puts its own in place of sys.stderr when the test starts
    monkeypatch.setattr(
        "samba.support.progress.sys", SimpleNamespace(stderr=stream, modules=sys.modules)
    )
    return stream


@pytest.fixture
def plain(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal where tqdm is not installed."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    return terminal


def test_the_line_names_the_step_and_is_taken_away(plain: Terminal) -> None:
    with stages("compile net", "tracing", "writing") as stage:
        stage.start("tracing")
        stage.start("writing")
    assert plain.lines() == ["compile net: tracing (0/2)", "compile net: writing (1/2)"]
    assert plain.getvalue().endswith("\r" + " " * len("compile net: writing (1/2)") + "\r")


def test_in_a_notebook_a_bar_is_replaced_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what its kernel has loaded, without widgets."""
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(HTML=str, display=lambda _, display_id: handle)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with stages("compile <net>", "tracing", "writing") as stage:
        stage.start("tracing")
        stage.start("writing")
    assert shown == [
        '<progress max="2" value="0"></progress> compile &lt;net&gt;: tracing (0/2)',
        '<progress max="2" value="1"></progress> compile &lt;net&gt;: writing (1/2)',
        "",
    ]
    shown.clear()
    del shell.kernel  # IPython on a terminal that was redirected
    assert list(counted("runs", 3)) == [0, 1, 2] and not shown


def test_counts(plain: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("samba.support.progress.time.perf_counter", lambda: next(clock) * 0.06 + 1)
    assert list(counted("runs", 6)) == list(range(6))
    assert plain.lines() == ["runs (0/6)", "runs (2/6)", "runs (4/6)"]  # every 0.1 s at most


def test_an_error_takes_the_line_away(plain: Terminal) -> None:
    with pytest.raises(ValueError), stages("compile net", "tracing") as stage:
        stage.start("tracing")
        raise ValueError
    assert plain.getvalue().endswith(" \r")


def test_tqdm_is_used_where_it_is_installed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, int, int]] = []

    class Bar:
        monitor_interval = 10

        def __init__(self, **settings: object) -> None:
            assert settings["file"] is terminal and settings["leave"] is False
            assert self.monitor_interval == 0  # no thread
            self.n, self.total, self.desc = 0, settings["total"], settings["desc"]

        def set_description_str(self, text: str, refresh: bool) -> None:
            self.desc = text

        def refresh(self) -> None:
            shown.append((str(self.desc), self.n, int(str(self.total))))

        def close(self) -> None:
            shown.append(("closed", self.n, 0))

    monkeypatch.setitem(sys.modules, "tqdm", type(sys)("tqdm"))
    monkeypatch.setattr(sys.modules["tqdm"], "tqdm", Bar, raising=False)
    with stages("load x.pef", "reading", "tracing") as stage:
        stage.start("tracing")
    assert shown == [("load x.pef: tracing", 1, 2), ("closed", 1, 0)]


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    for error in (stream, None):
        monkeypatch.setattr(
            "samba.support.progress.sys", SimpleNamespace(stderr=error, modules=sys.modules)
        )
        assert counted("runs", 3) == range(3)
        with stages("compile net", "tracing") as stage:
            stage.start("tracing")
    assert stream.getvalue() == ""


def test_what_takes_long_says_so(tmp_path, plain: Terminal) -> None:
    scene = INFERENCE.build()
    threads = threading.active_count()
    scene.compile(tmp_path)
    scene.trace()
    scene.run()
    measure_performance(scene.model, scene.inputs, 5, inference=True, n_iterations=2)
    assert plain.lines() == [
        "compile mlp: tracing (0/3)",
        "compile mlp: cutting into sections (1/3)",
        "compile mlp: writing the PEF (2/3)",
        "load inference.pef: reading (0/2)",
        "load inference.pef: tracing (1/2)",
        "mlp: compiling 1 section steps (0/1)",
        "measure_performance: iterations (0/2)",
    ]
    assert threading.active_count() <= threads + 1  # no thread of a bar; jax may have started one


def test_a_log_stays_free_of_it(tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    scene = MLP.build()
    scene.compile(tmp_path)
    assert capfd.readouterr().err == ""
    assert samba.session.counters.traces >= 1
