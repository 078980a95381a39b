"""Generative models: autoencoders, adversaries, diffusion, flows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recipes.book import recipe
from tests.recipes.data import batches, images, points
from tests.recipes.loops import adamw, sgd
from tests.recipes.sides import Side


class Variational(nn.Module):
    """The noise comes from the loader, so that both sides draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        out = self.decoder(mean + noise * (log_variance / 2).exp())
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(out, x) + 0.1 * kl, out


@recipe()
def variational_autoencoder(side: Side) -> None:
    data = batches({"x": points(32)["x"], "noise": torch.randn(32, 4)}, 8)
    side.follow(Variational(), data * 2, adamw)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 6))

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


class Game(nn.Module):
    """Generator and discriminator with both losses, each blind to the other's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = Generator()
        self.judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        fake = self.generator(z)
        real, judged = self.judge(x), self.judge(fake.detach())
        judge = F.softplus(-real).mean() + F.softplus(judged).mean()
        frozen = {name: p.detach() for name, p in self.judge.named_parameters()}
        fooled = torch.func.functional_call(self.judge, frozen, (fake,))
        return judge, F.softplus(-fooled).mean()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.999))


@recipe(tells=["chosen-losses"])
def adversaries_in_one_step(side: Side) -> None:
    data = batches({"x": points(32)["x"], "z": torch.randn(32, 4)}, 8)
    run = side.train(Game(), data[0], adam)
    for batch in data * 2:
        for loss in run.step(batch):
            side.note("loss", loss)
    side.note_all(run)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(10, 6)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 6))
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-3, 0.2, 10), 0))

    def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.get_buffer("kept")[t][:, None]
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        predicted = self.net(noisy + self.time(t))
        return F.mse_loss(predicted, noise), predicted


@recipe()
def denoising_diffusion(side: Side) -> None:
    data = {"x": points(32)["x"], "t": torch.randint(10, (32,)), "noise": torch.randn(32, 6)}
    side.follow(Diffusion(), batches(data, 8) * 2, adamw)


class Flow(nn.Module):
    """Affine coupling layers with exact likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Linear(3, 6) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(x.shape[0])
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            shift, scale = net(a).tanh().chunk(2, dim=1)
            x, total = torch.cat([b * scale.exp() + shift, a], dim=1), total + scale.sum(1)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(1)
        return -(prior + total).mean(), x


@recipe()
def normalizing_flow(side: Side) -> None:
    data = batches({"x": points(32)["x"]}, 8)
    side.follow(Flow(), data * 2, adamw)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.up(self.down(x).relu())
        return F.smooth_l1_loss(out, x), out


@recipe()
def convolutional_autoencoder(side: Side) -> None:
    data = batches({"x": images(16)["x"]}, 4)
    side.follow(Autoencoder(), data, sgd)
