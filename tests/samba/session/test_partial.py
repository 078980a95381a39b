"""Backward passes that start from the host: ``sn_grad``, ``grad_of_outputs``, losses outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from tests.api.covers import covers
from tests.samba.session.loading import assert_gradients, loaded
from tests.samba.worlds import INFERENCE, MLP, World, close, features, told


class Logits(nn.Module):
    """The loss is the host's business."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x):
        return self.second(self.first(x).tanh())


LOGITS = World(name="logits", model=Logits, inputs=lambda: {"x": features()["x"]})
LABELS = torch.tensor([0, 2, 1, 1, 0])


def host_loss(logits: torch.Tensor) -> torch.Tensor:
    """A loss that no example computes on the device."""
    return (F.log_softmax(logits, 1)[range(5), LABELS] * torch.arange(1.0, 6.0)).sum().neg()


def host_step(scene) -> None:
    scene.host_optimizer.zero_grad()
    host_loss(scene.host(**scene.tensors)).backward()
    scene.host_optimizer.step()


@pytest.fixture
def scene(pefs):
    return pefs.loaded(LOGITS)


@covers("samba.session.run(grad_of_outputs)")
def test_a_loss_on_the_host_as_on_the_slides(scene):
    for _ in range(3):
        (partial,) = scene.run(section_types=["fwd"])
        assert not partial.requires_grad
        partial.requires_grad = True
        host_loss(partial).backward()
        scene.run(
            grad_of_outputs=(samba.from_torch_tensor(partial.grad),),
            section_types=["bckwd", "opt"],
        )
        host_step(scene)
    scene.assert_follows()


def test_a_loss_on_the_host_by_sn_grad(scene):
    for _ in range(3):
        (logits,) = samba.session.run(
            scene.inputs, scene.model.output_tensors, section_types=["fwd"]
        )
        logits.requires_grad_()
        host_loss(logits).backward()
        scene.model.output_tensors[0].sn_grad = logits.grad
        samba.session.run(section_types=["bckwd", "opt"])
        host_step(scene)
    scene.assert_follows()


def test_outputs_come_back_whatever_ran(scene):
    (forward,) = scene.run(section_types=["fwd"])
    for types in (["bckwd"], ["opt"], ["bckwd", "opt"]):
        (again,) = scene.run(section_types=types)
        assert torch.equal(again, forward)
    # The optimizer moved the weights, so a new forward pass gives new outputs.
    assert not torch.equal(scene.run(section_types=["fwd"])[0], forward)


def test_without_a_gradient_the_output_starts_from_ones(scene):
    scene.run()
    scene.host_optimizer.zero_grad()
    scene.host(**scene.tensors).sum().backward()
    scene.host_optimizer.step()
    scene.assert_follows()
    close(scene.model.output_tensors[0].sn_grad, torch.ones(5, 3))


def test_a_gradient_stays_until_another_is_set(scene):
    seed = torch.linspace(-1, 1, 15).reshape(5, 3)
    scene.run(grad_of_outputs=[seed])
    scene.run()
    for _ in range(2):
        scene.host_optimizer.zero_grad()
        scene.host(**scene.tensors).backward(seed)
        scene.host_optimizer.step()
    scene.assert_follows()
    close(scene.model.output_tensors[0].sn_grad, seed)
    close(samba.session.get_tensors_by_name([scene.model.output_tensors[0].sn_grad_name])[0], seed)


def test_a_gradient_is_copied(scene):
    seed = torch.ones(5, 3)
    scene.model.output_tensors[0].sn_grad = seed
    seed.zero_()
    close(scene.model.output_tensors[0].sn_grad, torch.ones(5, 3))
    seed.fill_(2)
    scene.run(grad_of_outputs=seed, section_types=["fwd"])  # a bare tensor counts as one of one
    seed.zero_()
    close(scene.model.output_tensors[0].sn_grad, torch.full((5, 3), 2.0))


# -- two outputs ----------------------------------------------------------------


def grads(scene) -> dict[str, torch.Tensor]:
    return {path: p.sn_grad for path, p in scene.model.named_parameters()}


