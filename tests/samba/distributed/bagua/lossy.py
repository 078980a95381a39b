"""MinMaxUInt8 in torch: what compressed numbers and their means are."""

from __future__ import annotations

import torch


def scale_of(x: torch.Tensor) -> torch.Tensor:
    """Codes for each unit; not ``255 / range``, which torch computes as ``255 * (1 / range)``."""
    return torch.tensor(255.0) / (x.max() - x.min() + 1e-7)


def codes(x: torch.Tensor) -> torch.Tensor:
    """What numbers are sent as."""
    scale = scale_of(x)
    upper = torch.round(x.max() * scale)
    return (torch.minimum(torch.round(x * scale), upper) - (upper - 255)).to(torch.uint8)


def lossy(x: torch.Tensor) -> torch.Tensor:
    """What arrives."""
    scale = scale_of(x)
    return (codes(x).float() + (torch.round(x.max() * scale) - 255)) / scale


def both_ways(parts: list[torch.Tensor]) -> torch.Tensor:
    """The compressed mean of whole buffers, one of each rank: compressed again on its way back."""
    size = len(parts)
    rows = [p.chunk(size) for p in parts]
    means = [sum(lossy(r[i]) for r in rows) / size for i in range(size)]
    return torch.cat([lossy(m) for m in means])
