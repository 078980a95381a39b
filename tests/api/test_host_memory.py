"""``inplace=False``: new host memory for what comes from the device."""

from __future__ import annotations

import torch

import samba
from tests.api.covers import covers
from tests.samba.session.test_checkpoint import NORMED
from tests.samba.worlds import MLP, close


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


@covers(
    "samba.session.sync_buffers_to_cpu",
    "samba.session.sync_buffers_to_cpu(model)",
    "samba.session.sync_buffers_to_cpu(inplace)",
)
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
