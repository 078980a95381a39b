"""Tracing on inputs as scripts pass them, for tests of what comes after."""

from __future__ import annotations

from typing import Any

import torch

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
