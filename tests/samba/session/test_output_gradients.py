"""``trace_graph(init_output_grads=False)``: only gradients that a script gives start a backward."""

from __future__ import annotations

import pytest
import torch

import samba
import samba.utils as utils
from emulator.errors import NotSeeded
from tests.api.covers import covers
from tests.samba.worlds import MLP, World, close

ONE = torch.ones(())
SEED = torch.linspace(-1, 1, 15).reshape(5, 3)
BACKWARD = {"section_types": ["fwd", "bckwd"]}


@pytest.fixture
def scene(pefs):
    return pefs.loaded(MLP, init_output_grads=False)


def assert_gradients(scene, *seeds: torch.Tensor | None) -> None:
    """Gradients on the device are torch's for these of ``(loss, logits)``."""
    scene.host.zero_grad()
    outputs = scene.host(**scene.tensors)
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if s is not None]
    torch.autograd.backward([o for o, _ in pairs], [s for _, s in pairs])
    for path, parameter in scene.host.named_parameters():
        close(dict(scene.model.named_parameters())[path].sn_grad, parameter.grad, path)


def test_a_backward_pass_without_any_gradient_is_refused_and_changes_nothing(scene):
    before = scene.weights()
    with pytest.raises(NotSeeded, match="mlp__cross_entropy_loss__outputs__0") as caught:
        scene.run()
    assert caught.value.names == ("mlp__cross_entropy_loss__outputs__0",)
    for path, weight in scene.weights().items():
        assert torch.equal(weight, before[path])
    scene.run(section_types=["fwd"])


@covers("samba.utils.trace_graph(init_output_grads)")
def test_gradients_that_were_set_start_it_alone(scene):
    loss, out = scene.model.output_tensors
    out.sn_grad = SEED
    scene.run(**BACKWARD)
    assert_gradients(scene, None, SEED)  # with True the loss would add to it
    close(loss.sn_grad, torch.zeros(()))
    loss.sn_grad = ONE * 2
    scene.run(**BACKWARD)
    assert_gradients(scene, ONE * 2, SEED)


def test_gradients_given_to_the_run_start_it(scene):
    scene.run(grad_of_outputs=[ONE * 3], **BACKWARD)
    assert_gradients(scene, ONE * 3, None)


def test_init_output_grads_starts_it_with_ones(scene):
    utils.init_output_grads(scene.model.output_tensors[:1])
    scene.run()
    scene.host_step()
    scene.assert_follows()


def test_section_by_section_the_one_that_reads_the_loss_is_refused(pefs):
    scene = pefs.loaded(World(name="mlp_o0", config={"optim_level": "o0"}), init_output_grads=False)
    scene.run(section_types=["fwd"])
    program = samba.session.program
    assert program is not None
    ids = [i for i, s in enumerate(program.sections) if "BCKWD" in {k.name for k in s.kinds}]
    with pytest.raises(NotSeeded):
        samba.session.run(section_ids=[ids])
    scene.model.output_tensors[0].sn_grad = ONE
    samba.session.run(section_types=["bckwd"])
    assert_gradients(scene, ONE, None)
