"""Limits of the machine: best rates, and from them a lower bound for each case.

The bound is the larger of two times: the model's floating point operations at the best rate of
a matrix product in its type, and the bytes that a step must move at the best copy rate. Both are
true lower bounds: at least every weight and every state of the optimizer is read and written.
"""

from __future__ import annotations

import math

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.case import Case, Sgd
from bench.measurement import Results
from bench.models import SMALL, TIMED
from bench.suites import Settings

LIMIT = "limit"
"""Stands among the contenders for the machine."""

SHAPES = (
    (1024, 1024, 1024),
    (256, 1024, 1024),
    (1024, 384, 1536),
    (1024, 384, 8192),
    (2048, 2048, 2048),
)
DTYPES: tuple[str, ...] = ("float32", "bfloat16")
COPIED = 64 << 20


def work(case: Case) -> tuple[float, float]:
    """Operations and least bytes of a training step.

    Args:
        case: The case; nothing is computed, shapes are enough.

    Returns:
        Floating point operations of matrix products and convolutions, forward and backward;
        bytes.

    Example:
        >>> from bench.models import logreg
        >>> flops, moved = work(logreg(batch=64))
        >>> flops == 2 * 2 * 64 * 784 * 10, moved == 4 * (4 * 784 * 10 + 64 * 784) + 8 * 64
        (True, True)
    """
    with torch.device("meta"):
        model = case.build()
        batch = [torch.empty_like(torch.from_numpy(a), device="meta") for a in case.batches()[0]]
        with FlopCounterMode(display=False) as counter:
            model(*batch)[0].backward()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    states = 1 if isinstance(case.optimizer, Sgd) else 2
    given = sum(t.numel() * t.element_size() for t in batch)
    return float(counter.get_total_flops()), float(2 * (1 + states) * weights + given)


def dtype_of(case: Case) -> str:
    """The type that a case's matrix products are in."""
    with torch.device("meta"):
        used = {p.dtype for p in case.build().parameters()}
    return "bfloat16" if torch.bfloat16 in used else "float32"


def limit(settings: Settings, results: Results) -> None:
    """Measure the rates and add the bounds.

    Adds ``gemm`` rates by type and shape, the ``copy`` rate, and for every case ``flops``,
    ``bytes`` and the bound for a ``step``.
    """
    settings.tell("limit")
    each = max(0.05, settings.round_seconds)
    best = dict.fromkeys(DTYPES, 0.0)
    copy = 0.0
    for name in ("eager", "jax"):
        with settings.worker("logreg-1", name) as worker:
            for dtype in DTYPES:
                for shape in SHAPES:
                    rate = worker.ask("gemm", shape=shape, dtype=dtype, seconds=each)["rate"]
                    label = f"{dtype} {'x'.join(map(str, shape))}"
                    results.add("limit", "", name, f"gemm {label}", "flop/s", [rate])
                    best[dtype] = max(best[dtype], rate)
            if name == "eager":
                copy = worker.ask("copy", nbytes=COPIED, seconds=4 * each)["rate"]
                results.add("limit", "", name, "copy", "B/s", [copy])
    for name in settings.cases:
        case = (SMALL if settings.small else TIMED)[name]
        flops, moved = work(case)
        bound = max(flops / best[dtype_of(case)], moved / copy)
        results.add("limit", name, LIMIT, "flops", "flop", [flops])
        results.add("limit", name, LIMIT, "bytes", "B", [moved])
        if math.isfinite(bound):
            results.add("limit", name, LIMIT, "step", "s", [bound])
