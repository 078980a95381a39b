"""How a program ends is noted as it is, and gloo's threads have let go of its memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from samba.abexit import watch_end
from samba.distributed.gloo import as_bytes, as_torch, settle
from tests.processes import joined


@dataclass
class Program:
    """A program that is watched."""

    calls: int = 0
    failed: list[BaseException] = field(default_factory=list)
    shown: list[BaseException] = field(default_factory=list)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program()
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: found.shown.append(error))
    return found


def watched(program: Program) -> Callable[[], int]:
    return watch_end(program.failed.append, lambda: program.calls)


@pytest.mark.parametrize(
    ("status", "code"), [(None, 0), (0, 0), (5, 5), (True, 1), (-1, 255), (256, 0), ("why", 1)]
)
def test_what_an_exit_was_given(program: Program, status: object, code: int) -> None:
    told = watched(program)
    assert told() == 0
    with pytest.raises(SystemExit) as caught:
        sys.exit(status)
    assert caught.value.code == status and told() == code


def test_an_exit_that_was_caught_is_none_once_the_program_goes_on(program: Program) -> None:
    told = watched(program)
    with pytest.raises(SystemExit):
        sys.exit(3)
    program.calls += 1
    assert told() == 0
    with pytest.raises(SystemExit):
        sys.exit(4)
    assert told() == 4


def test_an_exit_of_another_thread_ends_that_thread_alone(program: Program) -> None:
    told = watched(program)

    def ends() -> None:
        with pytest.raises(SystemExit):
            sys.exit(3)

    thread = threading.Thread(target=ends)
    thread.start()
    joined(thread)
    assert told() == 0


def test_errors_are_shown_and_then_told(program: Program) -> None:
    watched(program)
    error = ValueError("no")
    sys.excepthook(ValueError, error, None)
    assert program.shown == program.failed == [error]


# -- memory that gloo's threads may still hold -----------------------------------------


@pytest.mark.parametrize("lend", [as_bytes, as_torch])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_settling_waits_until_all_lent_memory_is_back(lend, dtype):
    buffer = np.zeros(4, dtype)
    held = lend(buffer)
    held[:1] = 1
    assert buffer.view(np.uint8).any(), "it is the same memory"
    assert not settle(0.01)
    del held
    assert settle(0.01)
    assert buffer.size == 4  # the buffer itself may live on
