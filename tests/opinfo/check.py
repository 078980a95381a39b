"""One entry and dtype: every chosen sample on the device and in torch, compared."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pef_schema.errors import SambaError
from samba.comparison.sides import widest
from samba.tracer.errors import (
    DataDependentBranch,
    StridedViewError,
    TraceError,
    UnsupportedOps,
)
from samba.tracer.traced import carries_gradient
from tests.opinfo.call import Call, Eager, run_eager
from tests.opinfo.catalog import Entry
from tests.opinfo.compare import differences
from tests.opinfo.compiled import Compiled, Got
from tests.opinfo.exceptions import TIES, function_of, in_scope, is_uninitialised, tolerances
from tests.opinfo.record import Outcome, Record, worst
from tests.opinfo.samples import Sample, cap, choose, list_samples, seed_for

UNSUPPORTED = (UnsupportedOps, DataDependentBranch, StridedViewError)
"""Errors at compile time that say what the device cannot do."""

GRADIENTS = ("float32", "complex64", "complex128")
"""Dtypes whose gradients are compared."""

RANDOM_TRIES = 8
"""Seeds under which a result must differ for an operator to count as random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one sample went."""

    forward: Outcome
    gradient: Outcome
    reason: str = ""
    error: str = ""


def check_entry(entry: Entry, dtype: str, *, count: int | None = None) -> Record:
    """Try an entry with samples of one dtype.

    Args:
        entry: The entry.
        dtype: Name of the dtype.
        count: Number of argument structures; the dtype's cap if None.

    Returns:
        The outcome; nothing is raised for a failing operator.
    """
    started = time.perf_counter()
    gradients = dtype in GRADIENTS and entry.info.supports_autograd
    try:
        listed = list_samples(entry, dtype, gradients=gradients)
        samples = [sample for sample in listed if in_scope(entry.name, sample)]
    except Exception as error:
        return Record(
            entry=entry.name,
            dtype=dtype,
            forward=Outcome.NONE,
            gradient=Outcome.NONE,
            reason=f"torch's samples: {_first_line(error)}",
            error=type(error).__name__,
        )
    groups = choose(samples, count or cap(dtype))
    verdicts: list[Verdict] = []
    for group in groups:
        verdicts += _check_group(entry, dtype, group, first=not verdicts)
    forward = worst(v.forward for v in verdicts)
    gradient = worst(v.gradient for v in verdicts)
    reason = next(
        (v for v in verdicts if v.reason and forward in (v.forward, Outcome.PASSED, Outcome.NONE)),
        Verdict(forward=forward, gradient=gradient),
    )
    return Record(
        entry=entry.name,
        dtype=dtype,
        forward=forward,
        gradient=gradient,
        reason=reason.reason,
        error=reason.error,
        samples=sum(v.forward is not Outcome.NONE for v in verdicts),
        structures=len(groups),
        seconds=round(time.perf_counter() - started, 2),
    )


def _check_group(
    entry: Entry, dtype: str, group: Sequence[Sample], *, first: bool
) -> list[Verdict]:
    """Samples of one structure: compile once, run each."""
    compiled: Compiled | None = None
    verdicts: list[Verdict] = []
    for position, sample in enumerate(group):
        seed = seed_for(entry.name, dtype, position)
        found = _eager(entry, sample, seed)
        if found is None:
            continue
        module, reference, eager = found
        has_gradient = Outcome.PASSED if any(eager.wanted) else Outcome.NONE
        try:
            if compiled is None:
                compiled = Compiled(module, sample.tensors, through_file=first)
            got = compiled.run(sample.tensors, eager)
        except Exception as error:
            out = Outcome.UNSUPPORTED if isinstance(error, UNSUPPORTED) else Outcome.FAILED
            gradient = out if any(eager.wanted) else Outcome.NONE
            said, kind = _reason(error), type(error).__name__
            return [Verdict(forward=out, gradient=gradient, reason=said, error=kind)]
        if is_random(entry, reference, sample.tensors, eager):
            text = forms(got, eager)
            outcome = Outcome.FAILED if text else Outcome.RANDOM
            verdicts.append(Verdict(forward=outcome, gradient=Outcome.NONE, reason=text))
            continue
        text, gradient_text = judge(entry, reference, sample.tensors, eager, got, seed)
        verdicts.append(
            Verdict(
                forward=Outcome.FAILED if text else Outcome.PASSED,
                gradient=Outcome.FAILED if gradient_text else has_gradient,
                reason=text or gradient_text,
            )
        )
    return verdicts


def judge(
    entry: Entry,
    module: Call,
    tensors: Sequence[torch.Tensor],
    eager: Eager,
    got: Got,
    seed: int,
) -> tuple[str, str]:
    """What is wrong with results and with gradients.

    Where eager torch's own rounding is at fault, the same call in float64 decides.

    Returns:
        Two texts; empty if all is right.
    """
    tol, gradient_tol = tolerances(entry, tensors)
    gradients = _filled(got.gradients, eager.gradients) if any(eager.wanted) else None

    def texts(exact: Eager | None) -> tuple[str, str]:
        outputs, wide = (None, None) if exact is None else (exact.outputs, exact.gradients)
        text = differences(got.outputs, eager.outputs, tol, "output", outputs)
        if gradients is None:
            return text, ""
        return text, differences(gradients, eager.gradients, gradient_tol, "gradient", wide)

    found = texts(None)
    return texts(_exact(module, tensors, eager, seed)) if any(found) else found


def forms(got: Got, eager: Eager) -> str:
    """What is wrong with the dtypes and shapes of results whose values are random."""
    a = [(tuple(t.shape), t.dtype) for t in got.outputs]
    b = [(tuple(t.shape), t.dtype) for t in eager.outputs]
    return "" if a == b else f"results {a} instead of {b}"


def _eager(entry: Entry, sample: Sample, seed: int) -> tuple[Call, Call, Eager] | None:
    """A sample's call, the call to judge it by and its results in eager torch.

    None where torch refuses the sample, or gives no tensor.
    """
    torch.manual_seed(seed)
    try:
        module = Call(function_of(entry, sample), sample)
        same = TIES.get(entry.name)
        reference = module if same is None else Call(same, sample)
        eager = run_eager(reference, sample.tensors, seed=seed)
        return (module, reference, eager) if eager.outputs else None
    except Exception:
        return None


def _exact(module: Call, tensors: Sequence[torch.Tensor], eager: Eager, seed: int) -> Eager | None:
    """The same call in float64; None if torch has none or if it gives other dtypes or shapes."""
    wide = [
        widest(t).requires_grad_(t.requires_grad) if carries_gradient(t) else t for t in tensors
    ]
    torch.manual_seed(seed)
    try:
        found = run_eager(module, wide, seed=seed, cotangents=eager.cotangents)
    except Exception:
        return None
    same = len(found.outputs) == len(eager.outputs) and all(
        a.shape == b.shape and carries_gradient(a) == carries_gradient(b)
        for a, b in zip(found.outputs, eager.outputs, strict=True)
    )
    return found if same else None


def is_random(entry: Entry, module: Call, tensors: Sequence[torch.Tensor], eager: Eager) -> bool:
    """Whether eager torch gives other values under another seed."""
    if is_uninitialised(entry):
        return True
    # A mask of a few channels is often the same twice.
    for seed in range(RANDOM_TRIES):
        torch.manual_seed(seed)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            again = module(*[t.detach().clone() for t in tensors])
        if differences(again, eager.outputs, None, "output"):
            return True
    return False


def _filled(
    got: Sequence[torch.Tensor | None], want: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """A gradient that the program does not have is zero."""
    return [
        torch.zeros_like(b) if a is None and b is not None else a
        for a, b in zip(got, want, strict=True)
    ]


def _reason(error: Exception) -> str:
    if isinstance(error, UnsupportedOps):
        return ", ".join(f"{op.name}{op.reason and f': {op.reason}'}" for op in error.ops)
    if isinstance(error, TraceError):
        return error.reason.splitlines()[0][:300]
    if isinstance(error, SambaError):
        return " ".join(str(error).split())[:300]
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
