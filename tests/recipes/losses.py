"""Losses over pairs, teachers and mixtures; weights under constraints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.recipes.book import recipe
from tests.recipes.data import batches, points
from tests.recipes.loops import Classifier, adamw, sgd
from tests.recipes.sides import Side


class Contrast(nn.Module):
    """Two views of each sample, each the other's label among the batch; a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first, second = F.normalize(self.net(a), dim=1), F.normalize(self.net(b), dim=1)
        logits = first @ second.T * self.scale.exp()
        labels = torch.arange(len(a))
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        return loss, logits


@recipe()
def contrastive_learning(side: Side) -> None:
    x = points(32)["x"]
    data = batches({"a": x, "b": x + 0.1 * torch.randn_like(x)}, 8)
    side.follow(Contrast(), data * 2, sgd)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 4)

    def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
        return F.triplet_margin_loss(self.net(anchor), self.net(near), self.net(far), margin=4.0)


@recipe()
def triplets(side: Side) -> None:
    x = points(32)["x"]
    data = batches({"anchor": x, "near": x + 0.1, "far": x.flip(0)}, 8)
    # Not Adam: the bias cancels in every distance, and its gradient is nothing but rounding.
    side.follow(Siamese(), data * 2, sgd)


class Distilled(nn.Module):
    """A student that follows a teacher without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.student = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            aims = (self.teacher(x) / 2).softmax(1)
        logits = self.student(x)
        soft = F.kl_div((logits / 2).log_softmax(1), aims, reduction="batchmean") * 4
        return soft + 0.5 * F.cross_entropy(logits, y), logits


@recipe()
def distillation(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Distilled(), data * 2, sgd)


class Mixed(Classifier):
    """Mixup: the partner and the share come from the loader."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # two inputs more
        self, x: Tensor, y: Tensor, partner: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        mixed = share[:, None] * x + (1 - share)[:, None] * x[partner]
        logits = self.head(self.body(mixed))
        first = F.cross_entropy(logits, y, reduction="none")
        second = F.cross_entropy(logits, y[partner], reduction="none")
        return (share * first + (1 - share) * second).mean(), logits


@recipe(tells=["unchecked-index"])  # labels of partners, which the model picks
def mixup(side: Side) -> None:
    data = batches(points(32), 8)
    for batch in data:
        batch["partner"], batch["share"] = torch.randperm(8), torch.rand(8)
    side.follow(Mixed(), data * 2, sgd)


class Focal(Classifier):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.body(x))
        each = F.cross_entropy(logits, y, reduction="none", weight=torch.tensor([1.0, 2.0, 0.5]))
        penalty = sum(p.abs().sum() for p in self.head.parameters())
        return ((1 - (-each).exp()) ** 2 * each).mean() + 1e-3 * penalty, logits


@recipe()
def focal_loss_with_a_penalty(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Focal(), data * 2, adamw)


@recipe()
def weight_normalization(side: Side) -> None:
    data = batches(points(32), 8)
    model = Classifier()
    parametrizations.weight_norm(model.head)
    side.follow(model, data * 2, sgd)


@recipe()
def spectral_normalization(side: Side) -> None:
    """The power iteration changes buffers in ``forward``."""
    data = batches(points(32), 8)
    model = Classifier()
    parametrizations.spectral_norm(model.head)
    side.follow(model, data * 2, sgd)


class Mixture(nn.Module):
    """A density of three normal distributions whose place depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 9)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight, mean, scale = self.net(x).chunk(3, dim=1)
        normal = torch.distributions.Normal(mean, F.softplus(scale) + 1e-2)
        return -torch.logsumexp(weight.log_softmax(1) + normal.log_prob(y[:, None]), 1).mean()


@recipe()
def mixture_density(side: Side) -> None:
    data = batches({"x": points(32)["x"], "y": points(32)["x"].sum(1)}, 8)
    side.follow(Mixture(), data * 2, adamw)


class Counted(Classifier):
    """A plain number that ``forward`` counts up, and uses."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.steps += 1
        loss, logits = super().forward(x, y)
        return loss * min(1.0, self.steps / 4), logits


@recipe(refused="frozen-attribute")
def a_warmup_counted_in_forward(side: Side) -> None:
    data = batches(points(32), 8)
    side.follow(Counted(), data, sgd)


class Pretend(nn.Module):
    """A physics-informed net: the derivative of its output by its input is in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t: Tensor) -> Tensor:
        t = t.requires_grad_()
        u = self.net(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return (du + u).square().mean()


@recipe(refused="untraced-function")
def physics_informed(side: Side) -> None:
    t = {"t": torch.linspace(0, 1, 8)[:, None]}
    run = side.train(Pretend(), t, adamw)
    side.note("loss", run.step(t)[0])


class Half(Classifier):
    """Autocast inside ``forward``."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.head(self.body(x))
        return F.cross_entropy(logits.float(), y), logits


@recipe()
def mixed_precision(side: Side) -> None:
    data = batches(points(32), 8)
    run = side.train(Half(), data[0], sgd)
    for batch in data:
        loss, logits = run.step(batch)
        # Each side rounds a sum to bfloat16 once: half a unit in the last of 8 bits, twice.
        side.note("loss", loss, relative=2**-8)
        side.note("logits", logits.float(), relative=2**-7)
    # An update is a tenth of a gradient that is rounded so.
    side.note_all(run, relative=2**-8 / 4)
