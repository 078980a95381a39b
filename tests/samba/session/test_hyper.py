"""Hyperparameters between runs, several optimizers, dropout rates and ``train``."""

from __future__ import annotations

import decimal
import fractions

import numpy as np
import pytest
import torch
from torch import nn

import samba
from samba.errors import ArgumentError
from tests.api.covers import covers
from tests.samba.session.loading import loaded
from tests.samba.worlds import DROPOUT, MLP, Mlp, Tensors, World, close, features, told

ADAMW = World(
    name="adamw",
    optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
)


def set_host(scene, **values: float) -> None:
    for group in scene.host_optimizer.param_groups:
        group.update(values)


@pytest.mark.parametrize("world", [MLP, ADAMW], ids=lambda w: w.name)
@covers("samba.session.run(hyperparam_dict, hyperparam_dict[lr], hyperparam_dict[weight_decay])")
def test_values_stay_until_changed(pefs, world):
    scene = pefs.loaded(world)
    scene.run()  # the values of the compile
    scene.host_step()
    for given in (
        {"lr": 0.05},
        {},
        {"weight_decay": 0.2},
        None,
        {"lr": 0.02, "weight_decay": 0.0},
    ):
        scene.run(hyperparam_dict=given)
        set_host(scene, **(given or {}))
        scene.host_step()
    scene.assert_follows()


@covers("samba.session.run(hyperparam_dict[momentum])")
def test_momentum(pefs):
    scene = pefs.loaded(MLP)
    for momentum in (0.9, 0.5, 0.0, 0.0, 0.9):
        scene.run(hyperparam_dict={"momentum": momentum})
        set_host(scene, momentum=momentum)
        scene.host_step()
    scene.assert_follows()


NUMBERS = (
    *(0.25, 1, True, fractions.Fraction(1, 4), decimal.Decimal("0.25")),
    *(np.float32(0.25), np.float16(0.25), np.array(0.25)),
    *(torch.tensor(0.25), torch.tensor([0.25], dtype=torch.float64)),
    torch.tensor([0.25]).to_sparse(),
)


def test_numbers_of_every_kind_are_that_number(pefs):
    """In a call that is prepared, and in the next, which repeats it."""
    scene = pefs.loaded(MLP)
    for value in NUMBERS:
        for _ in range(2):
            scene.run(hyperparam_dict={"lr": value})
            set_host(scene, lr=float(value))
            scene.host_step()
        scene.assert_follows()


@pytest.mark.parametrize("rate", [torch.tensor(0.05), np.array(0.05)], ids=["tensor", "array"])
def test_a_rate_that_is_changed_in_place(pefs, rate):
    scene = pefs.loaded(MLP)
    for _ in range(3):
        rate *= 0.5
        scene.run(hyperparam_dict={"lr": rate})
        set_host(scene, lr=float(rate))
        scene.host_step()
    scene.assert_follows()


def test_unknown_keys_are_told_once(pefs, caplog):
    scene = pefs.loaded(MLP)
    for _ in range(3):
        # Applications pass their whole configuration; values of unknown keys are not looked at.
        scene.run(hyperparam_dict={"betas": (0.9, 0.99), "lr": 0.1, "p": 0.5})
    scene.run(hyperparam_dict={"betas": 1, "eps": 0.1, "weight_deacy": 0.1})
    assert told(caplog) == [
        "hyperparameter 'betas' has no argin in this PEF and is ignored; "
        "it has lr, momentum, weight_decay",
        "2 hyperparameters have no argin in this PEF and are ignored: 'eps', 'weight_deacy'; "
        "did you mean 'weight_decay'?",
    ]


# -- several optimizers ------------------------------------------------------------


def halves(*prefixes: str, lrs: tuple[float, float] = (0.01, 0.02)):
    def make(model):
        layers = (model.first, model.second)
        return [
            samba.optim.AdamW(layer.parameters(), lr=lr, argin_region_name=prefix)
            for layer, lr, prefix in zip(layers, lrs, prefixes, strict=True)
        ]

    return make


@covers("samba.session.compile(optimizers)")
def test_one_key_drives_every_optimizer(tmp_path):
    scene = loaded(World(name="two", optimizer=halves("", "")), tmp_path)
    assert set(samba.session.get_argin_names()) == {
        "adamw0__lr",
        "adamw0__weight_decay",
        "adamw1__lr",
        "adamw1__weight_decay",
    }
    for given in ({}, {"lr": 0.005}, {"adamw1__lr": 0.03}):
        scene.run(hyperparam_dict=given)
        for i, optimizer in enumerate(scene.host_optimizer):
            lr = given.get(f"adamw{i}__lr", given.get("lr", optimizer.param_groups[0]["lr"]))
            optimizer.param_groups[0]["lr"] = lr
        scene.host_step()
    scene.assert_follows()
    assert len(samba.session.program.sections) == 4  # FWD, BCKWD, and an OPT for each


