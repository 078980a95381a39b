"""A function of tensors through tracing, a program and the device, compared with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.opinfo.call import Call, run_eager
from tests.opinfo.compare import differences
from tests.opinfo.compiled import Compiled
from tests.opinfo.samples import Sample, Slot


def check_function(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor] | None = None,
) -> None:
    """Compare results and gradients, at torch's tolerances for their dtypes.

    Args:
        function: From tensors to a tensor, or to several in a tuple.
        tensors: Its arguments; those that require a gradient get one.
        exact: Its results in float64, where torch's own kernels round on the way.
    """
    slots = tuple(Slot(i) for i in range(len(tensors)))
    sample = Sample(
        tensors=tuple(tensors),
        leaves=slots,
        spec=pytree.tree_flatten((slots, {}), is_leaf=lambda x: isinstance(x, Slot))[1],
        process=None,
    )
    call = Call(function, sample)
    want = run_eager(call, sample.tensors, seed=0)
    got = Compiled(call, sample.tensors, through_file=True).run(sample.tensors, want)
    assert not (text := differences(got.outputs, want.outputs, None, "output", exact)), text
    assert not (text := differences(got.gradients, want.gradients, None, "gradient")), text
