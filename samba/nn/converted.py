"""The model that was converted last, for a session whose traced model has no values."""

from __future__ import annotations

import weakref

from torch import nn

from samba.support.slot import Slot

__all__ = ["converted_last", "note_converted"]

_last: Slot[weakref.ref[nn.Module]] = Slot()


def note_converted(model: nn.Module) -> None:
    """Remember a model as the one that was converted last; it is not kept alive."""
    _last.value = weakref.ref(model)


def converted_last() -> nn.Module | None:
    """The model that was converted last, None if there is none or it is gone."""
    return None if _last.value is None else _last.value()