def test_a_prefix_sets_an_optimizer_apart(tmp_path, caplog):
    scene = loaded(World(name="prefixed", optimizer=halves("", "head")), tmp_path)
    names = samba.session.get_argin_names()
    assert {"head__lr", "head__weight_decay"} < set(names)
    for given in ({"lr": 0.005}, {"head__lr": 0.03}, {"lr": 0.002, "head__weight_decay": 0.5}):
        scene.run(hyperparam_dict=given)
        first, second = (o.param_groups[0] for o in scene.host_optimizer)
        first["lr"] = given.get("lr", first["lr"])
        second["lr"] = given.get("head__lr", second["lr"])
        second["weight_decay"] = given.get("head__weight_decay", second["weight_decay"])
        scene.host_step()
    scene.assert_follows()
    assert not told(caplog)


def test_a_bare_key_that_reaches_nobody_is_told(tmp_path, caplog):
    world = World(
        name="all_prefixed",
        optimizer=lambda m: samba.optim.SGD(m.parameters(), lr=0.1, argin_region_name="net"),
    )
    scene = loaded(world, tmp_path)
    scene.run(hyperparam_dict={"lr": 0.5})
    scene.host_step()
    scene.assert_follows()
    assert told(caplog) == ["hyperparameter 'lr' has no effect: this PEF has net__lr instead"]


def test_parameter_groups(tmp_path):
    def make(model):
        groups = [
            {"params": [model.first.weight, model.second.weight], "weight_decay": 0.1},
            {"params": [model.first.bias, model.second.bias], "lr": 0.03},
        ]
        return samba.optim.SGD(groups, lr=0.1, momentum=0.5)

    scene = loaded(World(name="groups", optimizer=make), tmp_path)
    for given in ({}, {"lr": 0.05}, {"sgd0_group1__lr": 0.2, "sgd0__weight_decay": 0.4}):
        scene.run(hyperparam_dict=given)
        first, second = scene.host_optimizer.param_groups
        first["lr"], second["lr"] = (given.get("lr", g["lr"]) for g in (first, second))
        second["lr"] = given.get("sgd0_group1__lr", second["lr"])
        first["weight_decay"] = given.get("sgd0__weight_decay", first["weight_decay"])
        scene.host_step()
    scene.assert_follows()
    assert len(samba.session.program.sections) == 3  # the groups share one OPT


def test_a_learning_rate_given_at_run_time_counts(pefs, caplog):
    """As in torch the optimizer says it; it was compiled with another one, and a line says so."""
    scene = pefs.scene(MLP)
    for optimizer in (scene.optimizer, scene.host_optimizer):
        optimizer.param_groups[0]["lr"] = 0.7
    scene.trace()
    assert told(caplog) == [
        "optimizer sgd0: lr is 0.7, which is used from now on; the PEF was compiled with 0.1"
    ]
    for _ in range(3):
        scene.run()
        scene.host_step()
    scene.assert_follows()


def test_hyperparam_dict_wins_over_the_optimizer(pefs):
    """Scripts construct it with a rate of 0, and give the real one to each run."""
    scene = pefs.scene(MLP)
    scene.optimizer.param_groups[0]["lr"] = 0.0
    scene.trace()
    scene.host_optimizer.param_groups[0]["lr"] = 0.3
    for given in ({"lr": 0.3}, {}, {"lr": 0.3}):
        scene.run(hyperparam_dict=given)
        scene.host_step()
    scene.assert_follows()


def test_other_values_at_trace_time_are_told(pefs, caplog):
    """A dropout rate of the PEF holds, as on hardware, and a line says so."""
    scene = pefs.scene(DROPOUT)
    scene.model.drop.p = 0.25
    scene.trace()
    (text,) = told(caplog)
    assert text == (
        "dropout rate mlp__drop__dropout__p is 0.25 in the model, but the PEF was compiled with "
        "0.5, which is used until hyperparam_dict sets another"
    )


def in_bfloat16() -> nn.Module:
    return Mlp().bfloat16()


def half_features() -> Tensors:
    x, y = features().values()
    return {"x": x.bfloat16(), "y": y}


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_wished_float32_copies_are_told_where_they_would_count(tmp_path, caplog, half, wanted):
    """In the process that compiles and in the one that trains; float32 weights need no copy."""
    world = World(
        name="copies",
        model=in_bfloat16 if half else Mlp,
        inputs=half_features if half else features,
        optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, fp32_params=wanted),
    )
    scene = world.build()
    for step in (lambda: scene.compile(tmp_path), scene.trace):
        caplog.clear()
        step()
        told_now = [text for text in told(caplog) if "fp32_params=True" in text]
        assert bool(told_now) == (half and wanted)
    scene.run()


