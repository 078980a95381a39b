"""A model of Llama's shape: RMSNorm, rotary positions, grouped heads, gated feed forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """Scales every vector to a mean square of 1, then by weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turns pairs of features by angles that grow with the position."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class Block(nn.Module):
    """Attention and feed forward, each around a residual connection."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm_attention, self.norm_feed = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def split(y: torch.Tensor, count: int) -> torch.Tensor:
            return y.view(batch, length, count, self.size).transpose(1, 2)

        y = self.norm_attention(x)
        q = rotate(split(self.q(y), self.heads), cos, sin)
        k = rotate(split(self.k(y), self.groups), cos, sin)
        v = split(self.v(y), self.groups)
        repeats = self.heads // self.groups
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.norm_feed(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder that returns the loss and the logits."""

    def __init__(
        self,
        vocabulary: int = 64,
        width: int = 32,
        layers: int = 2,
        heads: int = 4,
        groups: int = 2,
        hidden: int = 48,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        inverse = 10000.0 ** (-torch.arange(0, width // heads, 2) / (width // heads))
        self.register_buffer("inverse", inverse, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, tokens: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(tokens.shape[1])[:, None] * torch.cat([self.inverse] * 2)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten().long())
        return loss, logits


SEVEN_BILLION = {
    "vocabulary": 32000,
    "width": 4096,
    "layers": 32,
    "heads": 32,
    "groups": 32,
    "hidden": 11008,
}

SEVENTY_BILLION = SEVEN_BILLION | {
    "width": 8192,
    "layers": 80,
    "heads": 64,
    "groups": 8,
    "hidden": 28672,
}
