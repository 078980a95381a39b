"""What torch's own counter says, for comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.case import Case


def _grouped_backward(
    grad: torch.Size,
    x: torch.Size,
    weight: torch.Size,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    mask: Sequence[bool],
    *,
    out_shape: Any,
    **_: Any,
) -> int:
    """A convolution's gradient: two products of the forward's size.

    torch's own formula counts the weight's gradient of a convolution of several groups as if each
    channel met all others, so that of a depthwise one comes out ``channels`` times too large.
    """
    del out_shape
    places = (x if transposed else grad)[2:]
    return sum(mask[:2]) * 2 * grad[0] * math.prod(places) * math.prod(weight)


def counter() -> FlopCounterMode:
    """torch's counter, right about convolutions of several groups."""
    return FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _grouped_backward}
    )


def counted(run: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    """What torch counts for a function of tensors, forward and backward.

    Args:
        run: The function; its first result is summed for the backward pass.
        tensors: On the meta device; those that require a gradient get one.
    """
    with counter() as forward:
        result = run(*tensors)
    result = result[0] if isinstance(result, tuple) else result
    if not result.requires_grad:
        return int(forward.get_total_flops()), 0
    with counter() as backward:
        result.sum().backward()
    return int(forward.get_total_flops()), int(backward.get_total_flops())


_DEAD = {"wavenet": 2 * 2 * 12 * 4 * 4}
"""What torch computes forward and nothing reads: the bridge of the small WaveNet's last layer, a
convolution of 4 to 4 channels at 12 places of 2 items. A graph does not have it."""


def counted_step(case: Case) -> int:
    """What torch counts for a small case, forward and backward; nothing is computed."""
    with torch.device("meta"):
        model = case.build()
        batch = [torch.empty_like(torch.from_numpy(a), device="meta") for a in case.batches()[0]]
        with counter() as found:
            model(*batch)[0].backward()
    return int(found.get_total_flops()) - _DEAD.get(case.name, 0)
