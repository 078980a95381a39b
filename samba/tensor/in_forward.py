"""Whether this thread traces a ``forward``, where a SambaTensor is the tensor that is traced.

While a model is traced its tensors have no values, and torch's exporter knows tensors of its own
class only. What makes a SambaTensor asks here and gives the traced tensor back instead, which has
the names of a SambaTensor for as long (``samba/tracer/shown_tensors.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

import torch

__all__ = ["Forward", "enter_forward", "traced_forward"]


class Forward(Protocol):
    """What makes SambaTensors while a ``forward`` is traced."""

    def made(self, source: torch.Tensor | None, labels: Mapping[str, Any]) -> torch.Tensor:
        """The tensor that stands for a new SambaTensor.

        Args:
            source: What it is made from; None for an empty one.
            labels: Names and labels that were given, None where they were not.
        """
        ...


class _Traced(threading.local):
    forward: Forward | None = None


_traced = _Traced()


def traced_forward() -> Forward | None:
    """What makes SambaTensors in the ``forward`` that this thread traces, None if it does not."""
    return _traced.forward


def enter_forward(forward: Forward | None) -> Forward | None:
    """Say what makes SambaTensors in this thread from now on.

    Args:
        forward: What does while a ``forward`` is traced; None outside.

    Returns:
        What did before.
    """
    before, _traced.forward = _traced.forward, forward
    return before
