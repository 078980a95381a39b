"""A case: a model at one size with its batches and its optimizer.

It holds everything a contender needs to build the very same training step: the model's weights come
from one seed, the batches from another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

Batch = tuple[np.ndarray, ...]
"""Inputs of one step, in the order of ``forward``."""

MakeBatch = Callable[[np.random.Generator], Batch]

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


def optimizer_of(library: Any, settings: Sgd | AdamW, model: nn.Module) -> torch.optim.Optimizer:
    """A library's optimizer with the settings of a case, all else at its default.

    Args:
        library: ``torch.optim``, or ``samba.optim``.
        settings: The settings.
        model: The model whose parameters it updates.
    """
    kind = library.SGD if isinstance(settings, Sgd) else library.AdamW
    return kind(model.parameters(), **asdict(settings))


SGD = Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4)
ADAMW = AdamW(lr=3e-4, betas=(0.9, 0.997), eps=1e-8, weight_decay=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model at one size.

    Args:
        name: As given to ``--model``.
        family: Picks the hand-written jax function of the same mathematics; the name if empty.
        build: Makes the model with torch's current random state.
        make_batch: Makes one batch from a random generator.
        input_names: Names of the inputs, in the order of ``forward``.
        optimizer: Its settings.
        heads: Attention heads, where there are any.
        optim_level: How this project cuts it into sections.
        loss_rtol: How far the first losses of contenders may be apart. Float32 differs by
            rounding only: GPT's four first losses by about 1e-6. Bfloat16 keeps 8 bits.
        large: Whether this project has its threads share one arena
            (``emulator.memory.allocator.share_one_arena``); peers with our allocator settings do as
            well.
    """

    name: str
    family: str = ""
    build: Callable[[], nn.Module]
    make_batch: MakeBatch
    input_names: tuple[str, ...] = ("image", "label")
    optimizer: Sgd | AdamW = SGD
    heads: int = 0
    optim_level: str = "o3"
    loss_rtol: float = 1e-3
    large: bool = False

    def __post_init__(self) -> None:
        if not self.family:
            object.__setattr__(self, "family", self.name)

    def model(self) -> nn.Module:
        """Return the model with the weights that every contender starts from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()

    def batches(self) -> list[Batch]:
        """Return the batches that every contender cycles through."""
        rng = np.random.default_rng(0)
        return [self.make_batch(rng) for _ in range(BATCHES)]


def by_name(*cases: Case) -> Mapping[str, Case]:
    """Cases by name."""
    return MappingProxyType({case.name: case for case in cases})


def classified(shape: tuple[int, ...], classes: int) -> MakeBatch:
    """Return a function that makes batches of random inputs with class labels.

    Args:
        shape: Of an input, float32, the batch size first.
        classes: The labels, one an item, int64, are below it.
    """

    def make(rng: np.random.Generator) -> Batch:
        return rng.standard_normal(shape, dtype=np.float32), rng.integers(classes, size=shape[0])

    return make


def next_tokens(batch: int, length: int, vocabulary: int) -> MakeBatch:
    """Return a function that makes batches: token ids, int64, and for each the one after it."""

    def make(rng: np.random.Generator) -> Batch:
        tokens = rng.integers(vocabulary, size=(batch, length + 1))
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

    return make
