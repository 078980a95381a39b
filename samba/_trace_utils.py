"""Tracing without compiling: what a model's outputs will be called and look like."""

from __future__ import annotations

from typing import Any

import torch

from samba.sambatensor import SambaTensor
from samba.tracer.capture import trace_model
from samba.tracer.inputs import collect_inputs
from samba.tracer.traced import FROM_DTYPE

__all__ = ["_get_output_tensors", "_trace_single_torch_graph", "_trace_torch_graph"]


def _trace_torch_graph(
    model: torch.nn.Module, inputs: Any, inference: bool = False
) -> tuple[SambaTensor, ...]:
    """Traces a model.

    Args:
        model: The model.
        inputs: What ``forward`` takes, as for ``session.compile``.
        inference: Whether to trace for inference.

    Returns:
        Its outputs: empty tensors with names, shapes and dtypes; also ``model.output_tensors``.

    Raises:
        SambaError: The model cannot be traced.
    """
    traced = trace_model(model, collect_inputs(model, inputs), inference=inference)
    outputs = tuple(
        SambaTensor(
            shape=traced.values[o.value].shape,
            dtype=FROM_DTYPE[traced.values[o.value].dtype],
            name=o.name,
        )
        for o in traced.outputs
    )
    model.output_tensors = outputs  # pyright: ignore[reportArgumentType]  # where scripts look for it
    return outputs


_trace_single_torch_graph = _trace_torch_graph


def _get_output_tensors(model: torch.nn.Module) -> tuple[SambaTensor, ...]:
    """The outputs of a traced model; none before it was traced."""
    return tuple(getattr(model, "output_tensors", ()))
