"""Random operations: two runs differ, a seed repeats, and how a program is cut does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
import samba.utils as utils

SIZE = (40, 25)


class Draws(nn.Module):
    """Every kind of draw, apart and after each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(25, 25), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        uniform, normal = torch.rand_like(x), torch.randn_like(x)
        coins = torch.bernoulli(torch.full_like(x, 0.3))
        dropped = self.drop(torch.ones_like(x))
        again = F.dropout(torch.ones_like(x), 0.5, self.training)
        loss = (self.drop(self.first(x)) * normal + uniform * coins).mean()
        return loss, uniform, normal, coins, dropped, again


NAMES = ("loss", "uniform", "normal", "coins", "dropped", "again")


class Loaded:
    """The model on the device, compiled in one way."""

    def __init__(self, folder: Path, **config: str) -> None:
        torch.manual_seed(0)
        self.model = samba.from_torch_model_(Draws())
        self.inputs = (samba.from_torch_tensor(torch.randn(SIZE), name="x"),)
        config = {"output_folder": str(folder), "pef_name": "draws", **config}
        pef = samba.session.compile(self.model, self.inputs, None, config_dict=config)
        utils.trace_graph(self.model, self.inputs, None, pef=pef, config_dict={})

    def run(self, **rates: float) -> dict[str, Tensor]:
        outputs = samba.session.run(
            self.inputs, self.model.output_tensors, hyperparam_dict=rates or None
        )
        return {k: samba.to_torch(o).detach() for k, o in zip(NAMES, outputs, strict=True)}

    def gradient(self) -> Tensor:
        return samba.to_torch(self.model.first.weight.sn_grad).clone()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("draws")


def test_runs_differ_a_seed_repeats_and_draws_are_apart(folder: Path) -> None:
    loaded = Loaded(folder)
    first, second = loaded.run(), loaded.run()
    for name in NAMES:
        assert not torch.equal(first[name], second[name]), name
    samba.session.reset_random_generator()
    for name, value in loaded.run().items():
        assert torch.equal(value, first[name]), name
    (seed,) = samba.session.get_dropout_seed_argin_names()
    other = loaded.run(**{seed: 9})
    assert not torch.equal(other["uniform"], loaded.run()["uniform"])
    assert not torch.equal(other["uniform"], first["uniform"])
    kept = [first[name] != 0 for name in ("dropped", "again", "coins")]
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(first["uniform"] < 0.3, kept[2])

    count = SIZE[0] * SIZE[1]
    assert abs(first["uniform"].mean() - 0.5) < 4 * (1 / 12 / count) ** 0.5
    assert abs(first["normal"].mean()) < 4 / count**0.5
    assert abs(first["coins"].mean() - 0.3) < 4 * (0.21 / count) ** 0.5
    assert set(first["dropped"].unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}


def test_rates_are_argins(folder: Path) -> None:
    loaded = Loaded(folder)
    loaded.run()
    compiles = samba.session.counters.compiles
    assert abs((loaded.run(p=0.9)["dropped"] == 0).float().mean() - 0.9) < 0.05
    everything = loaded.run(p=0.0)
    assert (everything["dropped"] == 1).all()
    assert (everything["again"] == 1).all()
    assert (loaded.run(p=0.5)["dropped"] == 0).any()
    assert samba.session.counters.compiles == compiles


def test_cuts_do_not_matter(folder: Path) -> None:
    """Sections of one op, of one module, as few as fit, and one section for both passes."""
    ways = [{"optim_level": "o0"}, {"optim_level": "o1"}, {"optim_level": "o3"}]
    ways.append({"optim_level": "o3", "mapping": "spatial"})
    results, gradients = [], []
    for number, way in enumerate(ways):
        loaded = Loaded(folder / str(number), **way)
        loaded.run()  # the second step is told apart from the first in each way
        results.append(loaded.run())
        gradients.append(loaded.gradient())
    for result, gradient in zip(results[1:], gradients[1:], strict=True):
        for name in NAMES[1:]:
            assert torch.equal(result[name], results[0][name]), name
        torch.testing.assert_close(result["loss"], results[0]["loss"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-5, atol=1e-6)
