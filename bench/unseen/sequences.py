"""Networks over sequences and tables that nothing here was tuned for, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bench.nets import Outputs


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
        found = [bag(categories[:, i]) for i, bag in enumerate(self.bags)]
        rows = torch.stack([x, *found], 1)
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

    def forward(self, given: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.stem(given)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        out = self.head(x)
        return F.cross_entropy(out, label), out
