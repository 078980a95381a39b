"""Whether functions are traced, and whether a tensor has values."""

from __future__ import annotations

from typing import Any

from samba.sambatensor import SambaTensor
from samba.support.tracing import is_tracing
from samba.tensor.lazy_mode import current_mode

__all__ = ["is_static", "is_symbolic"]


def is_static() -> bool:
    """Whether functions are being traced rather than computed."""
    return is_tracing() or current_mode() is not None


def is_symbolic(obj: Any) -> bool:
    """Whether an object is a SambaTensor without values."""
    return isinstance(obj, SambaTensor) and not obj.has_data
