"""Ordinary models with their dropouts, and long chains of cheap steps.

What XLA fuses decides how fast these are: each value that several others read can be made once, or
in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bench.case import ADAMW, Batch, Case, by_name, classified, next_tokens
from bench.nets import Outputs


class PostNorm(nn.Module):
    """Torch's own transformer encoder as it comes: ReLU, layer norm after each sum, dropout."""

    def __init__(self, width: int, heads: int, layers: int, classes: int, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: torch.Tensor, label: torch.Tensor) -> Outputs:
        out = self.head(self.encoder(sequence).mean(1))
        return F.cross_entropy(out, label), out


class Attention(nn.Module):
    """Attention with dropout on its weights and on what it gives.

    Args:
        width: Features of a token.
        heads: Heads, which share them.
        dropout: The share that is dropped.
        causal: Whether tokens see those before them alone.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropped, self.causal)
        y = self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """The parts of a transformer layer."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)


class PreNormBlock(Block):
    """One layer of :class:`GPT2`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        y = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.down(y))


class GPT2(nn.Module):
    """A small GPT-2 with its dropouts."""

    def __init__(
        self, vocabulary: int, length: int, layers: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(PreNormBlock(width, heads, dropout, causal=True) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight
        for weight in (self.words.weight, self.positions.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, token_ids: torch.Tensor, targets: torch.Tensor) -> Outputs:
        x = self.dropout(self.words(token_ids) + self.positions.weight)
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class PostNormBlock(Block):
    """One layer of :class:`BERT`."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class BERT(nn.Module):
    """A small BERT that fills masked words in; padding is not seen."""

    def __init__(
        self, vocabulary: int, length: int, layers: int, heads: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.token_types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            PostNormBlock(width, heads, dropout, causal=False) for _ in range(layers)
        )
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for table in (self.words, self.positions, self.token_types):
            nn.init.normal_(table.weight, std=0.02)

    def forward(
        self,
        token_ids: torch.Tensor,
        token_types: torch.Tensor,
        attention_mask: torch.Tensor,
        targets: torch.Tensor,
    ) -> Outputs:
        x = self.words(token_ids) + self.positions.weight + self.token_types(token_types)
        x = self.dropout(self.norm(x))
        mask = attention_mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        x = self.transform_norm(F.gelu(self.transform(x)))
        logits = x @ self.words.weight.t() + self.bias
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100), logits


class DropPath(nn.Module):
    """Leaves a branch out for some items of a batch (https://arxiv.org/abs/1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.rate == 0.0:
            return x
        mask = x.new_empty((len(x),) + (1,) * (x.dim() - 1)).bernoulli_(1 - self.rate)
        return x * mask / (1 - self.rate)


class DropPathBlock(nn.Module):
    """One layer of :class:`DropPathViT`."""

    def __init__(self, width: int, heads: int, dropout: float, rate: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal=False)
        self.path1 = DropPath(rate)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )
        self.path2 = DropPath(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.path1(self.attention(self.norm1(x)))
        return x + self.path2(self.mlp(self.norm2(x)))


class DropPathViT(nn.Module):
    """A vision transformer with dropout and drop path, which grows from layer to layer."""

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        layers: int,
        heads: int,
        classes: int,
        dropout: float,
        rate: float,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        rates = [rate * i / max(layers - 1, 1) for i in range(layers)]
        self.blocks = nn.Sequential(*(DropPathBlock(width, heads, dropout, r) for r in rates))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        out = self.head(self.norm(self.blocks(x)).mean(1))
        return F.cross_entropy(out, label), out


class DeepMLP(nn.Module):
    """Layers with batch norm, ReLU and dropout."""

    def __init__(self, width: int, layers: int, classes: int, dropout: float) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [
                *(nn.Linear(width, width), nn.BatchNorm1d(width)),
                *(nn.ReLU(), nn.Dropout(dropout)),
            ]
        self.layers = nn.Sequential(*parts)
        self.head = nn.Linear(width, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        out = self.head(self.layers(image))
        return F.cross_entropy(out, label), out


class Steps(nn.Module):
    """A chain of cheap steps that all read one weight, as a solver of an equation has them."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.99 * torch.eye(width) + 0.02 * torch.randn(width, width))
        self.steps = steps
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        h = image
        for step in range(self.steps):
            h = torch.tanh(h @ self.weight) + 0.1 * torch.cos(h) * float(step % 3)
        out = self.head(h)
        return F.cross_entropy(out, label), out


