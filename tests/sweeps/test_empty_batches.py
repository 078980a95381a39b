"""Whole models trained on batches of nothing, as by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome, Tally

Z = torch.zeros


class _Net(nn.Module):
    """A model, and the sum of what it makes with its weights, which have a gradient of their own.

    Args:
        model: The model.
        compute: What is asked of it; it is called if nothing else is said.
    """

    def __init__(self, model: nn.Module, compute: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.model, self.compute = model, compute

    def _loss(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.model(*inputs) if self.compute is None else self.compute(self.model, *inputs)
        y = y[0] if isinstance(y, tuple) else y
        decay = sum((w.square().sum() for w in self.model.parameters()), Z(()))
        return y.sum() + 0.1 * decay, y


class _One(_Net):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._loss(x)


class _Two(_Net):
    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._loss(x, t)


Case = tuple[Callable[[], nn.Module], Mapping[str, torch.Tensor]]


def _one(make: Callable[[], nn.Module], *shape: int, compute: Any = None) -> Case:
    return lambda: _One(make(), compute), {"x": Z(shape)}


def _loss(loss: nn.Module, target: torch.Tensor, *shape: int) -> Case:
    """A loss of a layer's results, and that of nothing: the mean is NaN, as are all gradients."""
    features = shape[1]
    return (
        lambda: _Two(nn.Linear(3, features), lambda m, x, t: loss(m(x).reshape(shape), t)),
        {"x": Z(0, 3), "t": target},
    )


def _convolutions() -> dict[str, Case]:
    """Every kind of convolution, with groups, strides and dilation."""
    cases: dict[str, Case] = {}
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    back = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    for n, (conv, turned) in enumerate(zip(kinds, back, strict=True), start=1):
        shape = (0, 4, *(6,) * n)
        for name, options in {
            "plain": {},
            "padded": {"padding": 1, "bias": False},
            "strided": {"stride": 2, "groups": 2},
            "dilated": {"dilation": 2, "padding": 2},
            "depthwise": {"groups": 4, "padding": 1},
        }.items():
            for kind in (conv, turned):
                cases[f"{kind.__name__} {name}"] = _one(
                    lambda kind=kind, options=options: kind(4, 8, 3, **options), *shape
                )
    cases["Conv2d same"] = _one(lambda: nn.Conv2d(2, 3, 3, padding="same"), 0, 2, 4, 4)
    return cases


