"""Data that recipes share: the same on both sides, whatever a model drew before."""

from __future__ import annotations

import torch
from torch import Tensor


def points(n: int, features: int = 6, classes: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """Points and the class each belongs to, which a linear model can nearly tell."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator)
    y = (x @ torch.randn(features, classes, generator=generator)).argmax(1)
    return {"x": x, "y": y}


def images(n: int, size: int = 8, channels: int = 1, seed: int = 1) -> dict[str, Tensor]:
    """Images of noise with a bright half, and which half it is."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    x = torch.randn(n, channels, size, size, generator=generator)
    x[..., : size // 2] += y[:, None, None, None] * 2.0 - 1.0
    return {"x": x, "y": y}


def sequences(n: int, length: int = 7, words: int = 11, seed: int = 1) -> dict[str, Tensor]:
    """Sequences of words and the same one word later."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(words, (n, length + 1), generator=generator)
    return {"x": text[:, :-1].contiguous(), "y": text[:, 1:].contiguous()}


def batches(data: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    """Whole batches of data, in order."""
    n = len(next(iter(data.values()))) // size
    return [{k: v[i * size : (i + 1) * size] for k, v in data.items()} for i in range(n)]
