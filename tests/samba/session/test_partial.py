"""Backward passes that start from the host: ``sn_grad``, ``grad_of_outputs``, losses outside."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
import samba.utils as utils
from tests.api.covers import covers
from tests.samba.worlds import INFERENCE, MLP, World, close, features, named, told


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


@covers(
    "samba.utils.init_output_grads",
    "samba.utils.init_output_grads(output_tensors)",
    "samba.utils.init_output_grads(unspecified_tensor_grad)",
    "samba.utils.init_output_grads(customized_tensors_dict)",
)
def test_init_output_grads(scene):
    (output,) = scene.model.output_tensors
    seed = torch.linspace(-1, 1, 15).reshape(5, 3)
    utils.init_output_grads([output], customized_tensors_dict={output.sn_name: seed})
    close(output.sn_grad, seed)
    utils.init_output_grads([output.sn_name])
    close(output.sn_grad, torch.ones(5, 3))
    utils.init_output_grads([], [output.sn_name], {output.sn_name: seed})
    close(output.sn_grad, seed)


# -- two outputs ----------------------------------------------------------------


def grads(scene) -> dict[str, torch.Tensor]:
    return {path: p.sn_grad for path, p in scene.model.named_parameters()}


def assert_grads(scene, *seeds: torch.Tensor | None) -> None:
    """Compare gradients on the device with torch's for these gradients of ``(loss, logits)``."""
    scene.host.zero_grad()
    outputs = scene.host(**scene.tensors)
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if s is not None]
    torch.autograd.backward([o for o, _ in pairs], [s for _, s in pairs])
    for path, parameter in scene.host.named_parameters():
        close(grads(scene)[path], parameter.grad, path)


ONE = torch.ones(())
SEED = torch.linspace(-1, 1, 15).reshape(5, 3)
BACKWARD = {"section_types": ["fwd", "bckwd"]}


def test_only_the_loss_starts_a_backward_pass(pefs):
    scene = pefs.loaded(MLP)
    scene.run(**BACKWARD)
    assert_grads(scene, ONE, None)
    close(scene.model.output_tensors[0].sn_grad, ONE)
    close(scene.model.output_tensors[1].sn_grad, torch.zeros(5, 3))


def test_gradients_of_several_outputs_add_up(pefs):
    scene = pefs.loaded(MLP)
    scene.run(grad_of_outputs=[None, SEED], **BACKWARD)
    assert_grads(scene, ONE, SEED)
    scene.run(grad_of_outputs=(ONE * 3, None), **BACKWARD)
    assert_grads(scene, ONE * 3, SEED)
    scene.model.output_tensors[1].sn_grad = torch.zeros(5, 3)
    scene.run(**BACKWARD)
    assert_grads(scene, ONE * 3, None)
    utils.init_output_grads(scene.model.output_tensors)
    scene.run(**BACKWARD)
    assert_grads(scene, ONE, torch.ones(5, 3))


@pytest.mark.parametrize(
    "indices, seeds",
    [([1], (None, torch.ones(5, 3))), ([(0,), (1,)], (ONE, torch.ones(5, 3))), ([], (None, SEED))],
)
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
    assert_grads(scene, *seeds)


def test_loss_indices_seed_with_gradients(tmp_path):
    scene = World(name="mlp", compile={"loss_indices": [1]}).build()
    scene.compile(tmp_path)
    scene.trace()
    scene.run(grad_of_outputs=[ONE * 2, SEED], **BACKWARD)
    assert_grads(scene, ONE * 2, SEED)


class PerSample(nn.Module):
    """No output is a scalar: a loss without reduction, and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, y):
        out = self.linear(x)
        return F.cross_entropy(out, y, reduction="none"), out


@pytest.mark.parametrize("indices", [[0], None])
def test_per_sample_loss_weighted_by_sn_grad(tmp_path, indices):
    """A loss without reduction, weighted and masked by its gradient.

    The logits are no loss if ``loss_indices`` says so; else the gradient that was set stands alone.
    """
    scene = World(name="persample", model=PerSample, compile={"loss_indices": indices}).build()
    scene.compile(tmp_path)
    scene.trace()
    weights = torch.tensor([0.5, 0.0, 0.25, 0.25, 0.0])
    scene.model.output_tensors[0].sn_grad = weights
    scene.run(**BACKWARD)
    assert_grads(scene, weights, None)


# -- gradients of inputs, and gradients the host writes ---------------------------


def test_an_input_that_requires_grad_gets_one(tmp_path):
    def inputs():
        return {"x": features()["x"].requires_grad_(), "y": features()["y"]}

    scene = World(name="mlp", inputs=inputs).build()
    scene.compile(tmp_path)
    scene.trace()
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


def test_inference_matches_torch_in_evaluation_mode(pefs):
    scene = pefs.loaded(INFERENCE)
    scene.host.eval()
    for ours, theirs in zip(scene.run(), scene.host(**scene.tensors), strict=True):
        close(ours, theirs.detach())
    assert samba.session.get_section_types() == {"FWD"}
    loss, _ = samba.session.run(named(scene.tensors), scene.model.output_tensors, {})
    close(loss, scene.host(**scene.tensors)[0].detach())
