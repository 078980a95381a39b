"""What moves between host and device, for the arguments of the session's transfers."""

from __future__ import annotations

from functools import partial

import torch

import samba
from tests.api.covers import covers
from tests.samba.session.test_checkpoint import NORMED
from tests.samba.worlds import MLP, close

MOMENTUM = "mlp__first__weight__sgd0__momentum"


@covers("samba.session.to_cpu(model, optims)", ".to_cpu_(model, optims)")
def test_a_model_comes_to_the_host_with_the_optimizers_that_are_named(pefs):
    for fetch in (samba.session.to_cpu, samba.session.to_cpu_):
        scene = pefs.loaded(MLP)
        scene.run()
        scene.host_step()
        fetch(model=scene.model)
        for ours, theirs in zip(scene.model.parameters(), scene.host.parameters(), strict=True):
            close(ours.data, theirs.detach())
        assert not scene.optimizer.state
        for optims in (scene.optimizer, [scene.optimizer]):
            scene.optimizer.state.clear()
            fetch(scene.model, optims=optims)
            ours = scene.optimizer.state[scene.model.first.weight]["momentum_buffer"]
            close(ours, scene.host_optimizer.state[scene.host.first.weight]["momentum_buffer"])


@covers("samba.session.to_rdu(model, optims)")
def test_a_model_goes_to_the_device_with_the_optimizers_that_are_named(scene):
    scene.run()
    samba.session.to_cpu(scene.model, scene.optimizer)
    momentum = scene.optimizer.state[scene.model.first.weight]["momentum_buffer"]
    before = momentum.clone()
    with torch.no_grad():
        scene.model.first.weight.fill_(3.0)
        momentum.fill_(5.0)
    samba.session.to_rdu(model=scene.model)
    assert (scene.model.first.weight.sn_data == 3).all()
    assert torch.equal(samba.session.get_tensors_by_name([MOMENTUM])[0].data, before)
    samba.session.to_rdu(scene.model, optims=[scene.optimizer])
    assert (samba.session.get_tensors_by_name(names=[MOMENTUM])[0].data == 5).all()


@covers("samba.session.sync_buffers_to_cpu(model)", ".sync_buffers_to_rdu(model)")
def test_buffers_of_the_model_alone_move(pefs):
    scene = pefs.loaded(NORMED)
    scene.run()
    scene.host_step()
    weight = scene.model.head.weight.data.clone()
    samba.session.sync_buffers_to_cpu(model=scene.model)
    close(scene.model.norm.running_mean, scene.host.norm.running_mean)
    assert torch.equal(scene.model.head.weight.data, weight)
    with torch.no_grad():
        scene.model.norm.running_mean.fill_(7.0)
        scene.model.head.weight.fill_(7.0)
    samba.session.sync_buffers_to_rdu(model=scene.model)
    (mean,) = samba.session.get_tensors_by_name(["normed__norm__running_mean"])
    assert (mean.data == 7).all()
    close(scene.model.head.weight.sn_data, scene.host.head.weight.detach())


# -- inplace=False: new host memory ----------------------------------------------------


@covers("samba.session.to_cpu(inplace)", ".to_cpu_")
def test_to_cpu_reuses_host_memory_only_in_place(scene):
    weight = scene.model.first.weight
    held = weight.data
    start = held.clone()
    to_cpu = samba.session.to_cpu
    for fetch, in_place in (
        (to_cpu, False),
        (partial(to_cpu, inplace=False), False),
        (partial(to_cpu, inplace=True), True),
        (samba.session.to_cpu_, True),
    ):
        scene.run()
        scene.host_step()
        old, place = weight.data, weight.data_ptr()
        before = old.clone()
        fetch(scene.model)
        close(weight.data, scene.host.first.weight.detach())
        assert (weight.data_ptr() == place) is in_place
        assert torch.equal(old, weight.data if in_place else before)
    assert torch.equal(held, start)


@covers("samba.session.sync_buffers_to_cpu", ".sync_buffers_to_cpu(model, inplace)")
def test_buffers_reuse_host_memory_only_in_place(pefs):
    scene = pefs.loaded(NORMED)
    norm = scene.model.norm
    for keywords in ({}, {"inplace": False}, {"inplace": True}):
        scene.run()
        scene.host_step()
        old, place = norm.running_mean, norm.running_mean.data_ptr()
        view = old.data
        before = view.clone()
        samba.session.sync_buffers_to_cpu(model=scene.model, **keywords)
        close(norm.running_mean, scene.host.norm.running_mean)
        in_place = keywords.get("inplace", False)
        assert (norm.running_mean.data_ptr() == place) is in_place
        assert torch.equal(view, norm.running_mean.data if in_place else before)
