"""An executable as one C function, and signals held back where jax needs Python code for a call.

A call of the same form as an earlier one goes through C++ alone: no handler of a signal runs before
its results are there. The first call of a form (shapes, numpy or jax arrays, jax's settings)
goes through jax's Python code, which gives memory away long before it has the results. Signals are
held back from there on until whoever called has stored the results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from emulator.held_signals import HELD

__all__ = ["SLOW", "direct_call", "ended_call"]


class SlowCalls:
    """The calls that jax makes through Python code.

    Attributes:
        under_way: How many have begun whose results are not stored yet.
    """

    __slots__ = ("under_way",)

    def __init__(self) -> None:
        self.under_way = 0

    def begin(self) -> None:
        """Hold signals back, before memory is given away."""
        if threading.current_thread() is threading.main_thread():  # others run no handlers
            HELD.__enter__()
            self.under_way += 1

    def end(self) -> None:
        """All results are stored, or there are none: handlers of signals run from here on."""
        if threading.current_thread() is threading.main_thread():
            while self.under_way:
                self.under_way -= 1
                HELD.__exit__(None, None, None)


SLOW = SlowCalls()
"""Those of the process: signals are the process's, too."""


class _Announced:
    """What jax's Python code runs: the executable, after signals are held back."""

    __slots__ = ("_executable",)

    def __init__(self, executable: Any) -> None:
        self._executable = executable

    def call(self, *arrays: Any) -> Any:
        SLOW.begin()
        return self._executable.call(*arrays)


def direct_call(compiled: Any) -> Callable[..., Any]:
    """The C function behind a compiled executable.

    Args:
        compiled: A ``jax.stages.Compiled``. What it is made of is private to jax, see
            ``emulator/versions.py``.

    Returns:
        A function of arrays that gives arrays. Who calls it calls ``SLOW.end()`` where
        ``SLOW.under_way``, once the results are stored.
    """
    executable, parameters = compiled._executable, compiled._params
    found = executable.create_cpp_call(parameters._replace(executable=_Announced(executable)))
    if found is not None:
        return found

    def call(*arrays: Any) -> Any:  # jax has no C function for programs with effects
        SLOW.begin()
        return compiled(*arrays)

    return call


def ended_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """An executable that has ended when the call returns.

    Args:
        call: The executable, a function of arrays.

    Returns:
        A function of arrays that gives arrays; who calls it does as for :func:`direct_call`.
    """

    def run(*arrays: Any) -> Any:
        SLOW.begin()  # what is donated is gone, and the results are not stored yet
        results = call(*arrays)
        for array in results:
            array.block_until_ready()
        return results

    return run
