"""Weights, buffers and optimizer state between host and device, and through files."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from tests.api.covers import covers
from tests.samba.session.loading import loaded
from tests.samba.session.test_torch_optimizers import TOWER
from tests.samba.worlds import (
    INFERENCE,
    Mlp,
    Pefs,
    Scene,
    Together,
    World,
    close,
    named,
    other_batch,
)

MAKERS = {
    "sgd": lambda m: samba.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: samba.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "dampening": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.3),
    "adam": lambda m: samba.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "adamw": lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
}
EVERY = World(
    name="every_optimizer",
    model=lambda: Together({name: Mlp() for name in MAKERS}),
    optimizer=lambda m: [make(m.parts[name]) for name, make in MAKERS.items()],
)
"""A model with a part for each optimizer."""
ADAMW = World(name="ckpt_adamw", optimizer=MAKERS["adamw"])
BREAK, STEPS = 3, 6


def train(scene, steps) -> list[torch.Tensor]:
    return [scene.run(named(other_batch(step)))[0] for step in steps]


@pytest.mark.parametrize("world", [EVERY, TOWER], ids=lambda world: world.name)
@covers("samba.session.to_cpu(optims)", ".to_cpu_", "samba.utils.trace_graph(optim)")
def test_a_checkpoint_continues_bitwise(pefs, tmp_path, world):
    """Stop, save, load into new objects and go on: the bits are those of the unbroken run."""
    scene = pefs.loaded(world)
    losses = train(scene, range(BREAK))
    samba.session.to_cpu(scene.model, scene.optimizer)
    assert_state_is_torchs(scene)
    path = tmp_path / "checkpoint.pt"
    states = [optimizer.state_dict() for optimizer in scene.optimizer]
    torch.save({"model": scene.model.state_dict(), "optimizers": states}, path)
    losses += train(scene, range(BREAK, STEPS))
    samba.session.to_cpu(scene.model, scene.optimizer)
    want = state_of(scene)
    samba.session.reset()

    again = pefs.scene(world)
    checkpoint = torch.load(path, weights_only=True)
    assert all(type(t) is torch.Tensor for t in checkpoint["model"].values())
    again.model.load_state_dict(checkpoint["model"])
    for optimizer, state in zip(again.optimizer, checkpoint["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    again.trace()
    assert all(map(torch.equal, losses[BREAK:], train(again, range(BREAK, STEPS))))
    samba.session.to_cpu_(again.model, again.optimizer)
    got = state_of(again)
    assert len(got) == len(want)
    assert all(map(torch.equal, got, want))


def state_of(scene: Scene) -> list[torch.Tensor]:
    """Weights and optimizer states on the host."""
    tensors = [p.data for p in scene.model.parameters()]
    for optimizer in scene.optimizer:
        for state in optimizer.state.values():
            tensors += [state[key] for key in sorted(state) if state[key] is not None]
    return tensors


def assert_state_is_torchs(scene: Scene) -> None:
    """Optimizer states have torch's names, dtypes and values, so plain torch can go on."""
    for step in range(BREAK):
        scene.host_step(other_batch(step))
    for ours, theirs in zip(scene.optimizer, scene.host_optimizer, strict=True):
        found, wanted = ours.state_dict(), theirs.state_dict()
        assert found["param_groups"] == wanted["param_groups"]
        for index, want in wanted["state"].items():
            got = found["state"].get(index, {})
            kept = {key: value for key, value in want.items() if value is not None}
            assert got.keys() == kept.keys()
            for key, value in kept.items():
                assert got[key].dtype is value.dtype
                close(got[key], value, f"{type(ours).__name__} {key}")


def test_loading_after_trace_graph(pefs):
    """As applications do: load into model and optimizer, then ``to_rdu``."""
    scene = pefs.loaded(ADAMW)
    start = copy.deepcopy(scene.model.state_dict())
    first = train(scene, range(2))
    scene.model.load_state_dict(start)
    samba.session.to_rdu(scene.model, scene.optimizer)  # the optimizer's host state is still empty
    assert all(map(torch.equal, first, train(scene, range(2))))
    samba.session.to_cpu(scene.model, scene.optimizer)
    saved = copy.deepcopy((scene.model.state_dict(), scene.optimizer.state_dict()))
    second = train(scene, range(2, 4))
    scene.model.load_state_dict(saved[0])
    scene.optimizer.load_state_dict(saved[1])
    samba.session.to_rdu(scene.model, [scene.optimizer])
    assert all(map(torch.equal, second, train(scene, range(2, 4))))


def test_training_goes_on_after_to_cpu(pefs):
    """Reading memory of the device does not disturb it."""
    scene = pefs.loaded(ADAMW)
    held = []
    for step in range(4):
        train(scene, [step])
        scene.host_step(other_batch(step))
        samba.session.to_cpu(scene.model, scene.optimizer)
        held = [p.data.clone() for p in scene.model.parameters()]
        samba.session.get_tensors(list(scene.model.parameters()))
        for tensor, twin in zip(scene.model.parameters(), scene.host.parameters(), strict=True):
            close(tensor.data, twin.detach())
            assert type(tensor) is samba.SambaParameter and tensor.requires_grad
    scene.assert_follows()
    assert all(map(torch.equal, held, [p.data for p in scene.model.parameters()]))


