"""Wishes about how the compiler cuts a model into sections. They never change a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from samba.errors import ArgumentError

__all__ = ["fusion_of", "op_fusion", "sdpa_directives", "sdpa_settings"]

_fused: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_open: list[str] = []
_sdpa: dict[str, Any] = {}


def op_fusion(
    module: nn.Module | None = None,
    func_name: str = "",
    *,
    heuristic: str | Mapping[str, Any] | None = None,
    heuristic_params: Mapping[str, Any] | None = None,
    plugins: Sequence[Any] = (),
    reuse_last_id: bool = False,
    user_annotated: bool = False,
) -> AbstractContextManager[None]:
    """Asks for one section for a module, at optimization level o1.

    Called with a module it marks that module at once. Without one it is a context manager that
    marks what runs inside.

    Args:
        module: The module to keep together.
        func_name: Name of the group, e.g. ``"Encoder"``.
        heuristic: Accepted; the emulator has one way of cutting.
        heuristic_params: Accepted, as above.
        plugins: Accepted, as above.
        reuse_last_id: Accepted, as above.
        user_annotated: Accepted, as above.

    Returns:
        A context manager; it need not be entered when a module was given.

    Raises:
        ArgumentError: No name is given, or ``module`` is not a module.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = op_fusion(layer, "Encoder")
        >>> fusion_of(layer)
        'Encoder'
    """
    if module is not None and not isinstance(module, nn.Module):
        raise ArgumentError(
            where="op_fusion(module)", found=type(module).__name__, wanted="a torch.nn.Module"
        )
    if not func_name:
        raise ArgumentError(where="op_fusion(func_name)", found="no name", wanted="a group name")
    if module is not None:
        _fused[module] = func_name
    return _fusing(func_name)


@contextmanager
def _fusing(name: str) -> Iterator[None]:
    _open.append(name)
    try:
        yield
    finally:
        _open.pop()


def fusion_of(module: nn.Module | None = None) -> str | None:
    """Name of the group that ``op_fusion`` gave a module.

    Args:
        module: The module; None asks for the innermost ``with op_fusion(...)`` around the call.

    Returns:
        The name, or None.
    """
    if module is None:
        return _open[-1] if _open else None
    return _fused.get(module)


def sdpa_directives(settings: Mapping[str, Any]) -> None:
    """Records wishes about scaled dot product attention, such as ``sdp_block_size``.

    The emulator computes attention one way, so they have no effect on results.

    Args:
        settings: Wishes by name.
    """
    _sdpa.update(settings)


def sdpa_settings() -> dict[str, Any]:
    """The wishes that ``sdpa_directives`` recorded."""
    return dict(_sdpa)
