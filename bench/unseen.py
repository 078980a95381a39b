"""Ten models of other families than those that speed was worked on.

A user has a model that no bench holds: what is said of speed has to hold here as well. What is
tuned is tuned for what a model stands for, not for its sizes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bench.case import ADAMW, Batch, Case, by_name, classified, next_tokens
from bench.nets import Outputs


def _unit(channels: int, out: int, kernel: int, *, groups: int = 1, stride: int = 1) -> nn.Module:
    """A convolution with batch norm that keeps the size where the stride is 1."""
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


class MixerBlock(nn.Module):
    """One layer of :class:`Mixer`: an MLP over the patches, then one over the channels."""

    def __init__(self, patches: int, width: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
        )
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """An MLP-mixer."""

    def __init__(self, size: int, patch: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        count = (size // patch) ** 2
        self.blocks = nn.Sequential(*(MixerBlock(count, width, 4 * width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.patches(image).flatten(2).transpose(1, 2)
        out = self.head(self.norm(self.blocks(x)).mean(1))
        return F.cross_entropy(out, label), out


class VisionBlock(nn.Module):
    """One layer of :class:`ViT`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(
        self, size: int, patch: int, width: int, layers: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(VisionBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        out = self.head(self.norm(self.blocks(x))[:, 0])
        return F.cross_entropy(out, label), out


class Twice(nn.Sequential):
    """Two 3x3 convolutions, each with batch norm and ReLU."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(_unit(channels, out, 3), nn.ReLU(), _unit(out, out, 3), nn.ReLU())


class UNet(nn.Module):
    """A U-Net of three levels that classifies every pixel."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down1 = Twice(3, width)
        self.down2 = Twice(width, 2 * width)
        self.bottom = Twice(2 * width, 4 * width)
        self.widen2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2 = Twice(4 * width, 2 * width)
        self.widen1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up1 = Twice(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        one = self.down1(image)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.up2(torch.cat([two, self.widen2(x)], 1))
        x = self.up1(torch.cat([one, self.widen1(x)], 1))
        out = self.head(x)
        return F.cross_entropy(out, label), out


class Inverted(nn.Module):
    """A 1x1 convolution to more channels, a depthwise 3x3, and a 1x1 back, with a bridge."""

    def __init__(self, channels: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = expand * channels
        self.bridge = stride == 1 and channels == out
        self.expand = _unit(channels, inner, 1)
        self.depthwise = _unit(inner, inner, 3, groups=inner, stride=stride)
        self.project = _unit(inner, out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self.depthwise(F.relu6(self.expand(x))))
        y = self.project(y)
        return x + y if self.bridge else y


class MobileNet(nn.Module):
    """Depthwise separable blocks as in MobileNetV2, for small images."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = _unit(3, width, 3, stride=2)
        plan = ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1))
        blocks, channels = [], width
        for out, stride in plan:
            blocks.append(Inverted(channels, out, stride, 4))
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.last = _unit(channels, 8 * width, 1)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.blocks(F.relu6(self.stem(image)))
        out = self.head(F.relu6(self.last(x)).mean((2, 3)))
        return F.cross_entropy(out, label), out


class Generator(nn.Module):
    """A DCGAN's generator, which learns to draw given images from given noise."""

    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(noise, 4 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor, image: torch.Tensor) -> Outputs:
        out = self.layers(noise[:, :, None, None])
        return F.mse_loss(out, image), out


class Encoder(nn.Module):
    """Torch's own transformer encoder; every token gets a word of the vocabulary."""

    def __init__(self, vocabulary: int, length: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        # Dropout would draw other masks in every contender.
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, token_ids: torch.Tensor, targets: torch.Tensor) -> Outputs:
        x = self.encoder(self.words(token_ids) + self.positions)
        logits = self.head(x)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class GRUClassifier(nn.Module):
    """GRU layers; the last output is classified."""

    def __init__(self, features: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: torch.Tensor, label: torch.Tensor) -> Outputs:
        states, _ = self.gru(sequence)
        out = self.head(states[:, -1])
        return F.cross_entropy(out, label), out


class Dilated(nn.Module):
    """One layer of :class:`WaveNet`: a causal gated convolution with bridge and skip."""

    def __init__(self, channels: int, skip: int, dilation: int) -> None:
        super().__init__()
        self.before = dilation
        self.conv = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.bridge = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        filtered, gate = self.conv(F.pad(x, (self.before, 0))).chunk(2, 1)
        y = torch.tanh(filtered) * torch.sigmoid(gate)
        return x + self.bridge(y), self.skip(y)


class WaveNet(nn.Module):
    """Dilated 1-d convolutions that predict every sample's next level."""

    def __init__(self, levels: int, channels: int, skip: int, layers: int) -> None:
        super().__init__()
        self.levels = nn.Embedding(levels, channels)
        self.layers = nn.ModuleList(Dilated(channels, skip, 1 << i) for i in range(layers))
        self.mix = nn.Conv1d(skip, skip, 1)
        self.head = nn.Conv1d(skip, levels, 1)

    def forward(self, samples: torch.Tensor, targets: torch.Tensor) -> Outputs:
        x = self.levels(samples).transpose(1, 2)
        total = None
        for layer in self.layers:
            x, skip = layer(x)
            total = skip if total is None else total + skip
        assert total is not None  # there is a layer
        out = self.head(F.relu(self.mix(F.relu(total))))
        return F.cross_entropy(out, targets), out


class DLRM(nn.Module):
    """Numbers and bags of categories; their products of pairs tell whether someone clicks."""

    def __init__(self, numbers: int, tables: int, rows: int, width: int, inner: int) -> None:
        super().__init__()
        self.pairs: torch.Tensor
        self.bottom = nn.Sequential(
            nn.Linear(numbers, inner),
            nn.ReLU(),
            nn.Linear(inner, inner // 2),
            nn.ReLU(),
            nn.Linear(inner // 2, width),
            nn.ReLU(),
        )
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs, persistent=False)
        self.top = nn.Sequential(
            nn.Linear(width + pairs.shape[1], inner),
            nn.ReLU(),
            nn.Linear(inner, inner // 2),
            nn.ReLU(),
            nn.Linear(inner // 2, 1),
        )

    def forward(
        self, numbers: torch.Tensor, categories: torch.Tensor, clicked: torch.Tensor
    ) -> Outputs:
        x = self.bottom(numbers)
        looked_up = [bag(categories[:, i]) for i, bag in enumerate(self.bags)]
        rows = torch.stack([x, *looked_up], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        pairs = products[:, self.pairs[0], self.pairs[1]]
        out = self.top(torch.cat([x, pairs], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(out, clicked), out


class Experts(nn.Module):
    """Several MLPs beside each other; each token is answered by the best ``top`` of them.

    All experts compute all tokens, and the others' answers weigh nothing: shapes are fixed.
    """

    def __init__(self, experts: int, top: int, width: int, inner: int) -> None:
        super().__init__()
        self.top = top
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = torch.softmax(self.router(x), -1)
        best, index = gates.topk(self.top, -1)
        weights = torch.zeros_like(gates).scatter(-1, index, best / best.sum(-1, keepdim=True))
        y = F.silu(torch.einsum("td,edi->eti", x, self.up))
        y = torch.einsum("eti,eid->etd", y, self.down)
        return torch.einsum("te,etd->td", weights, y)


class MixtureOfExperts(nn.Module):
    """Layers of :class:`Experts` with layer norm and bridges."""

    def __init__(
        self, features: int, width: int, layers: int, experts: int, top: int, classes: int
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(Experts(experts, top, width, 2 * width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, samples: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.stem(samples)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        out = self.head(x)
        return F.cross_entropy(out, label), out


def mixer(*, batch: int = 16, size: int = 32, width: int = 128, layers: int = 4) -> Case:
    """An MLP-mixer over patches of 4x4 pixels."""
    return Case(
        name="mixer",
        build=lambda: Mixer(size, 4, width, layers, 10),
        make_batch=classified((batch, 3, size, size), 10),
        optimizer=ADAMW,
    )


def encoder(
    *, batch: int = 8, length: int = 128, vocabulary: int = 5000, width: int = 128, layers: int = 3
) -> Case:
    """A transformer encoder that gives each token one of 5,000 words."""

    def make(rng: np.random.Generator) -> Batch:
        ids, targets = rng.integers(vocabulary, size=(2, batch, length))
        return ids, targets

    return Case(
        name="encoder",
        build=lambda: Encoder(vocabulary, length, layers, 4, width),
        input_names=("token_ids", "targets"),
        make_batch=make,
        optimizer=ADAMW,
    )


def unet(*, batch: int = 8, size: int = 64, width: int = 16, classes: int = 5) -> Case:
    """A U-Net that classifies pixels."""

    def make(rng: np.random.Generator) -> Batch:
        pixels = rng.standard_normal((batch, 3, size, size), dtype=np.float32)
        return pixels, rng.integers(classes, size=(batch, size, size))

    return Case(
        name="unet",
        build=lambda: UNet(width, classes),
        make_batch=make,
    )


def dlrm(
    *, batch: int = 512, tables: int = 8, rows: int = 10_000, width: int = 64, inner: int = 512
) -> Case:
    """Embedding tables between two MLPs; each item reads four rows of every table."""

    def make(rng: np.random.Generator) -> Batch:
        numbers = rng.standard_normal((batch, 13), dtype=np.float32)
        clicked = rng.integers(2, size=batch).astype(np.float32)
        return numbers, rng.integers(rows, size=(batch, tables, 4)), clicked

    return Case(
        name="dlrm",
        build=lambda: DLRM(13, tables, rows, width, inner),
        input_names=("numbers", "categories", "clicked"),
        make_batch=make,
    )


def gru(*, batch: int = 32, length: int = 64, features: int = 64, hidden: int = 192) -> Case:
    """Two GRU layers over sequences, whose last output is classified."""
    return Case(
        name="gru",
        build=lambda: GRUClassifier(features, hidden, 2, 10),
        make_batch=classified((batch, length, features), 10),
    )


def vit(*, batch: int = 12, size: int = 32, width: int = 192, layers: int = 3) -> Case:
    """A vision transformer over patches of 4x4 pixels."""
    return Case(
        name="vit",
        build=lambda: ViT(size, 4, width, layers, 4, 10),
        make_batch=classified((batch, 3, size, size), 10),
        optimizer=ADAMW,
    )


def mobilenet(*, batch: int = 16, size: int = 64, width: int = 16) -> Case:
    """Depthwise separable convolutions."""
    return Case(
        name="mobilenet",
        build=lambda: MobileNet(width, 10),
        make_batch=classified((batch, 3, size, size), 10),
    )


def generator(*, batch: int = 32, noise: int = 64, width: int = 64) -> Case:
    """The generator of a GAN: transposed convolutions with batch norm."""

    def make(rng: np.random.Generator) -> Batch:
        image = rng.uniform(-1, 1, (batch, 3, 32, 32)).astype(np.float32)
        return rng.standard_normal((batch, noise), dtype=np.float32), image

    return Case(
        name="generator",
        build=lambda: Generator(noise, width),
        input_names=("noise", "image"),
        make_batch=make,
        optimizer=ADAMW,
    )


def wavenet(
    *, batch: int = 4, length: int = 1024, levels: int = 256, channels: int = 32, layers: int = 8
) -> Case:
    """Dilated causal 1-d convolutions over samples of 256 levels."""

    return Case(
        name="wavenet",
        build=lambda: WaveNet(levels, channels, 2 * channels, layers),
        input_names=("samples", "targets"),
        make_batch=next_tokens(batch, length, levels),
        optimizer=ADAMW,
    )


def moe(*, batch: int = 512, features: int = 64, width: int = 128, experts: int = 8) -> Case:
    """A mixture of experts: two layers, each of which sends an input to its two best experts."""
    return Case(
        name="moe",
        build=lambda: MixtureOfExperts(features, width, 2, experts, 2, 10),
        make_batch=classified((batch, features), 10),
        optimizer=ADAMW,
    )


UNSEEN: Mapping[str, Case] = by_name(
    mixer(),
    replace(encoder(), large=True),
    unet(),
    dlrm(),
    gru(),
    vit(),
    mobilenet(),
    generator(),
    wavenet(),
    moe(),
)
"""What the suite ``unseen`` times, by name."""

SMALL_UNSEEN: Mapping[str, Case] = by_name(
    mixer(batch=2, size=8, width=8, layers=1),
    encoder(batch=2, length=6, vocabulary=30, width=16, layers=1),
    unet(batch=2, size=8, width=4, classes=3),
    dlrm(batch=6, tables=3, rows=20, width=8, inner=16),
    gru(batch=3, length=5, features=6, hidden=8),
    vit(batch=2, size=8, width=16, layers=1),
    mobilenet(batch=4, size=16, width=4),
    generator(batch=2, noise=6, width=4),
    wavenet(batch=2, length=12, levels=16, channels=4, layers=3),
    moe(batch=12, features=8, width=8, experts=4),
)
"""The same, as small as their mathematics allows."""
