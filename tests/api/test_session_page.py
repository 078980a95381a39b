"""Names of the session's page that ``tests/samba/session`` does not cover, and facts of its PEF."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest
import torch
from torch import nn

import samba
from tests.api.covers import covers
from tests.samba.worlds import DROPOUT, MLP, Scene, World, close, named, other_batch


@covers("samba.SambaSession")
def test_a_session_of_its_own_with_a_pef(pefs):
    scene = pefs.scene(MLP)
    session = samba.SambaSession(scene.pef)
    outputs = session.load(
        scene.model, scene.inputs, scene.optimizer, pef="", loss_indices=None, transfer_device=True
    )
    loss, out = session.run(scene.inputs, outputs)
    want_loss, want = scene.host_step()
    close(loss, want_loss)
    close(out, want)
    with pytest.raises(samba.SambaError, match="nothing is on the device"):
        samba.session.run(scene.inputs)  # the process's own has none
    session.reset()


# -- lazy parameters -----------------------------------------------------------


@pytest.fixture
def weight():
    """Makes a layer with these settings of lazy parameters and gives its weight's values."""

    def make(dtype: torch.dtype = torch.float32, **settings) -> torch.Tensor:
        samba.session.enable_lazy_param(**settings)
        try:
            layer = nn.Linear(120, 90, dtype=dtype)
            nn.init.normal_(layer.weight, 1.0, 0.5)
        finally:
            samba.session.disable_lazy_param()
        assert not layer.weight.has_data
        return layer.weight.torch_tensor()

    return make


@covers("samba.session.enable_lazy_param(seed)")
def test_a_seed_fixes_lazy_values_whatever_the_random_state(weight):
    first = weight(seed=5)
    torch.manual_seed(99)
    assert torch.equal(first, weight(seed=5))
    assert not torch.equal(first, weight(seed=6))
    assert not torch.equal(weight(), weight())


@covers("samba.session.enable_lazy_param(inverse_transform_sampling)")
def test_inverse_transform_sampling_draws_other_numbers_of_the_same_distribution(weight):
    plain, inverse = weight(seed=5), weight(seed=5, inverse_transform_sampling=True)
    assert not torch.equal(plain, inverse)
    for values in (plain, inverse):  # standard errors of 10,800 numbers: 0.005 and 0.0034
        assert abs(values.mean() - 1.0) < 0.025 and abs(values.std() - 0.5) < 0.017


# -- run and transfers ---------------------------------------------------------


@covers(
    "samba.session.run(data_parallel, reduce_on_rdu, data_parallel_mode)",
    "samba.utils.trace_graph(data_parallel_mode)",
)
def test_one_replica_trains_as_none(pefs):
    """The mean of gradients over one replica is the gradient, in every mode."""
    world = World(name="one_replica", config={"data_parallel": True})
    for mode in ("normal", "inorder", "optimal"):
        scene = pefs.loaded(world, data_parallel_mode=mode)
        assert "REDUCE" in samba.session.get_section_types()
        for step, on_rdu in enumerate((True, False)):
            batch = other_batch(step)
            loss, _ = scene.run(
                named(batch), data_parallel=True, reduce_on_rdu=on_rdu, data_parallel_mode=mode
            )
            close(loss, scene.host_step(batch)[0])
        scene.assert_follows()
    with pytest.raises(samba.SambaError, match=r"session\.run.*'sideways'"):
        scene.run(data_parallel_mode="sideways")
    with pytest.raises(samba.SambaError, match=r"trace_graph.*'sideways'"):
        scene.trace(data_parallel_mode="sideways")


# -- what a session knows of a PEF as soon as it has its path --------------------------


WEIGHTS = ["mlp__first__weight", "mlp__first__bias", "mlp__second__weight", "mlp__second__bias"]


def assert_knows(session: samba.SambaSession) -> None:
    assert set(session.get_section_types()) == {"FWD", "BCKWD", "OPT"}
    assert list(session.get_weight_names()) == WEIGHTS
    assert {"lr", "momentum", "weight_decay"} <= set(session.get_argin_names())
    assert list(session.get_dropout_rate_argin_names()) == ["mlp__drop__dropout__p"]
    assert list(session.get_dropout_seed_argin_names()) == ["mlp__seed"]


@covers("samba.SambaSession(pef_path)")
def test_the_pef_is_parsed_when_a_session_is_made(pefs):
    assert_knows(samba.SambaSession(pef_path=pefs(DROPOUT)))
    with pytest.raises(samba.SambaError):  # nothing is provided, so nothing is loaded
        samba.SambaSession().get_section_types()


@covers("samba.session.reset(pef_path)")
@pytest.mark.parametrize("on", ["class", "instance"])
def test_a_reset_with_a_path_parses_that_pef(pefs, on):
    pefs.loaded(MLP)
    (samba.SambaSession if on == "class" else samba.session).reset(pef_path=pefs(DROPOUT))
    assert_knows(samba.session)
    with pytest.raises(samba.SambaError, match="nothing is on the device"):
        samba.session.run()
    scene: Scene = pefs.scene(DROPOUT)
    scene.trace(pef="")
    scene.host.eval()
    scene.run(train=False)
    scene.host_step()
    scene.assert_follows()


@covers("samba.session.get_argin_names")
def test_argin_names_are_an_ordered_set(pefs):
    pefs.loaded(DROPOUT)
    names = samba.session.get_argin_names()
    assert type(names).__name__ == "OrderedSet" and isinstance(names, AbstractSet)
    assert list(names) == ["mlp__drop__dropout__p", "mlp__seed", "lr", "momentum", "weight_decay"]
    assert "lr" in names and names & {"lr", "x"} == {"lr"}
