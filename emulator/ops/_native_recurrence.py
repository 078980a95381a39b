"""Recurrent layers by the native kernels, with their gradients."""

from __future__ import annotations

from dataclasses import replace

import jax

from emulator.kernels.target import native_kernels
from emulator.native.library import shares_of
from emulator.native.recurrence import (
    Cell,
    RecurrenceCall,
    call_recurrence,
    call_recurrence_gradient,
    has_recurrence,
)
from emulator.ops._gradient import with_gradient
from emulator.ops._recurrence import State, states_before, weight_gradients
from emulator.processor import processor

_NARROW = frozenset({"avx512_bf16", "amx_bf16"})
"""Extensions with which bfloat16 products are ahead of XLA's."""

_LEAST = 200_000
"""From so many operations of a layer's recurrent products on, the native kernels are ahead. Simple
float32 layers of few rows are an exception: some take 1.15 of XLA's time."""

_LEAST_ROWS = 2
"""Rows of the batch for each of the threads among which XLA would divide the product of a step."""


def native_call(
    cell: Cell, reverse: bool, gx: jax.Array, weight: jax.Array, state: State
) -> RecurrenceCall | None:
    """The call of the native kernels that runs a layer in one direction.

    Args:
        cell: What a step does.
        reverse: Whether the last step comes first.
        gx: Input gates ``(T, B, G)``, wide; only shapes and dtypes are looked at.
        weight: Recurrent weight ``(G, H)``.
        state: Initial state; all have the width H.

    Returns:
        None where the layer is left to XLA: where there are no native kernels, for types that are
        not computed in float32, for float16, for little work, and for a batch of few rows whose
        product of a step XLA divides among threads by columns.
    """
    if native_kernels() is None or gx.dtype != "float32":
        return None
    narrow = weight.dtype == "bfloat16"
    if narrow and not _NARROW & set(processor().isa):
        return None
    if not narrow and weight.dtype != "float32":
        return None
    steps, batch, _ = gx.shape
    operations = 2 * batch * weight.size
    if steps * operations < _LEAST or batch < _LEAST_ROWS * shares_of(operations):
        return None
    call = RecurrenceCall(
        cell=cell,
        steps=steps,
        batch=batch,
        width=state[0].shape[-1],
        reverse=reverse,
        narrow=narrow,
        threads=shares_of(steps * operations),
    )
    return call if has_recurrence(call) else None


def _outcome(call: RecurrenceCall, results: tuple[jax.Array, ...]) -> tuple[jax.Array, State]:
    """Outputs over time, and the last state."""
    last = 0 if call.reverse else -1
    if call.cell.gates == 1:
        return results[0], (results[0][last],)
    h = results[1]
    if call.cell is Cell.GRU:
        return h, (h[last],)
    c = results[2]
    return h, (h[last], c[last] if call.keeps else c[0])


def _forward(
    call: RecurrenceCall, gx: jax.Array, weight: jax.Array, bias: jax.Array, state: State
) -> tuple[tuple[jax.Array, State], tuple]:
    results = call_recurrence(call, gx, weight, bias, state)
    return _outcome(call, results), (results, state, weight)


def _backward(
    call: RecurrenceCall, saved: tuple, grads: tuple[jax.Array, State]
) -> tuple[jax.Array, jax.Array, jax.Array, State]:
    results, first, weight = saved
    dys, dlast = grads
    h = results[0] if call.cell.gates == 1 else results[1]
    match call.cell:
        case Cell.LSTM:
            kept = (results[2], first[1])
        case Cell.GRU:
            kept = (results[2], h, first[0])
        case _:
            kept = ()
    dgates, *rest = call_recurrence_gradient(call, results[0], weight, kept, dys, dlast)
    recurrent = rest.pop(0) if call.cell is Cell.GRU else dgates
    (before,) = states_before((h,), first[:1], call.reverse)
    return dgates, *weight_gradients(recurrent, before, weight), tuple(rest)


@with_gradient(_backward, forward=_forward, static=(0,))
def native_scan(
    call: RecurrenceCall, gx: jax.Array, weight: jax.Array, bias: jax.Array, state: State
) -> tuple[jax.Array, State]:
    """Run a layer over time in one direction.

    Args:
        call: What :func:`native_call` gives.
        gx: Input gates ``(T, B, G)``, wide.
        weight: Recurrent weight ``(G, H)``.
        bias: Recurrent bias ``(G,)``, wide.
        state: Initial state, wide ``(B, H)`` arrays.

    Returns:
        Outputs ``(T, B, H)`` and the final state.
    """
    last_only = replace(call, keeps=call.cell.gates == 1)  # a simple cell keeps nothing else
    return _outcome(last_only, call_recurrence(last_only, gx, weight, bias, state))
