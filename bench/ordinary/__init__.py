"""Ordinary models with their dropouts, and long chains of cheap steps.

What XLA fuses decides how fast these are: each value that several others read can be made once, or
in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from bench.case import ADAMW, Batch, Case, classifier
from bench.ordinary import networks

MASKED = 0.3
"""How far the first losses of contenders may be apart that draw masks of their own: more than
torch's are with other seeds, as a test shows. The tests compare the same networks without dropout
at the tolerance of any other case."""


def _tolerance(dropout: float) -> float:
    return MASKED if dropout else 1e-3


def post_norm(
    *,
    name: str,
    dropout: float,
    batch: int = 4,
    length: int = 24,
    width: int = 64,
    layers: int = 6,
) -> Case:
    """Torch's transformer encoder as it comes, with dropout or without."""
    return classifier(
        name,
        "post_norm",
        lambda: networks.PostNorm(width, 4, layers, 10, dropout),
        (batch, length, width),
        10,
        loss_rtol=_tolerance(dropout),
    )


def gpt2_dropout(
    *,
    batch: int = 8,
    length: int = 128,
    vocabulary: int = 2000,
    layers: int = 4,
    width: int = 128,
    dropout: float = 0.1,
) -> Case:
    """A small GPT-2 with a dropout of 0.1 everywhere."""

    def make(rng: np.random.Generator) -> Batch:
        tokens = rng.integers(vocabulary, size=(batch, length + 1))
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

    return Case(
        name="gpt2_dropout",
        family="gpt2_dropout",
        build=lambda: networks.GPT2(vocabulary, length, layers, 4, width, dropout),
        input_names=("token_ids", "targets"),
        make_batch=make,
        optimizer=ADAMW,
        loss_rtol=_tolerance(dropout),
    )


def bert(
    *,
    batch: int = 8,
    length: int = 64,
    vocabulary: int = 3000,
    layers: int = 4,
    width: int = 128,
    dropout: float = 0.1,
) -> Case:
    """A small BERT that learns masked words, one of six, in sentences of different lengths."""

    def make(rng: np.random.Generator) -> Batch:
        tokens = rng.integers(4, vocabulary, size=(batch, length))
        asked = rng.random((batch, length)) < 1 / 6
        asked[:, 0] = True
        lengths = rng.integers(length // 2, length + 1, size=(batch, 1))
        seen = np.arange(length) < lengths
        kinds = np.repeat(np.arange(length)[None] * 2 // length, batch, 0)
        given = np.where(asked, 3, tokens)
        return given, kinds, seen, np.where(asked & seen, tokens, -100)

    return Case(
        name="bert",
        family="bert",
        build=lambda: networks.BERT(vocabulary, length, layers, 4, width, dropout),
        input_names=("token_ids", "token_types", "attention_mask", "targets"),
        make_batch=make,
        optimizer=ADAMW,
        loss_rtol=_tolerance(dropout),
    )


def vit_drop_path(
    *,
    batch: int = 12,
    size: int = 32,
    width: int = 128,
    layers: int = 4,
    dropout: float = 0.1,
) -> Case:
    """A vision transformer with dropout, and drop path up to 0.2."""
    return classifier(
        "vit_drop_path",
        "vit_drop_path",
        lambda: networks.DropPathViT(size, 4, width, layers, 4, 10, dropout, 2 * dropout),
        (batch, 3, size, size),
        10,
        optimizer=ADAMW,
        loss_rtol=_tolerance(dropout),
    )


def mlp_dropout(
    *, batch: int = 64, width: int = 128, layers: int = 20, dropout: float = 0.1
) -> Case:
    """Twenty layers with batch norm and dropout."""
    return classifier(
        "mlp_dropout",
        "mlp_dropout",
        lambda: networks.DeepMLP(width, layers, 10, dropout),
        (batch, width),
        10,
        loss_rtol=_tolerance(dropout),
    )


def chain(steps: int, *, name: str = "", batch: int = 4, width: int = 8) -> Case:
    """So many steps of a chain over a few numbers."""
    return classifier(
        name or f"steps-{steps}",
        "chain_of_steps",
        lambda: networks.Steps(width, steps),
        (batch, width),
        10,
    )


def _by_name(*cases: Case) -> Mapping[str, Case]:
    return MappingProxyType({case.name: case for case in cases})


ORDINARY: Mapping[str, Case] = _by_name(
    post_norm(name="post_norm_dropout", dropout=0.1),
    post_norm(name="post_norm", dropout=0.0),
    gpt2_dropout(),
    bert(),
    vit_drop_path(),
    mlp_dropout(),
    chain(50),
    chain(200),
    chain(1000),
)
"""What the suite ``ordinary`` times, by name."""

SMALL_ORDINARY: Mapping[str, Case] = _by_name(
    post_norm(name="post_norm_dropout", dropout=0.1, batch=2, length=5, width=16, layers=2),
    post_norm(name="post_norm", dropout=0.0, batch=2, length=5, width=16, layers=2),
    gpt2_dropout(batch=2, length=8, vocabulary=40, layers=1, width=16),
    bert(batch=2, length=8, vocabulary=40, layers=1, width=16),
    vit_drop_path(batch=2, size=8, width=16, layers=2),
    mlp_dropout(batch=8, width=16, layers=3),
    chain(6, name="steps"),
)
"""The same, as small as their mathematics allows."""
