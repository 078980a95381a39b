"""Small models of the kinds people train, with inputs: what the main path must carry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Two layers, layer norm, dropout at rate 0, cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 5)
        self.drop = nn.Dropout(0.0)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.fc2(self.drop(torch.tanh(self.norm(self.fc1(x)))))
        return self.criterion(out, y), out


class LeNet(nn.Module):
    """Two convolutions with pooling, three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 25, 40), nn.Linear(40, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.pool(F.relu(self.conv1(x)))
        out = self.pool(self.conv2(out).relu()).flatten(1)
        out = self.fc3(F.relu(self.fc2(F.relu(self.fc1(out)))))
        return F.cross_entropy(out, y), out


class BasicBlock(nn.Module):
    """A residual block with batch norm and an in-place addition."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.short = nn.Sequential()
        if stride != 1 or channels != out:
            self.short = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.short(x)
        return F.relu(out)


class ResNet(nn.Module):
    """A short residual network with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2))
        self.head = nn.Linear(16, 7)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.blocks(F.relu(self.bn(self.conv(x))))
        out = self.head(torch.flatten(self.pool(out), 1))
        return out, F.cross_entropy(out, y)


class Recurrent(nn.Module):
    """An LSTM whose states are made in forward, and a squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(6, 10, num_layers=2), nn.Linear(10, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros(2, x.shape[1], 10)
        out, _ = self.lstm(x, (h, torch.zeros_like(h)))
        out = self.fc(out[-1])
        return F.mse_loss(out, y), out


class Attention(nn.Module):
    """Multi-head self-attention in the way small GPTs write it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).split(d, dim=2)
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.proj(out.transpose(1, 2).contiguous().view(b, t, d))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.ln1(x), mask)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Tied embeddings, two causal blocks, cross entropy with ignored positions."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(30, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(16, 4, True) for _ in range(2)])
        self.ln = nn.LayerNorm(16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        loss = F.cross_entropy(logits.view(-1, 30), labels.view(-1), ignore_index=-100)
        return loss, logits


class BERT(nn.Module):
    """Token, position and type embeddings, a padding mask, a post-norm encoder layer, a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos, self.seg = (
            nn.Embedding(20, 16, padding_idx=0),
            nn.Embedding(6, 16),
            nn.Embedding(2, 16),
        )
        self.layer = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.0, activation="gelu", batch_first=True
        )
        self.pool, self.cls = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tok(ids) + self.pos(torch.arange(6)) + self.seg(types)
        x = self.layer(x, src_key_padding_mask=mask)
        out = self.cls(torch.tanh(self.pool(x[:, 0])))
        return F.cross_entropy(out, y), out


class ViT(nn.Module):
    """Patch embedding, class token, one block."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        self.pos = nn.Parameter(torch.randn(1, 5, 16) * 0.1)
        self.block, self.head = Block(16, 2, False), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        out = self.head(self.block(x)[:, 0])
        return F.cross_entropy(out, y), out


class ManualAttention(nn.Module):
    """Attention written out, with a mask buffer, masked_fill and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.mask: Tensor
        self.register_buffer("mask", torch.tril(torch.ones(5, 5)).bool())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        scores = scores.masked_fill(~self.mask, float("-inf"))
        return (F.softmax(scores, dim=-1) @ v).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its inputs, and the index of its loss among the outputs."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    loss: int = 0


def _labels() -> Tensor:
    labels = torch.randint(0, 30, (2, 8))
    labels[0, :3] = -100
    return labels


class Scaled(nn.Module):
    """Convolutions whose results meet tensors of fewer axes, which line up at the end.

    Every axis has the same size: lined up wrongly, shapes would still fit.
    """

    def __init__(self) -> None:
        super().__init__()
        # Batch norm takes a bias before it away again: its gradient is rounding only.
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.channel = nn.Parameter(torch.randn(4, 1, 1))
        self.row = nn.Parameter(torch.randn(4))
        self.place = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.norm1(self.conv1(x))) * self.channel + self.row
        y = self.channel - self.norm2(self.conv2(y))
        return (torch.sigmoid(y * self.place) * x).sin().sum()


ZOO: dict[str, Case] = {
    "mlp": Case(model=MLP, inputs=lambda: (torch.randn(4, 12), torch.randint(5, (4,)))),
    "lenet": Case(model=LeNet, inputs=lambda: (torch.randn(3, 1, 28, 28), torch.randint(10, (3,)))),
    "resnet": Case(
        model=ResNet, inputs=lambda: (torch.randn(4, 3, 8, 8), torch.randint(7, (4,))), loss=1
    ),
    "scaled": Case(model=Scaled, inputs=lambda: (torch.randn(4, 4, 4, 4),)),
    "lstm": Case(model=Recurrent, inputs=lambda: (torch.randn(5, 3, 6), torch.randn(3, 4))),
    "gpt": Case(model=GPT, inputs=lambda: (torch.randint(0, 30, (2, 8)), _labels())),
    "bert": Case(
        model=BERT,
        inputs=lambda: (
            torch.tensor([[3, 4, 5, 6, 0, 0], [7, 8, 9, 1, 2, 3]]),
            torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]),
            torch.tensor([[False] * 4 + [True] * 2, [False] * 6]),
            torch.randint(3, (2,)),
        ),
    ),
    "vit": Case(model=ViT, inputs=lambda: (torch.randn(2, 3, 8, 8), torch.randint(4, (2,)))),
    "attention": Case(model=ManualAttention, inputs=lambda: (torch.randn(2, 5, 8),)),
}
