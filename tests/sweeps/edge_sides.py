"""One call of an op by torch and by the device, with gradients, and where the two differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from emulator.dtypes import FROM_NUMPY
from emulator.ops.registry import load_ops
from emulator.plans.xla_options import xla_options
from emulator.trace_settings import full_products
from samba.comparison.sides import DEFAULT_TOL, OWN_ERRORS, Tol
from tests.emulator.ops.checks import TORCH_TO_DTYPE, to_jax, to_numpy64, torch_op
from tests.sweeps.edge_calls import Call, Slot

COTANGENTS = (1.0, -0.5, 0.0)

EXACT = Tol(rtol=0.0, atol=0.0)


def tensors_of(call: Call, dtype: torch.dtype) -> list[torch.Tensor]:
    """The tensors of a call, in the order of its slots: every combination of edges."""
    slots = call.slots
    count = sum(slot.holds_edges for slot in slots)
    values = few(dtype) if dtype.is_floating_point and (count > 2 or call.slow) else edges(dtype)
    combined = iter(together(values, count))
    size = len(values) ** count
    by_turns = torch.arange(size) % 2 == 0
    found = []
    for slot in slots:
        if slot is Slot.UNIT:
            t = next(combined)
            found.append(torch.where((t >= 0) & (t <= 1), t, 0.75))
        elif slot.holds_edges:
            found.append(next(combined))
        elif slot is Slot.MASK:
            found.append(by_turns)
        elif slot in (Slot.SIGNS, Slot.LABELS):
            found.append(torch.where(by_turns, 1, -1).to(dtype))
        else:
            shape = () if slot is Slot.NUMBER else (size,)
            found.append(torch.full(shape, 0.5, dtype=dtype))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What torch gives.

    Args:
        results: Its results.
        live: Which of them have a gradient.
        gradients: For each cotangent those of the tensors that are differentiated; none where
            torch has none.
    """

    results: list[torch.Tensor]
    live: list[int]
    gradients: list[list[torch.Tensor | None]]


def by_torch(call: Call, tensors: list[torch.Tensor], *, strided: bool = False) -> Given:
    """Run a call by torch.

    Args:
        call: The call.
        tensors: Its tensors.
        strided: Go by torch's loops for one number at a time, instead of those for several.
    """
    wanted = _differentiated(call, tensors)
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    seen = [torch.stack([t, t], -1)[..., 0] if strided and t.dim() else t for t in leaves]
    given = iter(seen)
    args = [next(given) if isinstance(a, Slot) else a for a in call.args]
    out = torch_op(call.name)(*args, **call.kwargs)
    outs = list(out) if isinstance(out, tuple) else [out]
    live = [i for i, o in enumerate(outs) if o.requires_grad]
    gradients = []
    for c in COTANGENTS if live else ():
        cotangents = [torch.full_like(outs[i], c) for i in live]
        try:
            found = torch.autograd.grad(
                [outs[i] for i in live],
                [leaves[i] for i in wanted],
                cotangents,
                retain_graph=True,
                allow_unused=True,
            )
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            break  # refused when a model is compiled
        gradients.append([None if g is None else g.clone() for g in found])
    return Given(results=[o.detach() for o in outs], live=live, gradients=gradients)


def _differentiated(call: Call, tensors: list[torch.Tensor]) -> list[int]:
    pairs = enumerate(zip(call.slots, tensors, strict=True))
    return [i for i, (slot, t) in pairs if t.is_floating_point() and not slot.frozen]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """A call, and what torch gives for it.

    Args:
        call: The call.
        tensors: Its tensors.
        sides: What torch gives, in each of its ways.
        exact: The same in float64.
    """

    call: Call
    tensors: list[torch.Tensor]
    sides: list[Given]
    exact: Given

    @property
    def graded(self) -> bool:
        """Whether both sides have gradients."""
        return load_ops()[self.call.name].differentiable and bool(self.sides[0].gradients)


def _sides_of(call: Call, dtype: torch.dtype) -> _Sides:
    tensors = tensors_of(call, dtype)
    sides = [by_torch(call, tensors, strided=strided) for strided in (False, True)]
    torch.set_flush_denormal(True)
    try:
        sides += [by_torch(call, tensors, strided=strided) for strided in (False, True)]
        sides.append(by_torch(call, [t * 1 if t.is_floating_point() else t for t in tensors]))
    finally:
        torch.set_flush_denormal(False)
    exact = by_torch(call, [t.double() if t.is_floating_point() else t for t in tensors])
    return _Sides(call=call, tensors=tensors, sides=sides, exact=exact)


