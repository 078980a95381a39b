"""Ops on tensors without elements, whose results and gradients torch has rules of its own for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulator.ops.checks import check

Z = torch.zeros
_NO_ROW = Z(0, dtype=torch.long)
_CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "median": ("aten.median.default", (Z(0, 3),)),
    "median of whole numbers": ("aten.median.default", (Z(0, dtype=torch.int32),)),
    "nanmedian": ("aten.nanmedian.default", (Z(0),)),
    "group norm": ("aten.group_norm.default", (Z(0, 4, 3), 2, torch.ones(4), Z(4))),
    "group norm of no places": ("aten.group_norm.default", (Z(2, 4, 0), 2, torch.ones(4), Z(4))),
    "attention to no values": (
        "aten.scaled_dot_product_attention.default",
        (torch.ones(2, 3, 4), torch.ones(2, 5, 4), Z(2, 0, 4)),
    ),
    "attention of no features": (
        "aten.scaled_dot_product_attention.default",
        (Z(2, 3, 0), Z(2, 5, 0), Z(2, 5, 0)),
    ),
    "nll": ("aten.nll_loss_nd.default", (Z(0, 4), _NO_ROW)),
    "edges of what is cropped": ("aten.replication_pad1d.default", (torch.ones(1, 2, 1), (-4, 5))),
    "masked index": (
        "aten._unsafe_masked_index.default",
        (Z(0, 3), Z(2, 1, dtype=torch.bool), [Z(2, 1).long(), Z(1, 3).long()], 7.0),
    ),
    "features of no channels": (
        "aten.convolution.default",
        (Z(2, 0, 5), Z(3, 0, 3), Z(3), (1,), (0,), (1,), False, (0,), 1),
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_of_nothing(name: str) -> None:
    op, args = _CASES[name]
    check(op, *args)
