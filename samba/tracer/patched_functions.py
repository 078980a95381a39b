"""The mode in which ``forward`` is traced: torch's functions give way to others where they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from samba.sambatensor import SambaTensor
from samba.tensor.dispatch import CASTS, operands
from samba.tensor.in_forward import traced_forward
from samba.tensor.labels import keep_names
from samba.tensor.promotion import promoted
from samba.tracer.custom_gradients import REGISTERS, GradientRecorder
from samba.tracer.dropout import DROPOUTS, keep_dropout
from samba.tracer.forward_attributes import attribute as attribute_of
from samba.tracer.refuse import refuse_constants
from samba.tracer.rewrite import rewritten


class TracedFunctions(TorchFunctionMode):
    """Calls torch's functions as a trace needs them, while it is active.

    Functions that need one floating dtype get their arguments promoted to it, as eager calls
    with SambaTensors do (:mod:`samba.tensor.promotion`); dropout stays at every rate
    (:mod:`samba.tracer.dropout`); what cannot be exported is said in other words
    (:mod:`samba.tracer.rewrite`); hooks that ``forward`` puts on tensors are recorded
    (:mod:`samba.tracer.custom_gradients`); attributes that reach past the graph have a meaning in
    it, or are refused (:mod:`samba.tracer.forward_attributes`).

    Args:
        model: The model, for errors.
        recorder: Where to record hooks; None to leave them to torch.
    """

    def __init__(self, model: torch.nn.Module, recorder: GradientRecorder | None = None) -> None:
        super().__init__()
        self._model, self._recorder = model, recorder
        self._plains: dict[int, tuple[torch.Tensor, SambaTensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = self._plain(types, args, kwargs or {})
        if traced_forward() is not None:
            refuse_constants(self._model, operands(args, kwargs))
        attribute = attribute_of(func)
        if attribute is not None:
            return attribute(*args, **kwargs)
        if func in DROPOUTS:
            kept = keep_dropout(func, args, kwargs)
            if kept is not None:
                return kept
        if func in REGISTERS and self._recorder is not None:
            return self._recorder.register(func, *args, **kwargs)
        args, kwargs = promoted(func, args, kwargs)
        result = rewritten(func)(*args, **kwargs)
        if func in CASTS and result is not args[0] and vars(args[0]).get("_sn_name"):
            keep_names(args[0], result)
        return result

    def _plain(
        self, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with torch's tensors in the place of SambaTensors: constants of the graph.

        The exporter forgets ``inference_mode``: what enters it is detached.
        """
        known = not any(issubclass(kind, SambaTensor) for kind in types)
        if traced_forward() is None or (known and not torch.is_inference_mode_enabled()):
            return args, kwargs
        return self._replaced(args), {key: self._replaced(item) for key, item in kwargs.items()}

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, SambaTensor):
            value = self._plains.setdefault(id(value), (value.torch(), value))[0]
        if isinstance(value, torch.Tensor):
            ungraded = torch.is_inference_mode_enabled() and value.requires_grad
            return value.detach() if ungraded else value
        if type(value) in (list, tuple):
            return type(value)(self._replaced(item) for item in value)
        return value
