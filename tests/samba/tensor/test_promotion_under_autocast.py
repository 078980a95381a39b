"""Under autocast torch takes operands of several types, and nothing is said or promoted then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from samba.tensor.promotion import mixed_floats, promoted

Arguments = tuple[Any, ...]


def one(*shape: int) -> Tensor:
    return torch.ones(shape)


def image(axes: int) -> Arguments:
    return one(1, 2, *(4,) * axes), one(2, 2, *(3,) * axes)


RECURRENT: Arguments = (
    one(2, 1, 3),
    one(1, 1, 3),
    [one(9, 3), one(9, 3), one(9), one(9)],
    *(True, 1, 0.0, False, False, False),
)

CALLS: list[tuple[Callable[..., Any], Arguments]] = [
    (F.linear, (one(2, 4), one(3, 4))),
    (F.bilinear, (one(2, 4), one(2, 3), one(5, 4, 3))),
    *((f, image(1)) for f in (F.conv1d, F.conv_transpose1d)),
    *((f, image(2)) for f in (F.conv2d, F.conv_transpose2d)),
    *((f, image(3)) for f in (F.conv3d, F.conv_transpose3d)),
    (F.layer_norm, (one(2, 4), (4,), one(4).half(), one(4).half())),
    (F.group_norm, (one(2, 4, 3), 2, one(4).half(), one(4).half())),
    (F.scaled_dot_product_attention, (one(1, 2, 4, 8), one(1, 2, 4, 8), one(1, 2, 4, 8))),
    (torch.addmm, (one(2, 3), one(2, 4), one(4, 3))),
    (torch.addbmm, (one(2, 3), one(5, 2, 4), one(5, 4, 3))),
    (torch.addmv, (one(2), one(2, 4), one(4))),
    (torch.baddbmm, (one(5, 2, 3), one(5, 2, 4), one(5, 4, 3))),
    (torch.bmm, (one(5, 2, 4), one(5, 4, 3))),
    (torch.dot, (one(4), one(4))),
    (torch.einsum, ("ij,jk->ik", one(2, 4), one(4, 3))),
    (torch.matmul, (one(2, 4), one(4, 3))),
    (torch.Tensor.matmul, (one(2, 4), one(4, 3))),
    (torch.mm, (one(2, 4), one(4, 3))),
    (torch.mv, (one(2, 4), one(4))),
    (torch.Tensor.mv, (one(2, 4), one(4))),
    (torch.gru, RECURRENT),
]


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("function", "given"), CALLS, ids=lambda v: getattr(v, "__name__", ""))
def test_what_torch_takes_is_left_to_torch(
    function: Callable[..., Any], given: Arguments, narrow: torch.dtype
) -> None:
    place = next(k for k, value in enumerate(given) if isinstance(value, Tensor))
    args = (*given[:place], given[place].to(narrow), *given[place + 1 :])
    assert mixed_floats(function, args, {}), "torch refuses them as they are"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            function(*args)
        except RuntimeError:
            assert mixed_floats(function, args, {})
        else:
            assert not mixed_floats(function, args, {})
            assert promoted(function, args, {})[0] is args
