"""Limits of the machine: best rates, and from them a lower bound for each case.

The bound is the larger of two times: the model's floating point operations at the best rate of
a matrix product in its type, and the bytes that a step must move at the best copy rate. Both are
true lower bounds: at least every weight and every state of the optimizer is read and written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from bench.case import Case, Sgd
from bench.measurement import Results
from bench.models import SMALL, TIMED
from bench.process import Contestant
from bench.suites import Settings
from emulator.costs.roofline import Cost, Machine, bound
from emulator.costs.steps import schedule_cost
from emulator.costs.timing import COPIED, SHAPES, jax_product_rate, shortest
from pef_schema.program import DType
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from samba.tracer.capture import trace_model
from samba.tracer.inputs import collect_inputs

LIMIT = "limit"
"""Stands among the contenders for the machine."""

DTYPES: tuple[str, ...] = ("float32", "bfloat16")


def work(case: Case) -> Cost:
    """Operations and least bytes of a training step.

    Args:
        case: The case; nothing is computed, shapes are enough.

    Returns:
        Floating point operations, those of matrix products and convolutions by type, forward and
        backward; bytes.

    Example:
        >>> from bench.models import logreg
        >>> found = work(logreg(batch=64))
        >>> found.product_flops == 2 * 2 * 64 * 784 * 10
        True
        >>> found.nbytes == 4 * (4 * 784 * 10 + 64 * 784) + 8 * 64
        True
    """
    with torch.device("meta"):
        model = case.build()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    states = 1 if isinstance(case.optimizer, Sgd) else 2
    batch = [torch.from_numpy(a) for a in case.batches()[0]]
    batch_bytes = sum(t.numel() * t.element_size() for t in batch)
    # The tracer wants tensors of the host; memory that nobody writes takes none.
    traced = trace_model(model, collect_inputs(model.to_empty(device="cpu"), batch))
    cost = schedule_cost(build_program(traced, [], CompileOptions(name=case.family)), 0)
    kept = (1 + states) * weights
    return replace(cost, bytes_read=kept + batch_bytes, bytes_written=kept)


def limit(settings: Settings, results: Results) -> None:
    """Measure the rates and add the bounds.

    Adds ``gemm`` rates by type and shape, the ``copy`` rate, and for every case ``flops``,
    ``bytes`` and the bound for a ``step``.
    """
    settings.tell("limit")
    each = max(0.05, settings.round_seconds)
    best = dict.fromkeys(DTYPES, 0.0)
    copied = 0.0
    for name in ("eager", "jax"):
        with settings.worker("logreg-1", name) as worker:
            for dtype in DTYPES:
                for shape in SHAPES:
                    rate = worker.ask(gemm, shape=shape, dtype=dtype, seconds=each)["rate"]
                    label = f"{dtype} {'x'.join(map(str, shape))}"
                    results.add("limit", "", name, f"gemm {label}", "flop/s", [rate])
                    best[dtype] = max(best[dtype], rate)
            if name == "eager":
                copied = worker.ask(copy, nbytes=COPIED, seconds=4 * each)["rate"]
                results.add("limit", "", name, "copy", "B/s", [copied])
    rates = tuple((DType[name.upper()], rate) for name, rate in best.items())
    machine = Machine(name=LIMIT, rates=rates, bandwidth=copied)
    for name in settings.cases:
        case = (SMALL if settings.small else TIMED)[name]
        cost = work(case)
        results.add("limit", name, LIMIT, "flops", "flop", [float(cost.product_flops)])
        results.add("limit", name, LIMIT, "bytes", "B", [float(cost.nbytes)])
        results.add("limit", name, LIMIT, "step", "s", [bound(cost, machine).seconds])


def gemm(
    contestant: Contestant, shape: Sequence[int], dtype: str, seconds: float
) -> dict[str, Any]:
    """Time ``(m, k) @ (k, n)``.

    Args:
        contestant: ``eager`` for torch, ``jax`` for XLA.
        shape: ``m, k, n``.
        dtype: ``float32`` or ``bfloat16``.
        seconds: How long to try.

    Returns:
        ``rate`` in floating point operations a second.
    """
    if contestant.contender == "jax":
        return {"rate": jax_product_rate(shape, dtype, seconds)}
    m, k, n = shape
    a = torch.randn(m, k, dtype=getattr(torch, dtype))
    b = torch.randn(k, n, dtype=getattr(torch, dtype))
    out = torch.empty(m, n, dtype=getattr(torch, dtype))
    took = shortest(lambda: torch.matmul(a, b, out=out), seconds)
    return {"rate": 2.0 * m * k * n / took}


def copy(contestant: Contestant, nbytes: int, seconds: float) -> dict[str, Any]:
    """Time copies from mapped memory to mapped memory, with torch's threads.

    Args:
        contestant: ``eager``.
        nbytes: Size of what is copied.
        seconds: How long to try.

    Returns:
        ``rate`` in bytes a second, read and written ones counted.
    """
    source = torch.ones(nbytes // 4)
    target = torch.zeros(nbytes // 4)
    return {"rate": 2.0 * nbytes / shortest(lambda: target.copy_(source), seconds)}
