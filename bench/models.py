"""The models that are timed, in plain torch, with their batches and optimizers.

A case is everything a contender needs to build the very same training step:
the model's weights come from one seed, the batches from another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

Batch = tuple[np.ndarray, ...]
"""Inputs of one step, in the order of ``forward``."""

BATCHES = 8
"""Different batches a contender cycles through; enough that none is special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """Settings of stochastic gradient descent with momentum."""

    lr: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Settings of AdamW."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model at one size.

    Args:
        name: As given to ``--model``.
        family: Picks the hand-written jax function of the same mathematics.
        build: Makes the model with torch's current random state.
        input_names: Names of the inputs, in the order of ``forward``.
        make_batch: Makes one batch from a random generator.
        optimizer: Its settings.
        heads: Attention heads, where there are any.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    input_names: tuple[str, ...]
    make_batch: Callable[[np.random.Generator], Batch]
    optimizer: Sgd | AdamW
    heads: int = 0

    def model(self) -> nn.Module:
        """Return the model with the weights that every contender starts from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def batches(self) -> list[Batch]:
        """Return the batches that every contender cycles through."""
        rng = np.random.default_rng(0)
        return [self.make_batch(rng) for _ in range(BATCHES)]


class LogReg(nn.Module):
    """One linear layer without bias."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lin_layer = nn.Linear(features, classes, bias=False)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.lin_layer(image)
        return F.cross_entropy(out, label), out


class ResFFN(nn.Module):
    """Three linear layers with LayerNorm and a bridge over the middle one."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.gemm1 = nn.Linear(features, hidden)
        self.norm1 = nn.LayerNorm(hidden)
        self.gemm2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.gemm3 = nn.Linear(hidden, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.tanh(self.norm1(self.gemm1(image)))
        x = torch.sigmoid(self.norm2(self.gemm2(x)) + x)
        out = self.gemm3(x)
        return F.cross_entropy(out, label), out


class LeNet(nn.Module):
    """Two convolutions with pooling and three linear layers, for 28x28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(256, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = F.max_pool2d(F.relu(self.conv1(image)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        out = self.fc3(F.relu(self.fc2(x)))
        return F.cross_entropy(out, label), out


class Block(nn.Module):
    """One layer of :class:`GPT`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder-only transformer with a mean loss over all tokens."""

    def __init__(self, vocabulary: int, length: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for weight in (self.tokens.weight, self.positions.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, token_ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.tokens(token_ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def _classified(shape: tuple[int, ...], classes: int) -> Callable[[np.random.Generator], Batch]:
    """Return a maker of float32 images of ``shape`` with int64 labels."""

    def make(rng: np.random.Generator) -> Batch:
        return rng.standard_normal(shape, dtype=np.float32), rng.integers(classes, size=shape[0])

    return make


def logreg(*, name: str = "logreg-1", batch: int = 1) -> Case:
    """Logistic regression on images of 784 pixels."""
    return Case(
        name=name,
        family="logreg",
        build=lambda: LogReg(784, 10),
        input_names=("image", "label"),
        make_batch=_classified((batch, 784), 10),
        optimizer=Sgd(lr=0.0015, momentum=0.9, weight_decay=3e-4),
    )


def res_ffn(*, batch: int = 256, width: int = 1024, classes: int = 1000) -> Case:
    """The residual feed forward network."""
    return Case(
        name="res_ffn",
        family="res_ffn",
        build=lambda: ResFFN(width, width, classes),
        input_names=("image", "label"),
        make_batch=_classified((batch, width), classes),
        optimizer=Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4),
    )


def lenet(*, batch: int = 32) -> Case:
    """LeNet on 28x28 images."""
    return Case(
        name="lenet",
        family="lenet",
        build=LeNet,
        input_names=("image", "label"),
        make_batch=_classified((batch, 1, 28, 28), 10),
        optimizer=Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4),
    )


def gpt(
    *,
    batch: int = 4,
    length: int = 256,
    vocabulary: int = 8192,
    layers: int = 4,
    heads: int = 6,
    width: int = 384,
) -> Case:
    """The small GPT."""

    def make(rng: np.random.Generator) -> Batch:
        tokens = rng.integers(vocabulary, size=(batch, length + 1))
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

    return Case(
        name="gpt",
        family="gpt",
        build=lambda: GPT(vocabulary, length, layers, heads, width),
        input_names=("token_ids", "targets"),
        make_batch=make,
        optimizer=AdamW(lr=3e-4, betas=(0.9, 0.997), eps=1e-8, weight_decay=0.1),
        heads=heads,
    )


CASES: Mapping[str, Case] = MappingProxyType(
    {
        case.name: case
        for case in (logreg(), logreg(name="logreg-64", batch=64), res_ffn(), lenet(), gpt())
    }
)
"""What ``python -m bench run`` times, by name."""
