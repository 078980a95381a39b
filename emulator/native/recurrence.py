"""Recurrent layers over all their steps by oneDNN, and their gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from emulator.native.library import native_library

_TARGET = "emulator_recurrence"


class Cell(Enum):
    """What a step does; each with its number in the kernels."""

    LSTM = 0
    GRU = 1
    TANH = 2
    RELU = 3

    @property
    def gates(self) -> int:
        """Gates for each element of a state.

        Example:
            >>> [cell.gates for cell in Cell]
            [4, 3, 1, 1]
        """
        return {Cell.LSTM: 4, Cell.GRU: 3}.get(self, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceCall:
    """A call of the kernels for recurrent layers.

    Args:
        cell: What a step does.
        steps, batch, width: Of the outputs ``(steps, batch, width)``.
        reverse: Whether the last step comes first.
        narrow: Whether the weight is bfloat16, and with it what it is multiplied with; else
            float32.
        keeps: Whether a forward pass keeps of every step what the gradient reads.
        threads: Among how many threads the batch is divided, at most.
    """

    cell: Cell
    steps: int
    batch: int
    width: int
    reverse: bool
    narrow: bool = False
    keeps: bool = True
    threads: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps, batch, width."""
        return (self.steps, self.batch, self.width)

    def numbers(self, *, gradient: bool) -> dict[str, int]:
        """What the native functions are given, in the order of their arguments."""
        return {
            "cell": self.cell.value,
            "part": int(gradient),
            "reverse": int(self.reverse),
            "narrow": int(self.narrow),
            "keeps": int(self.keeps),
            "threads": self.threads,
        }


@functools.lru_cache(maxsize=1024)
def _scratch(call: RecurrenceCall, gradient: bool) -> int | None:
    library = native_library()
    if library is None:
        return None
    numbers = call.numbers(gradient=gradient).values()
    return library.scratch("recurrence_scratch", call.shape, *numbers)


def has_recurrence(call: RecurrenceCall) -> bool:
    """Whether oneDNN has kernels for the products of a call and of its gradient.

    Args:
        call: The call.

    Returns:
        False without native kernels, too.
    """
    if native_library() is None:
        return False
    return all(_scratch(call, gradient) is not None for gradient in (False, True))


def call_recurrence(
    call: RecurrenceCall,
    gates: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    state: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """Run a recurrent layer over time, in float32.

    Args:
        call: Which.
        gates: What the inputs give to the gates, ``(steps, batch, gates * width)``. Results take
            its memory.
        weight: Recurrent weight, ``(gates * width, width)``.
        bias: Recurrent bias, ``(gates * width,)``.
        state: First h ``(batch, width)``; of an LSTM also the first c.

    Returns:
        Of an LSTM its gates, h and c over time; of a GRU its gates, h, and what the state and the
        bias gave to the new gate; of a simple cell h. Where nothing is kept, c and what the state
        gave are those of the last step, ``(1, batch, width)``.

    Raises:
        NotImplementedError: If :func:`has_recurrence` says no.
    """
    over_time = (call.steps, call.batch, call.width)
    shapes: tuple[tuple[int, ...], ...] = (gates.shape,)
    if call.cell.gates > 1:
        shapes = (gates.shape, over_time, (call.steps if call.keeps else 1, *over_time[1:]))
    return _call(call, False, (gates, weight, bias, *state), shapes, {0: 0})


def call_recurrence_gradient(
    call: RecurrenceCall,
    gates: jax.Array,
    weight: jax.Array,
    kept: tuple[jax.Array, ...],
    dys: jax.Array,
    dstate: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """The gradients of :func:`call_recurrence`, without those of weight and bias.

    Args:
        call: Which.
        gates: Its gates over time; of a simple cell h. Results take the memory of an LSTM's and a
            GRU's gates, of a simple cell's ``dys``, and of ``dstate``.
        weight: Recurrent weight.
        kept: Of an LSTM c over time and first; of a GRU what the state gave to the new gate, h
            over time and first.
        dys: Cotangent of h over time.
        dstate: Cotangents of the last state.

    Returns:
        Gradients of what the inputs gave to the gates, of a GRU also of what the state gave to
        them, and of the first state.

    Raises:
        NotImplementedError: If :func:`has_recurrence` says no.
    """
    state = (call.batch, call.width)
    over_gates = (*call.shape[:2], call.cell.gates * call.width)
    operands = (gates, weight, *kept, dys, *dstate)
    match call.cell:
        case Cell.LSTM:
            return _call(call, True, operands, (over_gates, state, state), {0: 0, 5: 1, 6: 2})
        case Cell.GRU:
            return _call(call, True, operands, (over_gates, over_gates, state), {0: 0, 6: 2})
        case _:
            return _call(call, True, operands, (over_gates, state), {2: 0, 3: 1})


def _call(
    call: RecurrenceCall,
    gradient: bool,
    operands: tuple[jax.Array, ...],
    shapes: tuple[tuple[int, ...], ...],
    in_place: dict[int, int],
) -> tuple[jax.Array, ...]:
    scratch = _scratch(call, gradient) if native_library() is not None else None
    if scratch is None:
        raise NotImplementedError(f"no native kernel computes {call}")
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    results.append(jax.ShapeDtypeStruct((scratch,), jnp.uint8))
    run = jax.ffi.ffi_call(_TARGET, results, input_output_aliases=in_place)
    numbers = {**call.numbers(gradient=gradient), "scratch": scratch}
    attributes: dict[str, Any] = {name: np.int64(n) for name, n in numbers.items()}
    return tuple(run(*operands, shape=np.asarray(call.shape, np.int64), **attributes)[:-1])
