"""Operations that are registered with torch in Python: ``torch.library`` keeps them in C++."""

from __future__ import annotations

from typing import Any

from samba.remembering.digest import Digest
from samba.remembering.incomparable import Incomparable
from samba.tracer.torch_internals import (
    OPDEFS,
    OpOverload,
    OpOverloadPacket,
    python_implementations,
)

__all__ = ["add_operation", "refuse_other_implementations"]

_FUNCTIONS = (
    *("_init_fn", "_backend_fns", "_abstract_fn", "_setup_context_fn", "_backward_fn"),
    *("_torch_dispatch_fns", "_vmap_fn"),
)
_ELSEWHERE = ("Meta", "CUDA", "MPS", "XPU", "HPU", "MTIA", "PrivateUse1")
"""Dispatch keys that no trace on the host meets, for which torch has functions in Python."""

_TORCHS = frozenset(
    {
        *("aten", "prims", "rngprims", "debugprims", "c10d", "c10d_functional", "quantized"),
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "symm_mem"),
        *("export", "fsdp", "streams", "flex_lib", "debug_mode_ops", "onnx", "onnx_symbolic"),
        *("inductor", "_inductor_test", "mkl", "mkldnn", "onednn", "higher_order"),
    }
)
"""Namespaces of operations that torch itself implements in Python, as its version says."""


def add_operation(state: Digest, item: Any) -> None:
    """Add the functions of an operation that is implemented in Python.

    Args:
        state: The digest.
        item: Any object; what is no operation is passed over.

    Raises:
        Incomparable: If its functions are in C++ and nowhere else.
    """
    if isinstance(item, OpOverload):
        name = item.name().partition(".")[0]
    elif isinstance(item, OpOverloadPacket):
        name = item._qualified_op_name
    else:
        return
    custom = OPDEFS.get(name)
    if custom is not None:
        for function in _FUNCTIONS:
            state.put(function)
            state.add(getattr(custom, function, None), f"{name}.{function}")
        return
    if name.partition("::")[0] in _TORCHS:
        return
    if name in {operation for operation, _ in _implemented()}:
        _refuse(name)


def refuse_other_implementations() -> None:
    """Raise if an operation of torch's own has another implementation in Python.

    Raises:
        Incomparable: If so: which function it is, only C++ knows.
    """
    for name, key in sorted(_implemented()):
        if name.startswith("aten::"):
            _refuse(f"{name} for {key}")


def _implemented() -> list[tuple[str, str]]:
    """Operations that have functions in Python where a trace meets them, and for which key."""
    split = [entry.split("/") for entry in python_implementations()]
    return [
        (f"{ns}::{op.partition('.')[0]}", key) for ns, op, key in split if key not in _ELSEWHERE
    ]


def _refuse(name: str) -> None:
    raise Incomparable(name, "is an operation with an implementation that torch.library keeps")
