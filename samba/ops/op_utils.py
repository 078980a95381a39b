"""Shape rules."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["broadcast_input_shapes"]


def broadcast_input_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape that shapes broadcast to.

    Args:
        *shapes: The shapes.

    Raises:
        RuntimeError: They do not broadcast; the text is that of torch's pointwise functions.

    Example:
        >>> broadcast_input_shapes((3, 1), (4,))
        torch.Size([3, 4])
    """
    result: torch.Tensor = torch.empty((), device="meta")
    for shape in shapes:
        # torch.broadcast_shapes words the error in another way than an addition does.
        result = result + torch.empty(tuple(shape), device="meta")
    return result.shape
