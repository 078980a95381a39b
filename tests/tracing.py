"""Tracing on inputs as scripts pass them, for tests of what comes after."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from samba.session import compiling
from samba.tracer import trace_cache
from samba.tracer.capture import trace_model
from samba.tracer.inputs import collect_inputs
from samba.tracer.traced import Traced


def trace(model: torch.nn.Module, inputs: Any, **options: Any) -> Traced:
    """Trace a model.

    Args:
        model: The model.
        inputs: As in ``session.compile``.
        options: As for ``trace_model``.
    """
    return trace_model(model, collect_inputs(model, inputs), **options)


def counted_traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by one with every trace of a compile or a load.

    Args:
        monkeypatch: Ends the count with the test.
    """
    traces: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        traces.append(args)
        return trace_model(*args, **kwargs)

    for module in (compiling, trace_cache):
        monkeypatch.setattr(module, "trace_model", counted)
    return traces
