"""Models with several results and losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.book import recipe
from tests.recipes.data import batches, points
from tests.recipes.loops import adamw, sgd
from tests.recipes.sides import Side


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.classes, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        hidden = F.gelu(self.body(x))
        logits, value = self.classes(hidden), self.value(hidden).squeeze(1)
        return F.cross_entropy(logits, y), F.mse_loss(value, x.sum(1)), logits, value


@recipe(tells=["chosen-losses"])
def two_losses(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(TwoHeads(), data[0], adamw)
    for batch in data:
        for result in run.step(batch):
            side.note("result", result)
    side.note_all(run)


@recipe()
def one_of_two_losses(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(TwoHeads(), data, sgd, losses=[1], note_losses=False)


class Unreduced(TwoHeads):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        hidden = F.gelu(self.body(x))
        each = F.cross_entropy(self.classes(hidden), y, reduction="none")
        return each, F.mse_loss(self.value(hidden).squeeze(1), x.sum(1), reduction="none")


def slow_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


@recipe()
def losses_per_sample(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Unreduced(), data, slow_sgd, losses=[0, 1], note_losses=False)


class Uncertainty(TwoHeads):
    """Two losses, each weighted by a variance that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second, logits, _ = super().forward(x, y)
        losses = torch.stack([first, second])
        return ((-self.log_variance).exp() * losses + self.log_variance).sum(), logits


@recipe()
def weights_of_losses_that_are_learnt(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Uncertainty(), data * 2, adamw, note_losses=False)
