"""Executables as functions of arrays: direct ones, joint ones, and how their results are awaited.

A call of the same form as an earlier one goes through C++ alone: no handler of a signal runs before
its results are there. The first call of a form (shapes, numpy or jax arrays, jax's settings)
goes through jax's Python code, which gives memory away long before it has the results. Signals are
held back from there on until whoever called has stored the results.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from emulator.held_signals import HELD
from emulator.lowering.variant import Variant
from emulator.mesh.chips import Processes
from emulator.plans.steps import StepKey
from emulator.trace_settings import wide_types
from pef_schema.printable import some_of
from pef_schema.program import Program


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
    function = executable.create_cpp_call(parameters._replace(executable=_Announced(executable)))
    if function is not None:
        return function

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


def taker(places: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of a sequence that gives what lies at some places, in C for two or more.

    Args:
        places: The places.

    Example:
        >>> taker((2, 0))("abc"), taker((1,))("abc")
        (('c', 'a'), ('b',))
    """
    if len(places) > 1:
        return itemgetter(*places)
    return lambda sequence: tuple([sequence[place] for place in places])


def operation_of(program: Program, steps: StepKey, variant: Variant) -> str:
    """A description of a run, which no other run of the program has.

    Args:
        program: The program.
        steps: ``(section, step of the section)`` pairs that it runs.
        variant: What its plan is specialised for.
    """
    names = list(dict.fromkeys(program.sections[s].name for s, _ in steps))
    facts = repr((program.name, steps, variant.facts)).encode()
    key = hashlib.sha256(facts).hexdigest()[:8]
    return f"a run of {some_of(names, 3)} (plan {key})"


def joint_call(
    call: Callable[..., Any], processes: Processes, operation: str, names: Sequence[str]
) -> Callable[..., Any]:
    """An executable that has ended in this process when the call returns.

    Args:
        call: The executable over the chips of all processes, as a function of arrays.
        processes: The processes; all of them call it.
        operation: What it is, for errors.
        names: What its arguments are, in their order.

    Returns:
        A function of arrays that gives arrays; who calls it does as for
        :func:`~emulator.plans.calls.direct_call`.
    """

    def run(*arrays: Any) -> Any:
        def own_part() -> Any:
            # On a thread of its own, which has jax's settings of its own.
            with wide_types():
                results = call(*arrays)
            for array in results:
                array.block_until_ready()
            return results

        SLOW.begin()  # what is donated is gone, and the results are not stored yet
        pairs = zip(names, arrays, strict=True)
        inputs: dict[str, np.ndarray] = {n: a for n, a in pairs if isinstance(a, np.ndarray)}
        return processes.run(operation, own_part, inputs)

    return run


_POLLS = 300
"""How often a result is asked for before the thread sleeps: about 50 microseconds."""
_PAUSE = 100
"""Results that are slept for once polling has failed: it takes a core from long steps."""


class Result(Protocol):
    """A result that can be asked whether it is computed, as a ``jax.Array`` can."""

    def is_ready(self) -> bool:
        """Whether it is computed."""
        ...


class Poller:
    """A waiter that asks for results again and again for a moment, as long as that succeeds.

    Example:
        >>> import jax.numpy as jnp
        >>> poller = Poller()
        >>> poller.wait_briefly(jnp.zeros(()))
    """

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = 0

    def wait_briefly(self, buffer: Result) -> None:
        """Wait until a buffer is computed, about 50 microseconds at most.

        Args:
            buffer: The buffer; it may still not be ready afterwards.
        """
        if self._pause:
            self._pause -= 1
            return
        is_ready = buffer.is_ready
        for _ in range(_POLLS):
            if is_ready():
                return
        self._pause = _PAUSE
