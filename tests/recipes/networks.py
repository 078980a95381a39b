"""Networks over graphs, tables and images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.book import recipe
from tests.recipes.data import batches, images
from tests.recipes.loops import adamw, sgd
from tests.recipes.sides import Side


def graph(nodes: int = 10, edges: int = 24) -> dict[str, Tensor]:
    """Nodes with features and classes, and edges between them."""
    generator = torch.Generator().manual_seed(5)
    return {
        "x": torch.randn(nodes, 6, generator=generator),
        "edges": torch.randint(nodes, (2, edges), generator=generator),
        "y": torch.randint(3, (nodes,), generator=generator),
    }


class Convolution(nn.Module):
    """Two layers of messages, summed where they arrive and divided by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def spread(self, x: Tensor, edges: Tensor) -> Tensor:
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        count = x.new_zeros(x.shape[0]).index_add(0, edges[1], x.new_ones(edges.shape[1]))
        return x + total / count.clamp(min=1)[:, None]

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.spread(self.first(x), edges).relu()
        logits = self.spread(self.second(hidden), edges)
        return F.cross_entropy(logits, y), logits


@recipe()
def graph_convolution(side: Side) -> None:
    side.follow(Convolution(), [graph()] * 6, adamw)


class GraphAttention(nn.Module):
    """Attention over the edges that arrive at a node."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.score = nn.Linear(6, 3), nn.Linear(12, 1)

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        start, end = edges
        scores = F.leaky_relu(self.score(torch.cat([x[start], x[end]], 1))).squeeze(1)
        top = x.new_full((x.shape[0],), -torch.inf).scatter_reduce(0, end, scores, "amax")
        weights = (scores - top[end]).exp()
        total = x.new_zeros(x.shape[0]).index_add(0, end, weights)
        shares = weights / total[end]
        out = x.new_zeros(x.shape[0], 3).index_add(0, end, shares[:, None] * self.value(x)[start])
        return F.cross_entropy(out, y), out


@recipe()
def graph_attention(side: Side) -> None:
    side.follow(GraphAttention(), [graph()] * 6, sgd)


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 5), nn.Embedding(30, 5)
        self.bags = nn.EmbeddingBag(15, 5, mode="mean")

    def forward(self, user: Tensor, item: Tensor, tags: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        score = (self.users(user) * (self.items(item) + self.bags(tags))).sum(1)
        return F.binary_cross_entropy_with_logits(score, y), score.sigmoid()


@recipe()
def recommender(side: Side) -> None:
    inputs = {
        "user": torch.randint(20, (16,)),
        "item": torch.randint(30, (16,)),
        "tags": torch.randint(15, (16, 3)),
        "y": (torch.arange(16) % 2).float(),
    }
    side.follow(Factors(), [inputs] * 6, sgd)


class Segmenter(nn.Module):
    """A U-Net with one step down, group norm and a dice loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.SiLU())
        self.up = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 4, 1))
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        side = self.down(x)
        logits = self.head(torch.cat([side, self.up(self.deep(side))], 1)).squeeze(1)
        p = logits.sigmoid()
        dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
        return dice + F.binary_cross_entropy_with_logits(logits, mask), p


@recipe()
def segmentation(side: Side) -> None:
    data = images(16)
    pairs = {"x": data["x"], "mask": (data["x"][:, 0] > 0).float()}
    side.follow(Segmenter(), batches(pairs, 4), adamw)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)),
        )

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(x)
        return F.cross_entropy(logits, y), logits


class Dropped(Normed):
    """Dropout of rate 0: no two sides draw alike, but both have the module."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.drop(self.net(x))
        return F.cross_entropy(logits, y), logits


@recipe()
def evaluation_after_each_epoch(side: Side) -> None:
    """With running statistics, in batches of another size and a smaller last one."""
    data, held = batches(images(24), 8), images(11, seed=2)
    run = side.train(Dropped(), data[0], sgd)
    for _ in range(3):
        for batch in data:
            run.step(batch)
        for part in (slice(0, 4), slice(4, 8), slice(8, 11)):
            loss, logits = run.evaluate({name: t[part] for name, t in held.items()})
            side.note("loss", loss)
            side.note("logits", logits)
    side.note_all(run)


@recipe()
def batch_norm_and_its_statistics(side: Side) -> None:
    data = batches(images(24), 8)
    side.follow(Normed(), data * 2, sgd)
