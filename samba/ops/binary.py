"""Operations on two tensors that broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samba.ops.op_utils import broadcast_input_shapes

__all__ = ["BroadcastBinaryOperation"]


class BroadcastBinaryOperation:
    """A pointwise operation on two tensors.

    Args:
        function: A torch function of two tensors.

    Example:
        >>> BroadcastBinaryOperation(torch.add)(torch.ones(2, 1), torch.ones(3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function = function

    def output_shape(self, first: torch.Tensor, second: torch.Tensor) -> torch.Size:
        """Shape of the result.

        Raises:
            RuntimeError: The shapes do not broadcast.
        """
        return broadcast_input_shapes(first.shape, second.shape)

    def __call__(self, first: Any, second: Any) -> torch.Tensor:
        return self.function(first, second)
