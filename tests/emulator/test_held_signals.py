"""Signals held back, whatever comes when."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from emulator import held_signals
from emulator.held_signals import HELD
from tests.processes import finished, joined
from tests.warm import ROOT

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class Heard(BaseException):
    """What a handler raises here."""


class Ears:
    """Handlers that note what they are called for, and raise if asked."""

    def __init__(self, *raising: int) -> None:
        self.raising, self.heard = raising, list[int]()

    def __call__(self, number: int, frame: Any) -> None:
        self.heard.append(number)
        if number in self.raising:
            raise Heard(number)

    @contextmanager
    def listening(self) -> Iterator[Ears]:
        """While active, these are the handlers; at its end they still must be."""
        before = {number: signal.signal(number, self) for number in HANDLED}
        try:
            yield self
            assert {signal.getsignal(number) for number in HANDLED} == {self}
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = {s: signal.getsignal(s) for s in signal.valid_signals()}
    yield
    assert {s: signal.getsignal(s) for s in signal.valid_signals()} == before
    assert not HELD._depth and not HELD._handlers and not HELD._noted


@pytest.mark.parametrize("after", range(1, 6))
def test_a_handler_that_is_back_may_hold_signals_itself(monkeypatch, after):
    """One that saves does, and it may run while the others are still being put back."""
    put = held_signals._set
    seen = []

    def put_and_run(number: int, found: Any) -> None:
        put(number, found)
        if found is ears:
            seen.append(number)
            if len(seen) == after:
                with HELD:
                    signal.raise_signal(signal.SIGINT)

    with Ears().listening() as ears:
        monkeypatch.setattr(held_signals, "_set", put_and_run)
        with HELD:
            pass
        assert len(seen) >= after
        assert ears.heard == [signal.SIGINT]
        with HELD:
            signal.raise_signal(signal.SIGTERM)
        assert ears.heard == [signal.SIGINT, signal.SIGTERM]


def test_handlers_run_at_the_end_in_the_order_of_the_signals():
    with Ears().listening() as ears:
        with HELD:
            for number in reversed(HANDLED):
                signal.raise_signal(number)
                signal.raise_signal(number)
            assert not ears.heard
        assert ears.heard == [*reversed(HANDLED)], "each once, as the system delivers them"


def test_the_end_of_the_outermost_counts():
    with Ears().listening() as ears:
        with HELD:
            with HELD, ExitStack() as more:
                more.enter_context(HELD)
                signal.raise_signal(signal.SIGINT)
            assert not ears.heard
        assert ears.heard == [signal.SIGINT]


def test_each_handler_runs_though_one_before_it_raises():
    with Ears(signal.SIGINT, signal.SIGTERM).listening() as ears:
        with pytest.raises(Heard) as caught, HELD:
            for number in HANDLED:
                signal.raise_signal(number)
        assert ears.heard == list(HANDLED)
        assert caught.value.args == (signal.SIGTERM,), "the last that raised"
        assert isinstance(caught.value.__context__, Heard)


def test_an_error_of_the_body_is_the_context_of_a_handlers():
    with Ears(signal.SIGINT).listening(), pytest.raises(Heard) as caught, HELD:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the body")
    assert isinstance(caught.value.__context__, ValueError)


def test_defaults_and_ignored_signals_are_left_alone():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with HELD:
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_set_meanwhile_stays():
    first, second = Ears(), Ears()
    with first.listening():
        with HELD:
            signal.signal(signal.SIGUSR1, second)
        assert signal.getsignal(signal.SIGUSR1) is second
        signal.signal(signal.SIGUSR1, first)


def test_outside_of_the_main_thread_there_is_nothing_to_do():
    found = []

    def other() -> None:
        with HELD:
            found.append(signal.getsignal(signal.SIGINT))
            found.append(HELD.insisted())

    with Ears().listening() as ears:
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        joined(thread)
        assert found == [ears, 0]
        with HELD:  # and another thread does not end what the main one holds
            thread = threading.Thread(target=other, daemon=True)
            thread.start()
            joined(thread)
            signal.raise_signal(signal.SIGINT)
            assert not ears.heard


def test_who_waits_hears_that_a_signal_came_twice():
    with Ears().listening() as ears:
        with HELD:
            assert not HELD.insisted()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            assert not HELD.insisted()
            signal.raise_signal(signal.SIGTERM)
            assert HELD.insisted() == signal.SIGTERM
            HELD.obeyed(signal.SIGTERM)
        assert ears.heard == [signal.SIGTERM, signal.SIGUSR1], "a script's own handler runs"
        with HELD:
            assert not HELD.insisted(), "it counts from the start each time"


def test_an_error_for_ctrl_c_is_not_doubled():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with HELD:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            HELD.obeyed(HELD.insisted())
    finally:
        signal.signal(signal.SIGINT, before)


def lines(at: int | None, number: int) -> int:
    """Hold signals while one comes at a line of the machinery; returns how many lines there are."""
    count = 0

    def local(frame, event, argument):
        nonlocal count
        if event == "line":
            count += 1
            if count - 1 == at:
                sys.settrace(None)
                signal.raise_signal(number)
        return local

    def trace(frame, event, argument):
        return local if frame.f_code.co_filename.endswith("/held_signals.py") else None

    sys.settrace(trace)
    try:
        with HELD:
            signal.raise_signal(signal.SIGTERM)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_handler_that_raises_at_any_line_breaks_nothing(number):
    with Ears(*HANDLED).listening() as ears, pytest.raises(Heard):
        lines(None, number)
    with Ears().listening():
        total = lines(None, number)
    assert total > 50
    for line in range(total):
        with Ears(number).listening() as ears:
            before = len(ears.heard)
            try:
                lines(line, number)
            except Heard:
                assert len(ears.heard) > before
            else:
                assert number is signal.SIGTERM or number in ears.heard
            with suppress(Heard), HELD:  # what an interrupted delivery has left is delivered now
                pass
            assert number in ears.heard
            assert not HELD._depth and not HELD._noted


@pytest.mark.slow
def test_importing_and_loading_leave_all_handlers(tmp_path):
    code = f"""
import signal
before = {{s: signal.getsignal(s) for s in signal.valid_signals()}}
from pathlib import Path
from tests.samba.session.interrupts import DROPPING
assert {{s: signal.getsignal(s) for s in signal.valid_signals()}} == before
scene = DROPPING.build()
scene.compile(Path({str(tmp_path)!r}))
scene.trace()
scene.run()
assert {{s: signal.getsignal(s) for s in signal.valid_signals()}} == before
"""
    done = finished(
        [sys.executable, "-c", code],
        cwd=ROOT,
        seconds=120,
    )
    assert done.returncode == 0, done.stderr
