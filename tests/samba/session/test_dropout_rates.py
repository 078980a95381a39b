"""Random operations: seeds, streams, and dropout rates of which a PEF does not depend."""

from __future__ import annotations

import functools
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samba
from pef_schema import read_pef
from pef_schema.program import Node, Ref
from samba.session.check_pef import GraphMismatch
from samba.tracer.random_draws import keep_dropout, rate_argins
from tests.samba.session.loading import load
from tests.samba.shared_traces import share_trace
from tests.samba.worlds import World, close, told


class Drops(nn.Module):
    """Dropout as a module, as a function, in place and of whole channels."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.first, self.second, self.drop = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(rate)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.first(x).tanh()
        hidden = first + F.dropout(self.drop(first), self.rate, self.training)
        hidden = F.dropout(hidden * 2, p=self.rate, training=self.training, inplace=True)
        hidden = F.dropout1d(hidden.view(5, 3, 2), self.rate, self.training).flatten(1)
        out = self.second(hidden)
        return F.cross_entropy(out, y), out


class Attends(nn.Module):
    """Dropout inside attention and between the layers of an LSTM."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.lstm, self.head = nn.LSTM(4, 4, num_layers=2, dropout=rate), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(x, x, x, dropout_p=rate)
        out = self.head(self.lstm(mixed[:, None])[0][:, 0])
        return F.cross_entropy(out, y), out


def world(model: type[nn.Module], rate: float) -> World:
    name = f"{model.__name__.lower()}_{round(rate * 10)}"
    return World(name=name, model=functools.partial(model, rate))


def on_the_device(pefs, model: type[nn.Module], *, compiled: float, run: float):
    """A model of one rate on the PEF of another."""
    scene = world(model, run).build()
    scene.pef = pefs(world(model, compiled))
    scene.trace()
    return scene


@pytest.mark.parametrize("model", [Drops, pytest.param(Attends, marks=pytest.mark.slow)])
def test_a_model_of_rate_0_runs_from_a_pef_with_dropout(pefs, caplog, model):
    scene = on_the_device(pefs, model, compiled=0.5, run=0.0)
    rates = samba.session.get_dropout_rate_argin_names()
    assert len(rates) == (4 if model is Drops else 2)
    lines = [line for line in told(caplog) if "dropout rate" in line]
    assert len(lines) == len(rates) and "compiled with 0.5" in lines[0]
    _, first = scene.run(section_types=["fwd"])
    _, second = scene.run(section_types=["fwd"])
    assert not torch.equal(first, second)
    for _ in range(2):
        scene.run(hyperparam_dict={"p": 0.0})
        scene.host_step()
    scene.assert_follows()


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize(
    ("kind", "dims"), [(nn.Dropout, 2), (nn.Dropout1d, 3), (nn.Dropout2d, 4), (nn.Dropout3d, 5)]
)
def test_the_rate_of_a_module_is_named_after_it(kind, dims, rate, tmp_path):
    """As the page of get_dropout_rate_argin_names says: by the kind of the operation."""
    layers = [nn.Linear(4, 4), kind(rate), nn.Linear(4, 4), kind(rate, inplace=True)]
    load(nn.Sequential(*layers), (torch.randn(dims * (4,)),), tmp_path)
    name = f"{kind.__name__.lower()}__p"
    rates = samba.session.get_dropout_rate_argin_names()
    assert rates == [f"sequential__1__{name}", f"sequential__3__{name}"]


