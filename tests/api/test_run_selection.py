"""``run`` runs what it is asked for and nothing else: seen by gradients of another batch."""

from __future__ import annotations

import pytest
import torch

import samba
from samba.distributed.replicas import Replicas
from tests.api.covers import covers
from tests.samba.worlds import MLP, Scene, World, close, named, other_batch, told

FWD, BCKWD, OPT = 0, 1, 2
"""Ids of the sections of the model, which are those of the calls in its schedule too."""


@pytest.fixture
def moved(pefs) -> Scene:
    """The gradients are those of the scene's batch; another batch lies on the device."""
    scene = pefs.loaded(MLP)
    scene.run(section_types=["fwd", "bckwd"])
    samba.session.run(named(other_batch()), (), section_ids=[FWD])
    return scene


def host_gradients(scene: Scene, batch) -> dict[str, torch.Tensor]:
    scene.host.zero_grad()
    scene.host(**batch)[0].backward()
    return {path: p.grad.clone() for path, p in scene.host.named_parameters()}


def assert_gradients(scene: Scene, batch) -> None:
    for path, want in host_gradients(scene, batch).items():
        close(scene.model.get_parameter(path).sn_grad, want, path)


@covers("samba.session.run(section_ids)")
def test_sections_by_id_in_the_given_order(moved):
    before = moved.weights()
    samba.session.run(None, (), section_ids=[FWD])
    assert_gradients(moved, moved.tensors)  # FWD alone leaves gradients and weights
    assert all(torch.equal(w, before[path]) for path, w in moved.weights().items())
    samba.session.run(None, (), section_ids=[OPT, FWD, BCKWD])
    host_gradients(moved, moved.tensors)
    moved.host_optimizer.step()
    moved.assert_follows()  # OPT came first, with the gradients of the batch before
    assert_gradients(moved, other_batch())


@covers("samba.session.run(run_from_call_id)", "samba.session.run(run_until_call_id)")
def test_the_schedule_from_one_call_until_another(moved):
    samba.session.run(None, (), run_until_call_id=FWD)
    assert_gradients(moved, moved.tensors)
    samba.session.run(None, (), run_from_call_id=OPT)
    host_gradients(moved, moved.tensors)
    moved.host_optimizer.step()
    moved.assert_follows()
    samba.session.run(None, (), run_from_call_id=FWD, run_until_call_id=BCKWD)
    assert_gradients(moved, other_batch())
    moved.assert_follows()


@covers(
    "samba.session.run(data_parallel)",
    "samba.session.run(reduce_on_rdu)",
    "samba.session.run(data_parallel_mode)",
)
def test_replicas_are_asked_for_what_run_was_given(pefs, monkeypatch, caplog):
    """Numbers do not depend on where gradients are reduced, so the wish itself is looked at."""
    world = World(name="one_replica", config={"data_parallel": True})
    scene = pefs.loaded(world, data_parallel_mode="inorder")
    asked, wish = [], Replicas.wish

    def spy(self, data_parallel, reduce_on_rdu, mode):
        asked.append((data_parallel, reduce_on_rdu, mode))
        return wish(self, data_parallel, reduce_on_rdu, mode)

    monkeypatch.setattr(Replicas, "wish", spy)
    scene.run()
    assert asked == [] and told(caplog) == []
    for on_rdu in (True, False):
        scene.run(data_parallel=True, reduce_on_rdu=on_rdu, data_parallel_mode="inorder")
    assert asked == [(True, True, "inorder"), (True, False, "inorder")]
    (text,) = told(caplog)
    assert "one replica: there is nothing to reduce" in text
