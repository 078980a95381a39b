"""What conversions leave for the session: the buffers of converted models, and the last model."""

from __future__ import annotations

import weakref

from torch import nn

from samba.sambatensor import SambaTensor
from samba.support.slot import Slot

_buffers: dict[str, SambaTensor] = {}
_last: Slot[weakref.ref[nn.Module]] = Slot()


def converted_buffers() -> dict[str, SambaTensor]:
    """SambaTensors by name, over buffers that stay torch tensors; ``samba.session.buffer_dict``."""
    return _buffers


def forget_converted_buffers() -> None:
    """Begin with no buffers again; the dict that others hold so far stays as it is."""
    global _buffers
    _buffers = {}


def note_converted(model: nn.Module) -> None:
    """Remember a model as the one that was converted last; it is not kept alive."""
    _last.value = weakref.ref(model)


def converted_last() -> nn.Module | None:
    """The model that was converted last, None if there is none or it is gone.

    A session whose traced model has no values asks for it.
    """
    return None if _last.value is None else _last.value()