MASKED = 0.3
"""How far the first losses of contenders may be apart that draw masks of their own: more than
torch's are with other seeds, as a test shows. The tests compare the same networks without dropout
at the tolerance of any other case."""


def post_norm(
    *,
    dropout: float,
    batch: int = 4,
    length: int = 24,
    width: int = 64,
    layers: int = 6,
) -> Case:
    """Torch's transformer encoder as it comes, with dropout or without."""
    return Case(
        name="post_norm_dropout" if dropout else "post_norm",
        family="post_norm",
        build=lambda: PostNorm(width, 4, layers, 10, dropout),
        make_batch=classified((batch, length, width), 10),
        loss_rtol=MASKED if dropout else 1e-3,
    )


def gpt2_dropout(
    *,
    batch: int = 8,
    length: int = 128,
    vocabulary: int = 2000,
    layers: int = 4,
    width: int = 128,
) -> Case:
    """A small GPT-2 with a dropout of 0.1 everywhere."""
    return Case(
        name="gpt2_dropout",
        build=lambda: GPT2(vocabulary, length, layers, 4, width, 0.1),
        input_names=("token_ids", "targets"),
        make_batch=next_tokens(batch, length, vocabulary),
        optimizer=ADAMW,
        loss_rtol=MASKED,
    )


def bert(
    *,
    batch: int = 8,
    length: int = 64,
    vocabulary: int = 3000,
    layers: int = 4,
    width: int = 128,
) -> Case:
    """A small BERT that learns masked words, one of six, in sentences of different lengths."""

    def make(rng: np.random.Generator) -> Batch:
        tokens = rng.integers(4, vocabulary, size=(batch, length))
        blanks = rng.random((batch, length)) < 1 / 6
        blanks[:, 0] = True
        lengths = rng.integers(length // 2, length + 1, size=(batch, 1))
        visible = np.arange(length) < lengths
        kinds = np.repeat(np.arange(length)[None] * 2 // length, batch, 0)
        masked = np.where(blanks, 3, tokens)
        return masked, kinds, visible, np.where(blanks & visible, tokens, -100)

    return Case(
        name="bert",
        build=lambda: BERT(vocabulary, length, layers, 4, width, 0.1),
        input_names=("token_ids", "token_types", "attention_mask", "targets"),
        make_batch=make,
        optimizer=ADAMW,
        loss_rtol=MASKED,
    )


def vit_drop_path(*, batch: int = 12, size: int = 32, width: int = 128, layers: int = 4) -> Case:
    """A vision transformer with dropout, and drop path up to 0.2."""
    return Case(
        name="vit_drop_path",
        build=lambda: DropPathViT(size, 4, width, layers, 4, 10, 0.1, 0.2),
        make_batch=classified((batch, 3, size, size), 10),
        optimizer=ADAMW,
        loss_rtol=MASKED,
    )


def mlp_dropout(*, batch: int = 64, width: int = 128, layers: int = 20) -> Case:
    """Twenty layers with batch norm and dropout."""
    return Case(
        name="mlp_dropout",
        build=lambda: DeepMLP(width, layers, 10, 0.1),
        make_batch=classified((batch, width), 10),
        loss_rtol=MASKED,
    )


def chain(steps: int, *, name: str = "", batch: int = 4, width: int = 8) -> Case:
    """So many steps of a chain over a few numbers."""
    return Case(
        name=name or f"steps-{steps}",
        family="chain_of_steps",
        build=lambda: Steps(width, steps),
        make_batch=classified((batch, width), 10),
    )


ORDINARY: Mapping[str, Case] = by_name(
    post_norm(dropout=0.1),
    post_norm(dropout=0.0),
    gpt2_dropout(),
    bert(),
    vit_drop_path(),
    mlp_dropout(),
    chain(50),
    chain(200),
    chain(1000),
)
"""What the suite ``ordinary`` times, by name."""

SMALL_ORDINARY: Mapping[str, Case] = by_name(
    post_norm(dropout=0.1, batch=2, length=5, width=16, layers=2),
    post_norm(dropout=0.0, batch=2, length=5, width=16, layers=2),
    gpt2_dropout(batch=2, length=8, vocabulary=40, layers=1, width=16),
    bert(batch=2, length=8, vocabulary=40, layers=1, width=16),
    vit_drop_path(batch=2, size=8, width=16, layers=2),
    mlp_dropout(batch=8, width=16, layers=3),
    chain(6, name="steps"),
)
"""The same, as small as their mathematics allows."""
