"""The mode in which ``forward`` is traced: torch's functions give way to others where they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from samba.tensor.promotion import promoted
from samba.tracer.custom_gradients import REGISTERS, GradientRecorder
from samba.tracer.dropout import DROPOUTS, keep_dropout
from samba.tracer.rewrite import rewritten


class TracedFunctions(TorchFunctionMode):
    """Calls torch's functions as a trace needs them, while it is active.

    Functions that need one floating dtype get their arguments promoted to it, as eager calls
    with SambaTensors do (:mod:`samba.tensor.promotion`); dropout stays at every rate
    (:mod:`samba.tracer.dropout`); what cannot be exported is said in other words
    (:mod:`samba.tracer.rewrite`); hooks that ``forward`` puts on tensors are recorded
    (:mod:`samba.tracer.custom_gradients`).

    Args:
        recorder: Where to record hooks; None to leave them to torch.
    """

    def __init__(self, recorder: GradientRecorder | None = None) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            kept = keep_dropout(func, args, kwargs)
            if kept is not None:
                return kept
        if func in REGISTERS and self._recorder is not None:
            return self._recorder.register(func, *args, **kwargs)
        args, kwargs = promoted(func, args, kwargs)
        return rewritten(func)(*args, **kwargs)
