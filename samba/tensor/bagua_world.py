"""The slot through which Bagua tensors find the ranks that they are communicated among."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Protocol

from samba.support.slot import Slot
from samba.tensor.bagua_handle import BackendTensor, TensorBackend


class TensorWorld(Protocol):
    """The ranks that train together, as tensors see them."""

    @property
    def tensors(self) -> MutableMapping[tuple[str | None, str], BackendTensor]:
        """Handles of tensors by module name and name; a handle does not keep its tensor alive."""
        ...

    def backend(self, module_name: str) -> TensorBackend:
        """The backend of a model, always the same for the same name.

        Args:
            module_name: Name of the model.
        """
        ...


_provider: Slot[Callable[[], TensorWorld]] = Slot()


def provide_world(current: Callable[[], TensorWorld]) -> None:
    """Fill the slot.

    Args:
        current: Gives the world of the calling thread.
    """
    _provider.value = current


def current_world() -> TensorWorld:
    """The world of this thread, or else of this process."""
    assert _provider.value is not None  # samba.surface has filled it
    return _provider.value()