def _by_device(asked: Sequence[_Sides]) -> list[tuple[Any, Any]]:
    """Run lowerings and the ``jax.vjp`` of results, in one program, as the device compiles."""
    with full_products():
        functions = [_lowered(one) for one in asked]
        given = [([to_jax(t) for t in one.tensors], _cotangents(one)) for one in asked]

        def together(given: list[Any]) -> list[tuple[Any, Any]]:
            return [f(*each) for f, each in zip(functions, given, strict=True)]

        options = xla_options(jax.devices("cpu")[0])
        return jax.jit(together, compiler_options=options)(given)


def _cotangents(asked: _Sides) -> list[list[Any]]:
    """For each cotangent one array for each result that has a gradient."""
    first = asked.sides[0]
    live = [first.results[i] for i in first.live] if asked.graded else []
    return [[to_jax(torch.full_like(t, c)) for t in live] for c in COTANGENTS]


def _lowered(asked: _Sides) -> Callable[[list[Any], list[list[Any]]], tuple[Any, Any]]:
    """What gives the results of a call and its gradients, none if it has none."""
    call, live = asked.call, asked.sides[0].live
    spec = load_ops()[call.name]
    diff = _differentiated(call, asked.tensors)

    def run(flat: list[Any]) -> tuple[Any, ...]:
        given = iter(flat)
        args = [next(given) if isinstance(a, Slot) else a for a in call.args]
        out = spec.lower(*args, **call.kwargs)
        return out if isinstance(out, tuple) else (out,)

    def both(flat: list[Any], cotangents: list[list[Any]]) -> tuple[Any, Any]:
        def of(some: list[Any]) -> tuple[list[Any], tuple[Any, ...]]:
            full = list(flat)
            for i, a in zip(diff, some, strict=True):
                full[i] = a
            result = run(full)
            return [result[i] for i in live], result

        _, vjp, result = jax.vjp(of, [flat[i] for i in diff], has_aux=True)
        return result, [vjp(c)[0] for c in cotangents]

    return both if asked.graded else lambda flat, _: (run(flat), [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Where a result differs.

    Args:
        what: Which result or gradient.
        at: The call's tensors there.
        device, torch: The two numbers.
        denormal: Whether a denormal number is among the arguments.
        exact: Whether the device has what torch has in float64, rounded once to the type, and none
            of torch's own numbers in the type itself is that.
    """

    what: str
    at: tuple[Any, ...]
    device: Any
    torch: Any
    denormal: bool
    exact: bool

    def __str__(self) -> str:
        return f"{self.what} at {self.at}: {self.device}, torch has {self.torch}"


def compare(calls: Sequence[tuple[Call, torch.dtype]]) -> Iterator[tuple[Call, list[Gap]]]:
    """Where the device is not torch.

    It may be any of torch's own: its loops for one number and for several differ at places, and
    its threads may flush denormals. Finite numbers may differ by the type's tolerance, and by some
    times as much as torch itself is off. A zero has torch's sign in results, any in gradients.

    Args:
        calls: Calls, which are compiled as one program, and for each the type of its floating
            tensors, or int64.

    Yields:
        Each call with the elements that differ.
    """
    asked = [_sides_of(call, dtype) for call, dtype in calls]
    with jax.enable_x64(True):
        for one, (results, gradients) in zip(asked, _by_device(asked), strict=True):
            yield one.call, [*_gaps_of(one, results, gradients)]


def _gaps_of(asked: _Sides, results: Any, gradients: Any) -> Iterator[Gap]:
    tensors, sides, exact = asked.tensors, asked.sides, asked.exact
    for i, got in enumerate(results):
        wants = [side.results[i] for side in sides]
        yield from _gaps(f"result {i}", got, wants, exact.results[i], tensors, signs=True)
    order = _differentiated(asked.call, tensors)
    for k, c in enumerate(COTANGENTS if sides[0].gradients else ()):
        for j, want in enumerate(sides[0].gradients[k]):
            if want is None:
                continue
            got = gradients[k][j] if asked.graded else to_jax(torch.zeros_like(want))
            yield from _gaps(
                f"gradient of tensor {order[j]} by {c}",
                got,
                [side.gradients[k][j] for side in sides],
                exact.gradients[k][j],
                tensors,
                signs=False,
            )


def _gaps(
    what: str,
    got: Any,
    wants: list[Any],
    exact: Any,
    tensors: list[torch.Tensor],
    *,
    signs: bool,
) -> Iterator[Gap]:
    dtype = TORCH_TO_DTYPE[wants[0].dtype]
    assert FROM_NUMPY[np.dtype(got.dtype)] == dtype, (what, got.dtype, wants[0].dtype)
    assert tuple(got.shape) == tuple(wants[0].shape), (what, got.shape, wants[0].shape)
    device, sides = to_numpy64(got), [to_numpy64(w) for w in wants]
    tol, wide = DEFAULT_TOL.get(dtype, EXACT), to_numpy64(exact)
    good = np.logical_or.reduce([_same(device, side, wide, tol, signs) for side in sides])
    once = to_numpy64(exact.to(wants[0].dtype))
    astray = ~np.logical_or.reduce([_same(side, once, once, tol, signs) for side in sides])
    exactly = _same(device, once, once, tol, signs) & astray
    for at in np.flatnonzero(~good):
        here = [t.reshape(-1)[at if t.dim() else 0] for t in tensors]
        yield Gap(
            what=what,
            at=tuple(t.item() for t in here),
            device=device.reshape(-1)[at],
            torch=sides[0].reshape(-1)[at],
            denormal=any(bool(denormal(t)) for t in here),
            exact=bool(exactly.reshape(-1)[at]),
        )


def _same(
    device: np.ndarray, side: np.ndarray, exact: np.ndarray, tol: Tol, signs: bool
) -> np.ndarray:
    if side.dtype.kind != "f":
        return device == side
    with np.errstate(all="ignore"):
        off = np.abs(side - exact)
        own = np.where(np.isfinite(off), OWN_ERRORS * off, 0)
        near = np.abs(device - side) <= tol.atol + tol.rtol * np.abs(side) + own
    finite = np.isfinite(device) & np.isfinite(side)
    same = (np.isnan(device) & np.isnan(side)) | (device == side) | (near & finite)
    if signs:
        same &= ~((device == 0) & (side == 0) & (np.signbit(device) != np.signbit(side)))
    return same


KINKS = (
    *(0.5, 1.0, 2.0, 3.0, 6.0, 20.0, 0.25, 1.5, 2.5, 10.0, 0.1, 1e-3, 100.0),
    *(0.03125, math.pi, math.pi / 2),
)
"""Where the ops bend, with the arguments that they are given, halves, and the ordinary."""

LARGE = (16.0, 40.0, 88.0, 89.0, 104.0, 700.0, 711.0, 750.0, 1e4, 65504.0, 2.0**24, 1e10, 1e20)
"""Where exponentials of the types end, and beyond."""

SMALL = (1e-5, 1e-10, 1e-20)

WHOLE = (0, 1, -1, 2, -3, 7, 31, 32, 63, 64, 2**63 - 1, 1 - 2**63)
"""Whole numbers; at the lowest of 64 bits torch's own ``lcm`` ends the process."""


def _of(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def edges(dtype: torch.dtype) -> torch.Tensor:
    """NaN, infinities, zeros, denormals, the largest numbers, each kink and what lies next to it.

    Args:
        dtype: A floating type, or int64.

    Returns:
        Numbers of that type, an even count.
    """
    if not dtype.is_floating_point:
        return torch.tensor(WHOLE, dtype=dtype)
    info = torch.finfo(dtype)
    sizes = [
        *(0.0, info.tiny / 4, info.tiny, 4 * info.tiny, info.max, info.max / 2, info.max**0.5),
        *KINKS,
        *(k * f for k in (0.5, 1.0, 3.0, 20.0) for f in (1 + info.eps, 1 - info.eps / 2)),
        *LARGE,
        *SMALL,
    ]
    numbers = [math.nan, math.nan, math.inf, -math.inf]
    return _of([*numbers, *(s * x for x in sizes for s in (1, -1))], dtype)


def few(dtype: torch.dtype) -> torch.Tensor:
    """Fewer of them, for every combination of three."""
    info = torch.finfo(dtype)
    numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, info.max, -info.max, info.tiny / 4]
    return _of([*numbers, info.tiny, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 100.0], dtype)


def together(values: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Every combination of ``count`` values, one tensor for each place."""
    return [t.reshape(-1).clone() for t in torch.meshgrid(*[values] * count, indexing="ij")]


def denormal(x: torch.Tensor) -> torch.Tensor:
    """Where a number is nearer to zero than the least normal one of its type."""
    if not x.is_floating_point():
        return torch.zeros_like(x, dtype=torch.bool)
    return (x != 0) & (x.double().abs() < torch.finfo(x.dtype).tiny)