@covers("samba.session.to_cpu")
def test_to_cpu_takes_new_memory_and_in_place_the_old(pefs):
    """Weights are looked at in ``tests/api``: here optimizer states, and the objects that stay."""
    scene = pefs.loaded(ADAMW)
    views = dict(scene.model.state_dict())
    before = {name: value.clone() for name, value in views.items()}
    parameters = list(scene.model.parameters())
    scene.run()
    scene.host_step()
    samba.session.to_cpu(scene.model, scene.optimizer)
    assert all(map(operator.is_, parameters, scene.model.parameters()))
    assert all(torch.equal(views[name], before[name]) for name in views)
    states = [dict(scene.optimizer.state[p]) for p in parameters]
    for in_place in (
        lambda: samba.session.to_cpu(scene.model, scene.optimizer, inplace=True),
        lambda: samba.session.to_cpu_(scene.model, [scene.optimizer]),
    ):
        scene.run()
        scene.host_step()
        in_place()
        for parameter, state, twin in zip(parameters, states, scene.host.parameters(), strict=True):
            assert all(scene.optimizer.state[parameter][k] is v for k, v in state.items())
            close(state["exp_avg"], scene.host_optimizer.state[twin]["exp_avg"])


def test_another_model_of_the_same_structure(pefs):
    scene = pefs.loaded(ADAMW)
    train(scene, range(2))
    other = ADAMW.build()
    samba.session.to_cpu(other.model, other.optimizer)
    for parameter in other.model.parameters():
        parameter.data.mul_(2)
    for state in other.optimizer.state.values():
        assert state["step"] == 2
        state["exp_avg"].zero_()
    samba.session.to_rdu(other.model, other.optimizer)
    for ours, theirs in zip(scene.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours.sn_data, theirs.data)
    plain = copy.deepcopy(scene.host)  # not converted: names do not matter, paths do
    samba.session.to_cpu(plain)
    assert torch.equal(plain.first.weight.data, scene.model.first.weight.sn_data)


def test_some_of_the_optimizers(tmp_path):
    def make(model):
        return [
            samba.optim.AdamW(model.first.parameters(), lr=0.01),
            samba.optim.SGD(model.second.parameters(), lr=0.1, momentum=0.9),
        ]

    scene = loaded(World(name="two_kinds", optimizer=make), tmp_path)
    scene.run()
    first, second = scene.optimizer
    samba.session.to_cpu(scene.model, [second])
    assert len(second.state) == 2 and not first.state
    scene.host_step()
    want = scene.host_optimizer[1].state[scene.host.second.weight]["momentum_buffer"]
    close(second.state[scene.model.second.weight]["momentum_buffer"], want)
    samba.session.to_cpu(scene.model, [second, first])  # in any order
    assert len(first.state) == 2


# -- buffers ------------------------------------------------------------------------------


class Normed(nn.Module):
    """Batch normalisation: two float buffers and an integer one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x, y):
        out = self.head(self.norm(self.linear(x)).tanh())
        return F.cross_entropy(out, y), out


NORMED = World(name="normed", model=Normed)


@covers("samba.session.sync_buffers_to_cpu", ".sync_buffers_to_rdu")
def test_buffers_follow_torch(pefs: Pefs):
    scene = pefs.loaded(NORMED)
    for step in range(3):
        batch = other_batch(step)
        scene.run(named(batch))
        scene.host_step(batch)
    before = [p.data.clone() for p in scene.model.parameters()]
    buffers = dict(scene.model.named_buffers())
    samba.session.sync_buffers_to_cpu(scene.model)
    assert all(scene.model.get_buffer(name) is buffer for name, buffer in buffers.items())
    assert all(map(torch.equal, before, [p.data for p in scene.model.parameters()]))
    for name, buffer in scene.host.named_buffers():
        close(scene.model.get_buffer(name), buffer, name)
    assert scene.model.norm.num_batches_tracked.item() == 3
    names = [f"normed__norm__{n}" for n in ("running_mean", "running_var")]
    assert torch.equal(samba.session.buffer_dict[names[0]].data, scene.model.norm.running_mean)
    for fetched, name in zip(samba.session.get_tensors_by_name(names), names, strict=True):
        close(fetched, scene.host.get_buffer(name.removeprefix("normed__").replace("__", ".")))

    scene.model.norm.reset_running_stats()
    scene.host.norm.reset_running_stats()
    with torch.no_grad():
        scene.model.head.weight.zero_()  # must stay behind
    samba.session.sync_buffers_to_rdu(scene.model)
    scene.run()
    scene.host_step()
    samba.session.to_cpu(scene.model)
    for name, buffer in scene.host.named_buffers():
        close(scene.model.get_buffer(name), buffer, name)
    assert scene.model.norm.num_batches_tracked.item() == 1


def test_a_trained_checkpoint_infers_on_the_device(pefs, tmp_path):
    """Train from one PEF, infer from another, with the running statistics of the training."""
    scene = pefs.loaded(NORMED)
    for step in range(3):
        scene.run(named(other_batch(step)))
    samba.session.to_cpu(scene.model)
    path = tmp_path / "weights.pt"
    torch.save(scene.model.state_dict(), path)
    samba.session.reset()

    infer = World(name="normed_infer", model=Normed, optimizer=INFERENCE.optimizer).build()
    infer.compile(tmp_path, inference=True)
    infer.model.load_state_dict(torch.load(path, weights_only=True))
    infer.trace()
    infer.host.load_state_dict(torch.load(path, weights_only=True))
    infer.host.eval()
    for ours, theirs in zip(infer.run(), infer.host(**infer.tensors), strict=True):
        close(ours, theirs.detach())
    samba.session.to_cpu(infer.model)  # inference leaves statistics alone
    assert infer.model.norm.num_batches_tracked.item() == 3