# -- dropout -------------------------------------------------------------------------


def dropped(scene, **keywords) -> bool:
    """Whether a forward pass dropped anything."""
    _, out = scene.run(section_types=["fwd"], **keywords)
    want = Plain(scene.host)(scene.tensors["x"]).detach()
    return not torch.allclose(out, want, rtol=1e-5, atol=1e-6)


class Plain(nn.Module):
    """The dropout model without its dropout."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.second(self.model.first(x).tanh())


@pytest.fixture
def scene(pefs):
    return pefs.loaded(DROPOUT)


@covers("samba.session.run(train, hyperparam_dict[p])", ".get_dropout_rate_argin_names")
def test_train_and_p(scene):
    # The first run may be an evaluation.
    assert not dropped(scene, train=False)
    # Without ``p`` the compiled rate holds, with another mask in each run.
    _, first = scene.run(section_types=["fwd"])
    _, second = scene.run(section_types=["fwd"])
    assert not torch.equal(first, second)
    for train in (True, False, False, True, False, True):
        assert dropped(scene, train=train) is train
    # A rate that is given during an evaluation holds afterwards.
    assert not dropped(scene, train=False, hyperparam_dict={"p": 1.0})
    _, out = scene.run(section_types=["fwd"])
    close(out, scene.host.second.bias.detach().expand(5, 3))  # all is dropped but the last bias
    assert not dropped(scene, hyperparam_dict={"p": 0.0})
    assert not dropped(scene)
    # A layer may be set by its own name; of two keys for it the later one wins.
    (name,) = samba.session.get_dropout_rate_argin_names()
    assert dropped(scene, hyperparam_dict={name: 0.5})
    assert not dropped(scene, hyperparam_dict={"p": 0.5, name: 0.0})
    assert dropped(scene, hyperparam_dict={"p": 0.5})
    assert samba.session.counters.compiles == 1


def masks(scene, count: int = 3) -> torch.Tensor:
    return torch.stack([scene.run(section_types=["fwd"])[1] for _ in range(count)])


@covers("samba.session.reset_random_generator", ".get_dropout_seed_argin_names")
def test_the_random_stream_goes_on_and_restarts(scene):
    first = masks(scene)
    assert not torch.equal(first, masks(scene))
    samba.session.reset_random_generator()
    assert torch.equal(first, masks(scene))
    (seed,) = samba.session.get_dropout_seed_argin_names()
    scene.run(section_types=["fwd"], hyperparam_dict={seed: 5})
    other = masks(scene)
    assert not torch.equal(first, other)
    scene.run(section_types=["fwd"], hyperparam_dict={seed: 0})
    scene.run(section_types=["fwd"], hyperparam_dict={seed: 5})
    assert torch.equal(other, masks(scene))


def test_a_run_goes_on_from_a_saved_state_with_the_same_masks(scene):
    """Position and seed are in a checkpoint; another load of the PEF draws what would have come."""
    (seed,) = samba.session.get_dropout_seed_argin_names()
    scene.run(section_types=["fwd"], hyperparam_dict={seed: 7})
    masks(scene)
    state = samba.session.get_rng_state()
    assert state.tolist()[0][0] == 7
    assert state.tolist()[0][1] > 0
    wanted = masks(scene)
    scene.trace()
    assert not torch.equal(wanted, masks(scene))
    samba.session.set_rng_state(state)
    assert torch.equal(samba.session.get_rng_state(), state)
    assert torch.equal(wanted, masks(scene))


@pytest.mark.parametrize(
    "state",
    [
        None,
        [[0, 0]],
        torch.zeros(1, 2),
        torch.zeros(2, 2, dtype=torch.int64),
        torch.tensor([[0, -1]]),
        torch.tensor([[2**32, 0]]),
    ],
)
def test_states_that_are_none_change_nothing(scene, state):
    before = samba.session.get_rng_state()
    with pytest.raises(ArgumentError, match=r"int64 \[1, 2\] as session.get_rng_state"):
        samba.session.set_rng_state(state)
    assert torch.equal(samba.session.get_rng_state(), before)


def test_the_stream_is_the_same_in_every_way_to_run(scene):
    """The mask of a step does not depend on how its sections are run."""
    whole = [scene.run()[0] for _ in range(3)]
    samba.session.to_rdu(scene.model, scene.optimizer)
    samba.session.reset_random_generator()
    parts = []
    for _ in range(3):
        parts.append(scene.run(section_types=["fwd"])[0])
        scene.run(None, section_types=["bckwd"])
        scene.run(None, section_types=["opt"])
    for ours, theirs in zip(whole, parts, strict=True):
        close(ours, theirs)
