"""SambaTensors over the buffers of converted models, which stay torch tensors themselves."""

from __future__ import annotations

from samba.sambatensor import SambaTensor

__all__ = ["converted_buffers", "forget_converted_buffers"]

_buffers: dict[str, SambaTensor] = {}


def converted_buffers() -> dict[str, SambaTensor]:
    """The SambaTensors by name; ``samba.session.buffer_dict``."""
    return _buffers


def forget_converted_buffers() -> None:
    """Begin with no buffers again; the dict that others hold so far stays as it is."""
    global _buffers
    _buffers = {}