def test_a_model_with_dropout_runs_from_a_pef_of_rate_0(pefs, caplog):
    scene = on_the_device(pefs, Drops, compiled=0.0, run=0.5)
    assert "0.5 in the model, but the PEF was compiled with 0" in caplog.text
    scene.host.eval()
    for _ in range(2):
        scene.run()
        scene.host_step()
    scene.assert_follows()
    before = samba.session.counters.compiles
    _, dropped = scene.run(section_types=["fwd"], hyperparam_dict={"p": 1.0})
    close(dropped, scene.host.second.bias.detach().expand(5, 3))
    # Once a rate was raised, it may be any: nothing is compiled again.
    assert samba.session.counters.compiles == before + 1
    _, kept = scene.run(section_types=["fwd"], hyperparam_dict={"p": 0.0})
    close(kept, scene.host(**scene.tensors)[1].detach())
    _, some = scene.run(section_types=["fwd"], hyperparam_dict={"p": 0.5})
    assert not torch.allclose(some, kept)
    assert samba.session.counters.compiles == before + 1


def test_an_error_leaves_a_rate_of_0_as_it_was(pefs):
    scene = on_the_device(pefs, Drops, compiled=0.0, run=0.0)
    _, kept = scene.run(section_types=["fwd"])
    bad = samba.from_torch_tensor(torch.randn(5, 9), name="x")
    with pytest.raises(samba.SambaError):
        scene.run([bad, *scene.inputs[1:]], hyperparam_dict={"p": 0.5})
    _, again = scene.run(section_types=["fwd"])
    assert torch.equal(kept, again)
    _, dropped = scene.run(section_types=["fwd"], hyperparam_dict={"p": 0.5})
    assert not torch.allclose(dropped, kept)


@pytest.mark.parametrize(
    ("drop", "shape", "kept"),
    [
        (F.dropout1d, (40, 30, 4), (40, 30, 1)),
        (F.dropout1d, (600, 4), (600, 1)),
        (F.dropout2d, (30, 40, 2, 2), (30, 40, 1, 1)),
        (F.dropout3d, (600, 2, 2, 2), (600, 1, 1, 1)),
        (F.dropout3d, (30, 40, 2, 1, 2), (30, 40, 1, 1, 1)),
        (torch.dropout_, (30, 40), (30, 40)),
    ],
)
def test_what_takes_the_place_of_torchs_dropout_does_the_same(drop, shape, kept):
    """Whole channels go, at the rate, and what stays is scaled."""
    x = torch.rand(shape) + 1
    out = keep_dropout(drop, (x.clone(), 0.25), {})
    assert out is not None
    factor = (out / x).reshape(*kept, -1)
    close(factor, torch.where(factor == 0, 0.0, torch.tensor(1 / 0.75)).expand_as(factor))
    assert torch.equal(factor == 0, (factor[..., :1] == 0).expand_as(factor))
    assert 0.19 < (factor[..., 0] == 0).float().mean() < 0.31  # 600 draws: 3 standard deviations
    assert keep_dropout(drop, (x, 0.25, False), {}) is None


def test_rates_of_attention_and_lstm_must_be_compiled(pefs):
    """Torch leaves them out of its graph at rate 0, and models without dropout stay as they are."""
    program = read_pef(pefs(world(Attends, 0.0)))
    assert not any("seed" in argin.name for argin in program.argins)
    with pytest.raises(GraphMismatch, match="next_seed"):
        on_the_device(pefs, Attends, compiled=0.0, run=0.5)


@pytest.mark.parametrize("model", [Drops, pytest.param(Attends, marks=pytest.mark.slow)])
def test_the_rate_does_not_matter_for_inference(model, tmp_path):
    host = model(0.5)
    inputs = torch.randn(5, 4), torch.randint(3, (5,))
    load(host, inputs, tmp_path, inference=True)
    other = model(0.0)
    samba.utils.trace_graph(other, inputs, pef=samba.session.pef_path)
    assert samba.session.get_dropout_rate_argin_names() == []
    _, out = samba.session.run(None, other.output_tensors)
    close(out, other.eval()(*inputs)[1].detach())


# -- other ways to say it -------------------------------------------------------

