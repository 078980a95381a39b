"""What moves between host and device, for the arguments of the session's transfers."""

from __future__ import annotations

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


@covers("samba.session.to_cpu_")
def test_in_place_means_the_same_memory(pefs):
    scene = pefs.loaded(MLP)
    shared = scene.model.first.weight.data
    scene.run()
    scene.host_step()
    samba.session.to_cpu_(scene.model)
    assert scene.model.first.weight.data_ptr() == shared.data_ptr()
    close(shared, scene.host.first.weight.detach())


@covers("samba.session.to_rdu(model, optims)")
def test_a_model_goes_to_the_device_with_the_optimizers_that_are_named(pefs):
    scene = pefs.loaded(MLP)
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
    from tests.samba.session.test_checkpoint import NORMED

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


@covers(
    "samba.session.get_tensors(samba_tensors)",
    ".get_tensors_by_name(names)",
    ".get_samba_tensor_by_name(name)",
    ".update_tensor(name, tensor)",
)
def test_tensors_by_handle_and_by_name(pefs):
    scene = pefs.loaded(MLP)
    first, second = scene.model.first.weight, scene.model.second.bias
    host = first.data.clone()
    scene.run()
    for got, tensor in zip(
        samba.session.get_tensors(samba_tensors=[second, first]), (second, first), strict=True
    ):
        assert (got.sn_name, torch.equal(got.data, tensor.sn_data)) == (tensor.sn_name, True)
    names = [second.sn_name, "x"]
    bias, x = samba.session.get_tensors_by_name(names=names)
    assert torch.equal(bias.data, second.sn_data) and torch.equal(x.data, scene.tensors["x"])
    # The traced tensor itself; nothing is retrieved for it.
    assert samba.session.get_samba_tensor_by_name(name=first.sn_name) is first
    assert torch.equal(first.data, host)
    samba.session.update_tensor(name=first.sn_name, tensor=samba.zeros(6, 4))
    assert not first.data.any() and first.sn_data.any()
    samba.session.to_device()
    assert not first.sn_data.any()


# -- inplace=False: new host memory ----------------------------------------------------


@covers("samba.session.to_cpu(inplace)")
def test_to_cpu_reuses_host_memory_only_in_place(pefs):
    scene = pefs.loaded(MLP)
    weight = scene.model.first.weight
    held = weight.data
    start = held.clone()
    for keywords in ({}, {"inplace": False}, {"inplace": True}):
        scene.run()
        scene.host_step()
        old, place = weight.data, weight.data_ptr()
        before = old.clone()
        samba.session.to_cpu(scene.model, **keywords)
        close(weight.data, scene.host.first.weight.detach())
        in_place = keywords.get("inplace", False)
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
