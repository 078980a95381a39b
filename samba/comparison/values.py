"""The values that a comparison starts from."""

from __future__ import annotations

import torch

from pef_schema.program import Role
from samba.tracer.traced import Source, Traced


def source_values(traced: Traced) -> tuple[dict[int, torch.Tensor], list[str]]:
    """Plain copies of everything that a graph takes from outside.

    Args:
        traced: The traced model.

    Returns:
        Tensors by value index, with dropout rates of 0 and a seed of 0, and notes on that.
    """
    found: dict[int, torch.Tensor] = {}
    for source in traced.sources:
        if source.role is Role.SEED:
            found[source.value] = torch.zeros(2, dtype=torch.uint32)
        elif source.role is Role.ARGIN:
            found[source.value] = torch.zeros((), dtype=torch.float64)
        elif source.role is Role.METRIC:
            found[source.value] = torch.zeros((), dtype=torch.bool)
        else:
            found[source.value] = _plain(source)
    rates = any(s.role is Role.ARGIN and s.default != 0.0 for s in traced.sources)
    return found, ["dropout is off on both sides"] if rates else []


def _plain(source: Source) -> torch.Tensor:
    tensor = source.tensor
    if tensor is None:
        raise ValueError(f"source {source.name} of role {source.role.name} has no tensor")
    if not getattr(tensor, "has_data", True):
        tensor = tensor.torch_tensor()  # pyright: ignore[reportAttributeAccessIssue]  # a SambaTensor
    return tensor.detach().as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)