CASES: Mapping[str, Case] = MappingProxyType(
    {
        **_convolutions(),
        "linear": _one(lambda: nn.Linear(3, 2), 0, 3),
        "mlp": _one(lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), 0, 3),
        "rows of nothing": _one(lambda: nn.Linear(3, 2), 2, 0, 3),
        "no features": _one(lambda: nn.Linear(3, 2), 0, 5, 3),
        "batch norm": _one(lambda: nn.BatchNorm1d(3), 0, 3),
        "batch norm 2d": _one(lambda: nn.BatchNorm2d(3), 0, 3, 4, 4),
        "batch norm of one": _one(lambda: nn.BatchNorm1d(3), 1, 3),
        "batch norm eval": _one(lambda: nn.BatchNorm1d(3).eval(), 0, 3),
        "convnet": _one(
            lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()), 0, 1, 6, 6
        ),
        "lenet": _one(
            lambda: nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
            ),
            *(0, 1, 8, 8),
        ),
        "layer norm": _one(lambda: nn.LayerNorm(3), 0, 3),
        "rms norm": _one(lambda: nn.RMSNorm(3), 0, 3),
        "group norm": _one(lambda: nn.GroupNorm(2, 4), 0, 4, 3),
        "instance norm": _one(lambda: nn.InstanceNorm2d(3, affine=True), 0, 3, 4, 4),
        "attention": _one(
            lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            *(0, 5, 8),
            compute=lambda m, x: m(x, x, x, need_weights=False),
        ),
        "attention over nothing": _one(
            lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            *(2, 0, 8),
            compute=lambda m, x: m(x, x, x, need_weights=False),
        ),
        "attention weights": _one(
            lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            *(0, 5, 8),
            compute=lambda m, x: m(x, x, x),
        ),
        "encoder": _one(
            lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 0, 5, 8
        ),
        "decoder": _one(
            lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
            *(0, 5, 8),
            compute=lambda m, x: m(x, x),
        ),
        "rnn": _one(lambda: nn.RNN(3, 4), 5, 0, 3),
        "lstm": _one(lambda: nn.LSTM(3, 4, batch_first=True), 0, 5, 3),
        "lstm both ways": _one(lambda: nn.LSTM(3, 4, 2, bidirectional=True), 5, 0, 3),
        "lstm of no steps": _one(lambda: nn.LSTM(3, 4), 0, 2, 3),
        "gru": _one(lambda: nn.GRU(3, 4, batch_first=True), 0, 5, 3),
        "lstm cell": _one(lambda: nn.LSTMCell(3, 4), 0, 3),
        "gru cell": _one(lambda: nn.GRUCell(3, 4), 0, 3),
        "bilinear": (lambda: _Two(nn.Bilinear(3, 4, 2)), {"x": Z(0, 3), "t": Z(0, 4)}),
        "max pool": _one(lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2)), 0, 1, 4, 4),
        "average pool": _one(
            lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d(2)), 0, 1, 4, 4
        ),
        "adaptive pool": _one(
            lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(2)), 0, 1, 4, 4
        ),
        "adaptive max": _one(
            lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveMaxPool2d(2)), 0, 1, 4, 4
        ),
        "lp pool": _one(lambda: nn.Sequential(nn.Conv1d(1, 2, 1), nn.LPPool1d(2, 2)), 0, 1, 4),
        "upsample": _one(
            lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2)), 0, 1, 4, 4
        ),
        "bilinear upsample": _one(
            lambda: nn.Sequential(
                nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear")
            ),
            *(0, 1, 4, 4),
        ),
        "reflect": _one(
            lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReflectionPad2d(1)), 0, 1, 4, 4
        ),
        "embedding": (lambda: _One(nn.Embedding(5, 3)), {"x": Z(0, dtype=torch.long)}),
        "embedding rows": (lambda: _One(nn.Embedding(5, 3)), {"x": Z(0, 4, dtype=torch.long)}),
        "bag": (lambda: _One(nn.EmbeddingBag(5, 3)), {"x": Z(0, 4, dtype=torch.long)}),
        "bag sum": (
            lambda: _One(nn.EmbeddingBag(5, 3, mode="sum")), {"x": Z(2, 0, dtype=torch.long)}
        ),
        "bag max": (
            lambda: _One(nn.EmbeddingBag(5, 3, mode="max")), {"x": Z(0, 4, dtype=torch.long)}
        ),
        "sort": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).sort(1)),
        "sort rows": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).sort(0)),
        "topk": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).topk(2, 1)),
        "topk rows": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).topk(0, 0)),
        "too few": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).topk(1, 0)),
        "argmax": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).argmax(1)),
        "argmax of nothing": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x) + m(x).argmax(0)
        ),
        "argmax of nothing at all": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x) + m(x).argmax()
        ),
        "max of nothing": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).max()),
        "max of no row": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).max(0)),
        "amax of no row": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).amax(0)),
        "max of rows": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).max(1)),
        "median of nothing": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).median()
        ),
        "mean of nothing": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).mean()),
        "mean of no row": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).mean(0)),
        "sum of no row": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).sum(0)),
        "prod of no row": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).prod(0)),
        "var of no row": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).var(0)),
        "std of one row": _one(lambda: nn.Linear(3, 4), 1, 3, compute=lambda m, x: m(x).std(0)),
        "norms": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).norm(dim=0)),
        "norm of nothing": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).norm()),
        "logsumexp of no row": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).logsumexp(0)
        ),
        "softmax": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).softmax(0)),
        "cumsum": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).cumsum(0)),
        "cat": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: torch.cat([m(x), m(x)])),
        "product with nothing": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x).T @ m(x)
        ),
        "product": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: m(x) @ m(x).T),
        "dropout": _one(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0)), 0, 3),
        "pick no rows": (
            lambda: _Two(nn.Linear(3, 4), lambda m, x, t: m(x)[t]),
            {"x": Z(2, 3), "t": Z(0, dtype=torch.long)},
        ),
        "add to no rows": (
            lambda: _Two(nn.Linear(3, 4), lambda m, x, t: m(x).index_add(0, t, m(x)[:0])),
            {"x": Z(2, 3), "t": Z(0, dtype=torch.long)},
        ),
        "cross entropy": _loss(nn.CrossEntropyLoss(), Z(0, dtype=torch.long), 0, 4),
        "cross entropy sum": _loss(
            nn.CrossEntropyLoss(reduction="sum"), Z(0, dtype=torch.long), 0, 4
        ),
        "cross entropy each": _loss(
            nn.CrossEntropyLoss(reduction="none"), Z(0, dtype=torch.long), 0, 4
        ),
        "cross entropy smoothed": _loss(
            nn.CrossEntropyLoss(label_smoothing=0.1), Z(0, dtype=torch.long), 0, 4
        ),
        "cross entropy of classes": _loss(nn.CrossEntropyLoss(), Z(0, 4), 0, 4),
        "mse": _loss(nn.MSELoss(), Z(0, 4), 0, 4),
        "l1": _loss(nn.L1Loss(), Z(0, 4), 0, 4),
        "huber": _loss(nn.HuberLoss(), Z(0, 4), 0, 4),
        "smooth l1": _loss(nn.SmoothL1Loss(), Z(0, 4), 0, 4),
        "bce with logits": _loss(nn.BCEWithLogitsLoss(), Z(0, 4), 0, 4),
        "kl": _loss(nn.KLDivLoss(reduction="batchmean"), Z(0, 4), 0, 4),
        "kl mean": _loss(nn.KLDivLoss(reduction="mean"), Z(0, 4), 0, 4),
        "nll": _loss(nn.NLLLoss(), Z(0, dtype=torch.long), 0, 4),
        "poisson": _loss(nn.PoissonNLLLoss(), Z(0, 4), 0, 4),
        "soft margin": _loss(nn.SoftMarginLoss(), Z(0, 4), 0, 4),
        "multi label soft": _loss(nn.MultiLabelSoftMarginLoss(), Z(0, 4), 0, 4),
        "hinge": _loss(nn.HingeEmbeddingLoss(), Z(0, 4), 0, 4),
        "cosine": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: F.cosine_similarity(m(x), m(x) + 1)
        ),
        "triplet": _one(
            lambda: nn.Linear(3, 4),
            *(0, 3),
            compute=lambda m, x: F.triplet_margin_loss(m(x), m(x) + 1, m(x) - 1),
        ),
        "pairwise": _one(
            lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: F.pairwise_distance(m(x), m(x) + 1)
        ),
        "cdist": _one(lambda: nn.Linear(3, 4), 0, 3, compute=lambda m, x: torch.cdist(m(x), m(x))),
    }
)  # fmt: skip
"""Models with their inputs, by name.

Three are left out for torch's own defects at no images: the margin losses of several classes return
memory as they find it, and the gradient of a pixel shuffle has a shape that torch itself refuses.
Rows of docs/deviations.md say what the device does.
"""


def _sweep(names: list[str], folder: Path, tally: Tally) -> None:
    for name in names:
        make, inputs = CASES[name]
        outcome, text = train_both(make, inputs, folder, name=name.replace(" ", "_"))
        # Nothing here is refused by name: an error is torch's as well, or a defect.
        tally.add(name, Outcome.SILENT if outcome is Outcome.NAMED else outcome, text)


SLICE = ["Conv2d strided", "gru"]


def test_some_models(tmp_path: Path) -> None:
    tally = Tally("empty batches, a slice")
    _sweep(SLICE, tmp_path, tally)
    tally.close(at_least=len(SLICE))


# Torch warns of the variance of one number, which it then computes as NaN.
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
@pytest.mark.slow
def test_all_models(tmp_path: Path) -> None:
    tally = Tally("empty batches")
    _sweep(list(CASES), tmp_path, tally)
    tally.close(at_least=100)
