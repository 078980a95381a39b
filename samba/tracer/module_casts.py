"""``module.to(...)`` inside ``forward``: fine where nothing changes, an error where it would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samba.tracer.errors import TraceError
from samba.tracer.names import calling_line
from samba.tracer.torch_internals import with_apply

_TRACING = threading.local()


@contextmanager
def unmoved_modules(model: torch.nn.Module) -> Iterator[None]:
    """While active, modules of ``model`` keep their tensors under ``to``, ``float``, ``half``, ...

    Torch's exporter cannot swap a parameter while it traces, not even for itself. Routers of
    mixtures of experts say ``self.classifier.to(torch.float32)`` in ``forward``, which mostly
    changes nothing.

    Args:
        model: The model; other modules, and other threads, are not concerned.

    Raises:
        TraceError: From ``forward``, if a module would get another dtype or device there: a PEF
            holds each parameter in one dtype.
    """
    names = {id(module): name for name, module in model.named_modules()}

    def checked(before: Callable[..., Any]) -> Callable[..., torch.nn.Module]:
        def apply(
            self: torch.nn.Module,
            fn: Callable[[torch.Tensor], torch.Tensor],
            *args: Any,
            **kwargs: Any,
        ) -> torch.nn.Module:
            if id(self) not in names or not getattr(_TRACING, "active", False):
                return before(self, fn, *args, **kwargs)
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                with torch.no_grad():
                    wanted = fn(tensor)
                if (wanted.dtype, wanted.device) != (tensor.dtype, tensor.device):
                    raise _changed(names[id(self)], name, tensor, wanted)
            return self

        return apply

    outer, _TRACING.active = getattr(_TRACING, "active", False), True
    try:
        with with_apply(checked):
            yield
    finally:
        _TRACING.active = outer


def _changed(module: str, name: str, tensor: torch.Tensor, wanted: torch.Tensor) -> TraceError:
    place = f"module {module or 'model'}"
    if tensor.dtype != wanted.dtype:
        change = f"from {tensor.dtype} to {wanted.dtype}"
    else:
        change = f"from {tensor.device} to {wanted.device}"
    return TraceError(
        where=f"{calling_line()} (in {place})",
        reason=f"forward() converts the parameters of a module: {name} {change}",
        hint="A compiled parameter has one dtype. Convert the module before you compile, or "
        "convert the tensor where it is used: F.linear(x, self.weight.to(dtype)).",
    )
