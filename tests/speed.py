"""Work of jax that the fast tests leave out; `make test-all` runs it as it is."""

from __future__ import annotations

import threading
from typing import Any

_LOWERINGS = 200
"""How many share a context; what they made in it stays until it goes."""


def keep_contexts() -> None:
    """Lower many programs in one MLIR context, which takes jax longer to make than a small one.

    Only in the thread that calls this: a context is not made for dialects that come while another
    thread is in it. What is lowered does not change.
    """
    from jax._src.interpreters import mlir

    general, owner = mlir.make_ir_context, threading.get_ident()
    kept: list[Any] = []
    uses = 0

    def context() -> Any:
        nonlocal uses
        if threading.get_ident() != owner:
            return general()
        if uses % _LOWERINGS == 0:
            kept[:] = [general()]
        uses += 1
        return kept[0]

    mlir.make_ir_context = context
