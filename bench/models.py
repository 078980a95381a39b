"""The cases that are timed, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from bench import nets
from bench.case import ADAMW, Case, Sgd, by_name, classified, next_tokens
from bench.ordinary import ORDINARY, SMALL_ORDINARY
from bench.unseen import SMALL_UNSEEN, UNSEEN


def logreg(*, batch: int = 1) -> Case:
    """Logistic regression on images of 784 pixels."""
    return Case(
        name=f"logreg-{batch}",
        family="logreg",
        build=lambda: nets.LogReg(784, 10),
        make_batch=classified((batch, 784), 10),
        optimizer=Sgd(lr=0.0015, momentum=0.9, weight_decay=3e-4),
    )


def res_ffn(*, batch: int = 256, width: int = 1024, classes: int = 1000) -> Case:
    """The residual feed forward network."""
    return Case(
        name="res_ffn",
        build=lambda: nets.ResFFN(width, width, classes),
        make_batch=classified((batch, width), classes),
    )


def lenet(*, name: str = "", batch: int = 32) -> Case:
    """LeNet on 28x28 images."""
    return Case(
        name=name or f"lenet-{batch}",
        family="lenet",
        build=nets.LeNet,
        make_batch=classified((batch, 1, 28, 28), 10),
    )


def resnet18(*, batch: int = 32, width: int = 64) -> Case:
    """ResNet-18 on 32x32 images."""
    return Case(
        name="resnet18",
        build=lambda: nets.ResNet18(width, 10),
        make_batch=classified((batch, 3, 32, 32), 10),
    )


def lstm(*, batch: int = 32, length: int = 64, features: int = 128, hidden: int = 256) -> Case:
    """An LSTM layer over sequences."""
    return Case(
        name="lstm",
        build=lambda: nets.LSTMClassifier(features, hidden, 10),
        make_batch=classified((batch, length, features), 10),
    )


def mlp_bf16(*, batch: int = 256, width: int = 1024, layers: int = 3) -> Case:
    """A bfloat16 MLP."""
    return Case(
        name="mlp_bf16",
        build=lambda: nets.BF16MLP(width, layers, 10),
        make_batch=classified((batch, width), 10),
        loss_rtol=2e-2,
    )


def chain_o0(
    *,
    name: str = "chain_o0",
    batch: int = 32,
    width: int = 128,
    layers: int = 24,
    optim_level: str = "o0",
) -> Case:
    """Equal layers one after the other; a hundred sections, one an operation, unless told."""
    return Case(
        name=name,
        family="chain",
        build=lambda: nets.Chain(width, layers),
        make_batch=classified((batch, width), width),
        optim_level=optim_level,
    )


def gpt(
    *,
    name: str = "gpt",
    batch: int = 4,
    length: int = 256,
    vocabulary: int = 8192,
    layers: int = 4,
    heads: int = 6,
    width: int = 384,
    tied: bool = False,
) -> Case:
    """A GPT; the small one unless told otherwise."""
    return Case(
        name=name,
        family="gpt",
        build=lambda: nets.GPT(vocabulary, length, layers, heads, width, tied=tied),
        input_names=("token_ids", "targets"),
        make_batch=next_tokens(batch, length, vocabulary),
        optimizer=ADAMW,
        heads=heads,
    )


def gpt2() -> Case:
    """The shape of GPT-2: 124 million parameters."""
    return gpt(
        name="gpt2",
        batch=1,
        length=128,
        vocabulary=50257,
        layers=12,
        heads=12,
        width=768,
        tied=True,
    )


def layers(count: int) -> Case:
    """So many equal transformer layers, to see how compile time grows."""
    return gpt(
        name=f"layers-{count}",
        batch=1,
        length=64,
        vocabulary=512,
        layers=count,
        heads=4,
        width=256,
    )


CASES: Mapping[str, Case] = by_name(
    logreg(batch=1),
    logreg(batch=64),
    res_ffn(),
    lenet(batch=1),
    lenet(batch=32),
    lenet(batch=256),
    replace(resnet18(), large=True),
    replace(gpt(), large=True),
    replace(gpt2(), large=True),
    lstm(),
    mlp_bf16(),
    chain_o0(),
)
"""What this project's speed was worked on, by name."""

STEP_SUITES: Mapping[str, Mapping[str, Case]] = MappingProxyType(
    {"steps": CASES, "unseen": UNSEEN, "ordinary": ORDINARY}
)
"""The suites that time steps, each with its cases by name."""

TIMED: Mapping[str, Case] = MappingProxyType({**CASES, **UNSEEN, **ORDINARY})
"""What ``python -m bench run`` times, by name."""

SMALL: Mapping[str, Case] = by_name(
    logreg(batch=1),
    res_ffn(batch=16, width=64, classes=30),
    lenet(name="lenet", batch=4),
    resnet18(batch=8, width=4),
    gpt(batch=2, length=16, vocabulary=64, layers=2, heads=2, width=32),
    gpt(name="gpt2", batch=1, length=8, vocabulary=64, layers=3, heads=2, width=32, tied=True),
    lstm(batch=4, length=6, features=8, hidden=16),
    mlp_bf16(batch=8, width=32),
    chain_o0(batch=4, width=16),
    *SMALL_UNSEEN.values(),
    *SMALL_ORDINARY.values(),
)
"""Every family of cases, as small as its mathematics allows: for tests and for exact counts."""

STARTED_ALONE: Mapping[str, Case] = by_name(
    layers(12),
    layers(48),
    Case(
        name="qwen3_next",
        build=lambda: nets.Qwen3Next(99, 4, 32),
        make_batch=next_tokens(2, 8, 99),
        input_names=("token_ids", "targets"),
        optimizer=ADAMW,
    ),
)
"""For the time to a first loss alone: how it grows with equal layers, and a model of others."""

HOST: Mapping[str, Case] = by_name(
    *(
        chain_o0(name=f"host-{n}", batch=1, width=4, layers=n, optim_level="o3")
        for n in (1, 4, 8, 16, 32)
    )
)
"""Programs of about 10 to 200 regions that compute next to nothing: for host time alone."""

DEEP = "layers-48"
"""A case with so many equal layers that its full schedule is several executables."""

OVERLAP: Mapping[str, Case] = by_name(
    # Each layer is as large as a bucket of gradients likes it.
    chain_o0(name="deep_mlp", batch=256, width=1024, layers=12, optim_level="o3"),
    gpt(),
)
"""Programs with several buckets of gradients: for reductions beside the backward pass."""

ALL: Mapping[str, Case] = MappingProxyType({**TIMED, **STARTED_ALONE, **HOST, **OVERLAP})
"""Every case that a worker can be asked for."""


def suite_of(case: str) -> str:
    """The suite that times the steps of a case.

    Example:
        >>> suite_of("moe")
        'unseen'
    """
    return next(suite for suite, cases in STEP_SUITES.items() if case in cases)
