"""Networks over images that nothing here was tuned for, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

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
