"""The networks that are timed, in plain torch."""

from __future__ import annotations

import importlib
import os

import torch
import torch.nn.functional as F
from torch import nn

Outputs = tuple[torch.Tensor, ...]
"""The loss first, then what the loss was computed from."""


class LogReg(nn.Module):
    """One linear layer without bias."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lin_layer = nn.Linear(features, classes, bias=False)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
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

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
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

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
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
    """A decoder-only transformer with a mean loss over all tokens.

    ``tied`` makes the embedding the weight of the last layer too, as in GPT-2.
    """

    def __init__(
        self, vocabulary: int, length: int, layers: int, heads: int, width: int, *, tied: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        for weight in (self.tokens.weight, self.positions.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, token_ids: torch.Tensor, targets: torch.Tensor) -> Outputs:
        x = self.tokens(token_ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class Qwen3Next(nn.Module):
    """A small Qwen3-Next of ``transformers``: three layers of linear attention for one of full.

    It is here for what its implementation does: chunks of 64 tokens one after the other, and
    experts that are chosen by their tokens.
    """

    def __init__(self, vocabulary: int, layers: int, width: int) -> None:
        super().__init__()
        os.environ["HF_HUB_OFFLINE"] = "1"
        transformers = importlib.import_module("transformers")  # an extra: for this case alone
        transformers.logging.set_verbosity_error()
        settings = {
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": width // 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": width // 4,
            "linear_value_head_dim": width // 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": width // 2,
            "shared_expert_intermediate_size": width // 2,
        }
        cls = transformers.Qwen3NextForCausalLM
        self.model = cls(cls.config_class(**settings))

    def forward(self, token_ids: torch.Tensor, targets: torch.Tensor) -> Outputs:
        logits = self.model(input_ids=token_ids, use_cache=False)["logits"]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a bridge, as in :class:`ResNet18`."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.bridge = None
        if stride != 1 or channels != out:
            self.bridge = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.bridge is None else self.bridge(x)))


class ResNet18(nn.Module):
    """ResNet-18 with the 3x3 stem that 32x32 images call for."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for stage in range(4):
            out = width << stage
            blocks += [
                BasicBlock(channels, out, 1 if stage == 0 else 2),
                BasicBlock(out, out, 1),
            ]
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = self.blocks(F.relu(self.norm(self.stem(image))))
        out = self.head(x.mean((2, 3)))
        return F.cross_entropy(out, label), out


class LSTMClassifier(nn.Module):
    """One LSTM layer; its last output is classified."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: torch.Tensor, label: torch.Tensor) -> Outputs:
        states, _ = self.lstm(sequence)
        out = self.head(states[:, -1])
        return F.cross_entropy(out, label), out


class BF16MLP(nn.Module):
    """Linear layers in bfloat16 with ReLU between them; the loss is taken in float32."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)
        self.to(torch.bfloat16)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = image.to(torch.bfloat16)
        for layer in self.layers:
            x = F.relu(layer(x))
        out = self.head(x).float()
        return F.cross_entropy(out, label), out


class Chain(nn.Module):
    """Linear layers between tanhs: with 24 of them and SGD, a hundred sections at ``o0``."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> Outputs:
        x = torch.tanh(image)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return F.cross_entropy(x, label), x
