"""Ten models of other families than those that speed was worked on.

A user has a model that no bench holds: what is said of speed has to hold here as well. What is
tuned is tuned for what a model stands for, not for its sizes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from bench.case import ADAMW, SGD, Batch, Case, classifier
from bench.unseen import images, sequences


def mixer(*, batch: int = 16, size: int = 32, width: int = 128, layers: int = 4) -> Case:
    """An MLP-mixer over patches of 4x4 pixels."""
    return classifier(
        "mixer",
        "mixer",
        lambda: images.Mixer(size, 4, width, layers, 10),
        (batch, 3, size, size),
        10,
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
        family="encoder",
        build=lambda: sequences.Encoder(vocabulary, length, layers, 4, width),
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
        family="unet",
        build=lambda: images.UNet(width, classes),
        input_names=("image", "label"),
        make_batch=make,
        optimizer=SGD,
    )


def dlrm(
    *, batch: int = 512, tables: int = 8, rows: int = 10_000, width: int = 64, inner: int = 512
) -> Case:
    """Tables of embeddings, of which each item reads four rows a table, between two MLPs."""

    def make(rng: np.random.Generator) -> Batch:
        numbers = rng.standard_normal((batch, 13), dtype=np.float32)
        clicked = rng.integers(2, size=batch).astype(np.float32)
        return numbers, rng.integers(rows, size=(batch, tables, 4)), clicked

    return Case(
        name="dlrm",
        family="dlrm",
        build=lambda: sequences.DLRM(13, tables, rows, width, inner),
        input_names=("numbers", "categories", "clicked"),
        make_batch=make,
        optimizer=SGD,
    )


def gru(*, batch: int = 32, length: int = 64, features: int = 64, hidden: int = 192) -> Case:
    """Two GRU layers over sequences."""
    return classifier(
        "gru",
        "gru",
        lambda: sequences.GRUClassifier(features, hidden, 2, 10),
        (batch, length, features),
        10,
    )


def vit(*, batch: int = 12, size: int = 32, width: int = 192, layers: int = 3) -> Case:
    """A vision transformer over patches of 4x4 pixels."""
    return classifier(
        "vit",
        "vit",
        lambda: images.ViT(size, 4, width, layers, 4, 10),
        (batch, 3, size, size),
        10,
        optimizer=ADAMW,
    )


def mobilenet(*, batch: int = 16, size: int = 64, width: int = 16) -> Case:
    """Depthwise separable convolutions."""
    return classifier(
        "mobilenet",
        "mobilenet",
        lambda: images.MobileNet(width, 10),
        (batch, 3, size, size),
        10,
    )


def generator(*, batch: int = 32, noise: int = 64, width: int = 64) -> Case:
    """The generator of a GAN: transposed convolutions with batch norm."""

    def make(rng: np.random.Generator) -> Batch:
        image = rng.uniform(-1, 1, (batch, 3, 32, 32)).astype(np.float32)
        return rng.standard_normal((batch, noise), dtype=np.float32), image

    return Case(
        name="generator",
        family="generator",
        build=lambda: images.Generator(noise, width),
        input_names=("noise", "image"),
        make_batch=make,
        optimizer=ADAMW,
    )


def wavenet(
    *, batch: int = 4, length: int = 1024, levels: int = 256, channels: int = 32, layers: int = 8
) -> Case:
    """Dilated causal 1-d convolutions over samples of 256 levels."""

    def make(rng: np.random.Generator) -> Batch:
        samples = rng.integers(levels, size=(batch, length + 1))
        return np.ascontiguousarray(samples[:, :-1]), np.ascontiguousarray(samples[:, 1:])

    return Case(
        name="wavenet",
        family="wavenet",
        build=lambda: sequences.WaveNet(levels, channels, 2 * channels, layers),
        input_names=("samples", "targets"),
        make_batch=make,
        optimizer=ADAMW,
    )


def moe(*, batch: int = 512, features: int = 64, width: int = 128, experts: int = 8) -> Case:
    """Two layers of experts, of which the best two answer."""
    return classifier(
        "moe",
        "moe",
        lambda: sequences.MixtureOfExperts(features, width, 2, experts, 2, 10),
        (batch, features),
        10,
        optimizer=ADAMW,
    )


def _by_name(*cases: Case) -> Mapping[str, Case]:
    return MappingProxyType({case.name: case for case in cases})


UNSEEN: Mapping[str, Case] = _by_name(
    mixer(),
    replace(encoder(), large=True),
    unet(),
    dlrm(),
    gru(),
    vit(),
    replace(mobilenet(), large=True),
    generator(),
    wavenet(),
    moe(),
)
"""What the suite ``unseen`` times, by name."""

SMALL_UNSEEN: Mapping[str, Case] = _by_name(
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
