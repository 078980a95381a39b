"""Sources of the inputs of an exported graph: arguments, parameters, buffers, constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from pef_schema.program import Role
from samba.support.naming import join_name
from samba.tracer.errors import TraceError
from samba.tracer.inputs import NamedInput
from samba.tracer.traced import Source


def source_of(
    spec: InputSpec,
    given: Iterator[NamedInput],
    *,
    program: ExportedProgram,
    model: torch.nn.Module,
    root: str,
    tensor_root: str,
) -> Source:
    """Find the tensor behind an input of an exported graph, and its names.

    Args:
        spec: The input.
        given: The trace-time inputs that no spec before this one stood for.
        program: The exported program, for its constants.
        model: The model, for its parameters and buffers.
        root: First part of the names of constants.
        tensor_root: First part of the names of parameters and buffers that have none.

    Returns:
        The source, of no value yet (-1).

    Raises:
        TraceError: It is none of these.
    """
    path = spec.target or ""
    tensor: torch.Tensor
    requires_grad = False
    match spec.kind:
        case InputKind.USER_INPUT:
            entry = next(given)
            role, name, region = Role.INPUT, entry.name, entry.region_name
            tensor, requires_grad = entry.tensor, entry.requires_grad
        case InputKind.PARAMETER:
            tensor = model.get_parameter(path)
            role, requires_grad = Role.WEIGHT, bool(tensor.requires_grad)
            name, region = _names(tensor, tensor_root, path)
        case InputKind.BUFFER:
            tensor = model.get_buffer(path)
            role = Role.BUFFER
            name, region = _names(tensor, tensor_root, path)
        case InputKind.CONSTANT_TENSOR:
            tensor = cast(torch.Tensor, program.constants[path])
            role = Role.CONSTANT
            name = region = join_name(root, path)
        case _:
            raise TraceError(
                where=f"model {root}",
                reason=f"an input of kind {spec.kind.name} cannot be compiled",
                hint="Pass plain tensors to forward().",
            )
    return Source(
        value=-1,
        role=role,
        name=name,
        region_name=region,
        path=path,
        tensor=tensor,
        requires_grad=requires_grad,
    )


def _names(tensor: torch.Tensor, root: str, path: str) -> tuple[str, str]:
    name = getattr(tensor, "sn_name", "") or join_name(root, path)
    return name, getattr(tensor, "sn_region_name", "") or name
