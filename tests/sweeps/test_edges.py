"""Every pointwise op, activation and loss at its edges, value and gradient, against torch."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import pytest
import torch

from emulator.op_facts.table import facts_of
from emulator.ops.registry import _OPS, load_ops
from tests.emulator.ops.checks import torch_op
from tests.sweeps.edge_calls import Call, Slot, calls_of, swept
from tests.sweeps.edge_sides import Gap, by_torch, compare, tensors_of
from tests.sweeps.tally import Outcome, Tally

UNFUSED = ("addcmul", "lerp")
"""A product that overflows by itself is infinite, or part of one operation that rounds once: which
of the two happens depends on the processor in torch, and here on what else is computed."""

UNWRITTEN = ("polynomial",)
"""At NaN, torch's loops return a number that they have never written."""

DIGITS = ("log_ndtr", "airy_ai")
"""Far below zero, all digits of torch's own are lost, and so not a number that can be compared."""


EQUAL_ZEROS = ("fmax", "fmin", "max.other", "min.other", "maximum", "minimum")
"""Of 0.0 and -0.0, which are equal, torch takes the one or the other by type and by place."""


def reason(call: Call, dtype: torch.dtype, gap: Gap) -> str:
    """Which row of ``docs/deviations.md`` a difference belongs to; empty for none."""
    if gap.denormal:
        return "denormal"
    if any(word in call.name for word in UNFUSED) and gap.what.startswith("result"):
        return "" if abs(gap.torch) < torch.finfo(dtype).max / 8 else "fused"
    if any(word in call.name for word in UNWRITTEN) and any(x != x for x in gap.at):
        return "unwritten"
    if gap.exact and dtype.itemsize == 2:
        return "rounded between"  # by torch: the device rounds once, and so is right
    if any(word in call.name for word in EQUAL_ZEROS) and gap.device == gap.torch == 0:
        return "zero"
    if any(word in call.name for word in DIGITS) and gap.at[0] < -100:
        return "digits"
    return ""


TOGETHER = 16
"""Calls of one program: to make one takes longer than what a call adds."""


def sweep(calls: list[Call], dtype: torch.dtype) -> Tally:
    """Compare calls; a case for each call, and one for each result of it that differs."""
    tally = Tally(f"edges in {dtype}")
    kinds = [(call, torch.int64 if call.integers else dtype) for call in calls]
    known = [(call, kind) for call, kind in kinds if has_kernel(call, kind)]
    for start in range(0, len(known), TOGETHER):
        some = known[start : start + TOGETHER]
        for (_, kind), (call, gaps) in zip(some, compare(some), strict=True):
            named: collections.Counter[str] = collections.Counter()
            wrong: dict[str, Gap] = {}
            for gap in gaps:
                if why := reason(call, kind, gap):
                    named[why] += 1
                else:
                    wrong.setdefault(gap.what, gap)
            for gap in wrong.values():
                tally.add(f"{call} in {kind}", Outcome.SILENT, str(gap))
            for why, count in named.items():
                tally.add(f"{call} in {kind}", Outcome.NAMED, f"{count} {why}")
            if not wrong and not named:
                tally.add(str(call), Outcome.EQUAL)
    return tally


def has_kernel(call: Call, dtype: torch.dtype) -> bool:
    """Whether torch has one of this type."""
    try:
        by_torch(call, tensors_of(call, dtype))
    except (RuntimeError, NotImplementedError) as error:
        assert "not implemented for" in str(error), (call, error)
        return False
    return True


CALLS = {spec.name: list(calls_of(spec)) for spec in swept()}

_NAMES = ("hardswish", "hardsigmoid", "relu6", "sinh", "exp2", "huber_loss", "_prelu_kernel")
SLICE = tuple(f"aten.{name}.default" for name in _NAMES)


def test_every_pointwise_op_is_called() -> None:
    assert len(CALLS) > 200
    assert not [name for name, calls in CALLS.items() if not calls]


def test_some_edges() -> None:
    sweep([call for name in SLICE for call in CALLS[name]], torch.float32).close(at_least=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "equal"),
    [("float32", 500), ("float64", 500), ("bfloat16", 418), ("float16", 368)],
)
def test_all_edges(dtype: str, equal: int) -> None:
    calls = [call for calls in CALLS.values() for call in calls]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its ops
        sweep(calls, getattr(torch, dtype)).close(at_least=equal)


NARROW = ("elu", "celu", "selu", "logit", "smooth_l1_loss", "pow.Tensor_Scalar(edges, 0.5)")


def test_some_edges_of_16_bits() -> None:
    calls = [call for calls in CALLS.values() for call in calls]
    some = [call for call in calls if str(call).startswith(NARROW)]
    sweep(some, torch.float16).close(at_least=len(some) - 2)  # a loss rounds between, twice


def test_edges_of_an_exponent_of_float64() -> None:
    tally = sweep(CALLS["aten.frexp.Tensor"], torch.float64)
    tally.close(at_least=0)  # subnormal numbers may count as zeros, which has a name
    assert tally.counts.total() == 1


def test_a_wrong_number_is_not_one_that_torch_rounds_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = load_ops()["aten.square.default"]
    call = CALLS[spec.name][0]

    def reasons() -> set[str]:
        """Of the gradient of 65504 by -0.5, half of infinity in torch."""
        ((_, found),) = compare([(call, torch.float16)])
        gaps = [gap for gap in found if gap.at == (65504.0,)]
        return {reason(call, torch.float16, gap) for gap in gaps if "by -0.5" in gap.what}

    assert reasons() == {"rounded between"}

    def flatter(x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        less = 0.02 * (wide - jax.lax.stop_gradient(wide))
        return (wide * wide - less * wide).astype(x.dtype)

    monkeypatch.setitem(_OPS, spec.name, dataclasses.replace(spec, lower=flatter))
    assert reasons() == {""}


def test_a_wrong_edge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_ops()["aten.relu6.default"]

    def shared(x: jax.Array) -> jax.Array:
        return jnp.minimum(jnp.maximum(x, 0), 6)

    monkeypatch.setitem(_OPS, spec.name, dataclasses.replace(spec, lower=shared))
    tally = sweep(CALLS[spec.name], torch.float32)
    said = "gradient of tensor 0 by 1.0 at (0.0,): 0.5, torch has 0.0"
    assert any(said in text for text in tally.silent), tally.silent


def refused(call: Call) -> list[int]:
    """Positions of arguments whose gradient torch refuses."""
    found = []
    tensors = tensors_of(call, torch.float32)
    slots = [k for k, a in enumerate(call.args) if isinstance(a, Slot)]
    for place, tensor in zip(slots, tensors, strict=True):
        if not tensor.is_floating_point():
            continue
        given = iter(t.clone().requires_grad_(t is tensor) for t in tensors)
        args = [next(given) if isinstance(a, Slot) else a for a in call.args]
        try:
            out = torch_op(call.name)(*args, **call.kwargs)
            for result in out if isinstance(out, tuple) else (out,):
                if result.requires_grad:
                    result.sum().backward()
                    break
        except RuntimeError as error:
            assert "not implemented" in str(error) or "not differentiable" in str(error), error
            found.append(place)
    return found


def test_what_torch_does_not_differentiate_is_listed() -> None:
    for name, calls in CALLS.items():
        if not calls[0].integers:
            places = {place for call in calls for place in refused(call)}
            assert places <= set(facts_of(name).no_derivative), name
