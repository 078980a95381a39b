"""Without ``loss_indices`` the backward pass starts where the page of ``session.compile`` says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from tests.api.covers import covers
from tests.samba.session.loading import loaded
from tests.samba.worlds import INFERENCE, MLP, World, features, named, told


class Recurrent(nn.Module):
    """All outputs of a recurrent layer: the states of every step, and the last ones."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(4, 3)

    def forward(self, x):
        return self.cells(x)


class Heads(nn.Module):
    """Two heads, each with a loss per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x, y):
        shared = self.body(x).tanh()
        value = self.right(shared).squeeze(1)
        return (
            F.cross_entropy(self.left(shared), y, reduction="none"),
            F.mse_loss(value, y.float(), reduction="none"),
        )


class Scalars(Heads):
    """The means of both losses."""

    def forward(self, x, y):
        left, right = super().forward(x, y)
        return left.mean(), right.mean()


class Labels(nn.Module):
    """Nothing that has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).argmax(1)


def steps():
    return {"x": torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(2))}


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    """Within 2e-6 of the largest entry: small ones are sums over steps that cancel."""
    limit = 2e-6 * theirs.abs().max().item()
    assert (ours - theirs).abs().max().item() <= limit, what


def assert_step_of_the_first(scene, weights: torch.Tensor) -> None:
    """Gradients are torch's for the first output alone, weighted; the host steps, too."""
    scene.host_optimizer.zero_grad()
    scene.host(**scene.tensors)[0].backward(weights)
    for path, parameter in scene.host.named_parameters():
        ours = scene.model.get_parameter(path).sn_grad
        theirs = torch.zeros_like(ours) if parameter.grad is None else parameter.grad
        assert_near(ours, theirs, path)
    scene.host_optimizer.step()


def only_x():
    return {"x": features()["x"]}


HEADS = World(name="heads", model=Heads)
SCALARS = World(name="scalars", model=Scalars)
WORLDS = [
    World(name="lstm", model=lambda: Recurrent(nn.LSTM), inputs=steps),
    World(name="gru", model=lambda: Recurrent(nn.GRU), inputs=steps),
    HEADS,
    SCALARS,
]


@pytest.mark.parametrize(
    "world",
    [pytest.param(w, id=w.name, marks=pytest.mark.slow if w.name == "gru" else ()) for w in WORLDS],
)
@covers("samba.session.compile(loss_indices)")
def test_backpropagation_is_from_all_outputs(world, tmp_path, caplog, capsys):
    """Gradients are torch's for the sum of all outputs, in every step; which they are is said."""
    scene = world.build()
    scene.compile(tmp_path)
    (text,) = told(caplog)
    scene.trace()
    outputs = [output.sn_name for output in scene.model.output_tensors]
    named_outputs = ", ".join(f"{i}:{name}" for i, name in enumerate(outputs))
    assert f"{named_outputs}. Choose others by their positions" in text
    why = "2 outputs are scalars, and each" if world.name == "scalars" else "no output is a scalar"
    assert why in text
    assert capsys.readouterr().out.splitlines()[0] == f"losses: {named_outputs}"
    assert f"\nlosses: {named_outputs}\n" in Path(f"{scene.pef}.log").read_text()
    for _ in range(3):
        scene.run()
        scene.host_optimizer.zero_grad()
        leaves = torch.utils._pytree.tree_leaves(scene.host(**scene.tensors))
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
        for path, parameter in scene.host.named_parameters():
            assert_near(scene.model.get_parameter(path).sn_grad, parameter.grad, path)
        scene.host_optimizer.step()
    for path, weight in scene.weights().items():
        assert_near(weight, scene.host.get_parameter(path).detach(), path)
    assert len(told(caplog)) == 1


def test_a_gradient_that_the_script_sets_stands_alone(tmp_path):
    """A script that weights its loss per sample does not mean the ones of the other output."""
    scene = loaded(HEADS, tmp_path)
    left, right = tuple(scene.model.output_tensors)
    assert (right.sn_grad == 1.0).all()
    weights = torch.linspace(0.0, 2.0, len(left))  # one sample is masked
    for _ in range(2):
        left.sn_grad = weights
        assert (right.sn_grad == 0.0).all()
        scene.run()
        assert_step_of_the_first(scene, weights)


@covers("samba.utils.trace_graph(loss_indices)")
def test_trace_graph_chooses_among_the_losses_that_were_compiled(tmp_path):
    scene = HEADS.build()
    scene.compile(tmp_path)
    scene.trace(loss_indices=[0])
    left, right = tuple(scene.model.output_tensors)
    assert (left.sn_grad == 1.0).all() and (right.sn_grad == 0.0).all()
    for weights in (torch.ones(len(left)), torch.linspace(0.5, 2.0, len(left))):
        if not (weights == 1.0).all():
            left.sn_grad = weights
        scene.run()
        assert_step_of_the_first(scene, weights)
    scene.trace()
    assert (scene.model.output_tensors[1].sn_grad == 1.0).all()


def test_a_scalar_loss_keeps_its_ones_beside_one_that_is_weighted(tmp_path):
    scene = loaded(SCALARS, tmp_path)
    left, right = tuple(scene.model.output_tensors)
    left.sn_grad = torch.tensor(0.25)
    assert right.sn_grad == 1.0
    scene.run()
    ours_left, ours_right = scene.host(**scene.tensors)
    (0.25 * ours_left + ours_right).backward()
    for path, parameter in scene.host.named_parameters():
        assert_near(scene.model.get_parameter(path).sn_grad, parameter.grad, path)


@pytest.mark.parametrize(
    "world",
    [
        MLP,
        INFERENCE,
        World(name="chosen", model=Heads, compile={"loss_indices": [0]}),
        World(name="forward", model=Heads, config={"inference": True}),
    ],
    ids=lambda world: world.name,
)
def test_no_warning_where_nothing_is_in_doubt(world, tmp_path, caplog, capsys):
    world.build().compile(tmp_path)
    assert told(caplog) == []
    printed = [line for line in capsys.readouterr().out.splitlines() if "losses" in line]
    assert len(printed) == (world.name in ("mlp", "chosen"))


def test_training_without_a_loss_is_one_warning(tmp_path, caplog, capsys):
    model = samba.from_torch_model_(Labels())
    config = {"output_folder": str(tmp_path)}
    samba.session.compile(model, named(only_x()), config_dict=config)
    assert told(caplog) == []
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
    samba.session.compile(model, named(only_x()), optimizer, config_dict=config)
    (text,) = told(caplog)
    assert "there is no loss and the optimizers get no gradients" in text
    assert "loss_indices=[...]" in text
    assert "losses: none" in capsys.readouterr().out.splitlines()


class Rated(nn.Module):
    """A loss and, last, the share of right answers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, y):
        right = self.linear(x).argmax(1) == y
        return F.cross_entropy(self.linear(x), y), right.float().mean()


@pytest.mark.parametrize(("chosen", "lost"), [([0], ""), ([1], "1:"), ([0, 1], "1:")])
def test_a_chosen_output_without_a_gradient_is_told(chosen, lost, tmp_path, caplog):
    scene = World(name="rated", model=Rated, compile={"loss_indices": chosen}).build()
    scene.compile(tmp_path)
    texts = told(caplog)
    assert len(texts) == bool(lost)
    if lost:
        assert f"loss_indices={chosen} chooses outputs that depend on no" in texts[0]
        assert f"starts there: {lost}rated__" in texts[0]