ONE = torch.ones(())
SEED = torch.linspace(-1, 1, 15).reshape(5, 3)
BACKWARD = {"section_types": ["fwd", "bckwd"]}


def test_gradients_of_several_outputs_add_up(pefs):
    scene = pefs.loaded(MLP)
    scene.run(grad_of_outputs=[None, SEED], **BACKWARD)
    assert_gradients(scene, ONE, SEED)
    scene.run(grad_of_outputs=(ONE * 3, None), **BACKWARD)
    assert_gradients(scene, ONE * 3, SEED)
    scene.model.output_tensors[1].sn_grad = torch.zeros(5, 3)
    scene.run(**BACKWARD)
    assert_gradients(scene, ONE * 3, None)
    utils.init_output_grads(scene.model.output_tensors)
    scene.run(**BACKWARD)
    assert_gradients(scene, ONE, torch.ones(5, 3))


LOSSES = {
    "the second": ([1], (None, torch.ones(5, 3))),
    "the second, by numpy": (np.array([1]), (None, torch.ones(5, 3))),
    "both": ([(0,), (1,)], (ONE, torch.ones(5, 3))),
    "none": ([], (None, SEED)),
}


@pytest.mark.parametrize("indices, seeds", LOSSES.values(), ids=LOSSES)
@covers("samba.session.compile(loss_indices)", "samba.utils.trace_graph(loss_indices)")
def test_loss_indices(tmp_path, indices, seeds):
    scene = World(name="mlp", compile={"loss_indices": indices}).build()
    scene.compile(tmp_path)
    scene.trace(loss_indices=indices)
    if not indices:
        scene.run(**BACKWARD)
        assert all(not grad.any() for grad in grads(scene).values())
        scene.model.output_tensors[1].sn_grad = SEED
    scene.run(**BACKWARD)
    assert_gradients(scene, *seeds)
    scene.run(grad_of_outputs=[ONE * 2, SEED], **BACKWARD)
    assert_gradients(scene, ONE * 2, SEED)


# -- gradients of inputs, and gradients the host writes ---------------------------


def test_an_input_that_requires_grad_gets_one(tmp_path):
    def inputs():
        return {"x": features()["x"].requires_grad_(), "y": features()["y"]}

    scene = loaded(World(name="mlp", inputs=inputs), tmp_path)
    scene.run()
    x = scene.tensors["x"].detach().requires_grad_()
    scene.host(x, scene.tensors["y"])[0].backward()
    close(scene.inputs[0].sn_grad, x.grad)
    scene.inputs[0].cpu()
    close(scene.inputs[0].grad, x.grad)


def test_the_host_may_write_gradients_of_weights(pefs):
    """OPT alone steps with whatever gradients the device holds."""
    scene = pefs.loaded(MLP)
    scene.run(section_types=["fwd", "bckwd"])
    scene.host(**scene.tensors)[0].backward()
    for parameter, twin in zip(scene.model.parameters(), scene.host.parameters(), strict=True):
        parameter.sn_grad = parameter.sn_grad * 0.5
        twin.grad *= 0.5
    samba.session.run(section_types=["opt"])
    scene.host_optimizer.step()
    scene.assert_follows()


def test_backward_twice_after_one_forward(pefs):
    scene = pefs.loaded(MLP)
    scene.run(section_types=["fwd"])
    samba.session.run(section_types=["bckwd"])
    first = grads(scene)
    samba.session.run(section_types=["bckwd"])
    assert all(torch.equal(g, first[path]) for path, g in grads(scene).items())


# -- without a backward pass ---------------------------------------------------------


def test_backward_of_an_inference_pef_runs_nothing_and_says_so_once(pefs, caplog):
    scene = pefs.scene(INFERENCE)
    scene.trace()
    forward = scene.run(section_types=["fwd"])
    for _ in range(2):
        again = scene.run(section_types=["bckwd"])
        assert all(map(torch.equal, again, forward))
    text = "this PEF has no BCKWD section; there is nothing to run for it"
    assert told(caplog) == [text]