CALLS = {
    "F.dropout": lambda x, p: F.dropout(input=x, p=p, training=True),
    "F.dropout in place": lambda x, p: F.dropout(x * 1, p=p, training=True, inplace=True),
    "torch.dropout": lambda x, p: torch.dropout(x, p=p, train=True),
    "torch.dropout_": lambda x, p: torch.dropout_(x * 1, p=p, train=True),
    "native_dropout": lambda x, p: torch.native_dropout(x, p=p, train=True)[0],
    "F.dropout1d": lambda x, p: F.dropout1d(x, p=p, training=True),
    "F.dropout2d": lambda x, p: F.dropout2d(x[None], p=p, training=True)[0],
    "F.dropout3d": lambda x, p: F.dropout3d(input=x[None, None], p=p, training=True)[0, 0],
    "torch.feature_dropout": lambda x, p: torch.feature_dropout(input=x, p=p, train=True),
    "torch.feature_dropout_": lambda x, p: torch.feature_dropout_(x * 1, p=p, train=True),
    "attention": lambda x, p: F.scaled_dot_product_attention(query=x, key=x, value=x, dropout_p=p),
    "attention by position": lambda x, p: F.scaled_dot_product_attention(x, x, x, None, p),
}


INPUT = torch.linspace(-1, 1, 4 * 6 * 8).reshape(4, 6, 8).sin() + 3


class Calls(nn.Module):
    """Ways to call dropout functions, each a result."""

    def __init__(self, *calls, rate: float = 0.5) -> None:
        super().__init__()
        self.calls, self.rate = calls, rate

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(call(x, self.rate) for call in self.calls)


def results_of(model: nn.Module, folder, *runs: dict) -> list[tuple[torch.Tensor, ...]]:
    x = samba.from_torch_tensor(INPUT.clone(), name="x")
    load(model, (x,), folder)
    return [
        tuple(map(samba.to_torch, samba.session.run((x,), model.output_tensors, **keywords)))
        for keywords in runs
    ]


def test_a_rate_given_by_keyword_is_an_argin(tmp_path):
    runs = {}, {"train": False}, {"hyperparam_dict": {"p": 0.0}}, {"hyperparam_dict": {"p": 0.9}}
    found = results_of(Calls(*CALLS.values()), tmp_path, *runs)
    assert len(samba.session.get_dropout_rate_argin_names()) == len(CALLS)
    wanted = Calls(*CALLS.values(), rate=0.0)(INPUT)
    for name, want, dropped, evaluated, none, most in zip(CALLS, wanted, *found, strict=True):
        for result in (evaluated, none):
            # Entries of order 1 are sums of a few float32 products: some ulps.
            torch.testing.assert_close(result, want, rtol=2e-6, atol=2e-6, msg=name)
        assert not torch.equal(dropped, none) and not torch.equal(most, none), name


@pytest.mark.parametrize("call", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_says_that_its_rate_is_fixed(tmp_path, caplog, call):
    model = Calls(lambda x, p: call(x, p=p, training=True))
    results_of(model, tmp_path)
    (text,) = told(caplog)
    assert "alpha_dropout drops at rate 0.5 in every run" in text
    assert text.startswith(__file__)


def test_a_rate_by_name_is_one_of_the_graphs_rates():
    rate = Ref(1)
    nodes = [
        Node(
            op="aten.scaled_dot_product_attention.default",
            args=(Ref(0),) * 3,
            kwargs=kwargs,
            outputs=(2,),
        )
        for kwargs in ((("dropout_p", rate),), (("dropout_p", 0.1),), ())
    ]
    graph = types.SimpleNamespace(nodes=nodes)
    assert rate_argins(graph) == (True, False, False)


# -- two runs differ, a seed repeats, sections do not matter ---------------------------


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
        self.model = share_trace(samba.from_torch_model_(Draws()))
        self.inputs = (samba.from_torch_tensor(torch.randn(SIZE), name="x"),)
        load(self.model, self.inputs, folder, config=config)

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
    compiles = samba.session.counters.compiles
    assert abs((loaded.run(p=0.9)["dropped"] == 0).float().mean() - 0.9) < 0.05
    assert samba.session.counters.compiles == compiles


@pytest.mark.slow
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
