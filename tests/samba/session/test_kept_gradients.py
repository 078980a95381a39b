"""Gradients of outputs that a script gives: which are kept, and ``init_output_grads=False``."""

from __future__ import annotations

import pytest
import torch

import samba
import samba.utils as utils
from emulator.errors import NotSeeded
from pef_schema.program import SectionKind
from tests.api.covers import covers
from tests.samba.session.loading import FINE, assert_gradients
from tests.samba.worlds import MLP, close, deviations, told

STEP = ["fwd", "bckwd", "opt"]


def texts(caplog) -> list[str]:
    found = [text for text in told(caplog) if "was set for an earlier run" in text]
    assert deviations(caplog).count("kept-gradient") == len(found)
    return found


def seed(scene, value: float = 0.5) -> None:
    scene.model.output_tensors[0].sn_grad = torch.tensor(value)


@covers("samba.SambaTensor.sn_grad", "samba.session.run(output_tensors)")
@pytest.mark.parametrize("way", ["sn_grad", "grad_of_outputs"])
def test_a_gradient_of_an_earlier_run_is_told_once(pefs, caplog, way):
    scene = pefs.loaded(MLP)
    if way == "sn_grad":
        seed(scene)
        scene.run(section_types=STEP)
    else:
        scene.run(section_types=STEP, grad_of_outputs=[torch.tensor(0.5)])
    assert not texts(caplog)
    for _ in range(3):
        scene.run(section_types=STEP)
    (text,) = texts(caplog)
    assert "mlp__cross_entropy_loss__outputs__0" in text
    assert scene.model.output_tensors[0].sn_grad.item() == 0.5


@pytest.mark.parametrize("hyperparam_dict", [None, {"lr": 0.1}])
def test_a_gradient_that_is_set_for_each_run_is_not_told(pefs, caplog, hyperparam_dict):
    """Whether a run repeats the last or not."""
    scene = pefs.loaded(MLP)
    for step in range(4):
        seed(scene, 1.0 + step)
        lr = {} if hyperparam_dict is None else {"hyperparam_dict": {"lr": 0.1 / (1 + step)}}
        scene.run(section_types=["fwd"])
        scene.run(section_types=["bckwd", "opt"], **lr)
    for step in range(4):
        seed(scene, 1.0 + step)
        scene.run(section_types=STEP)
    assert not texts(caplog)
    scene.run(section_types=STEP)
    assert len(texts(caplog)) == 1


def test_a_gradient_that_is_set_between_runs_is_old_in_the_one_after_the_next(pefs, caplog):
    scene = pefs.loaded(MLP)
    for _ in range(3):
        scene.run(section_types=STEP)
    seed(scene)
    scene.run(section_types=["fwd"])
    scene.run(section_types=STEP)
    assert not texts(caplog)
    scene.run(section_types=["fwd"])
    assert not texts(caplog)
    scene.run(section_types=STEP)
    assert len(texts(caplog)) == 1


def test_sections_of_one_backward_pass_are_no_later_run(pefs, caplog):
    scene = pefs.loaded(FINE)
    seed(scene)
    program = samba.session.program
    assert program is not None
    pairs = [(i, step.kind) for i, s in enumerate(program.sections) for step in s.steps]
    sections = [section for section, kind in pairs if kind is SectionKind.BCKWD]
    assert len(sections) > 1
    for _ in range(2):
        assert not texts(caplog)
        scene.run(section_types=["fwd"])
        for section in sections:
            scene.run(section_ids=[section])
    assert len(texts(caplog)) == 1


@covers("samba.utils.init_output_grads", ".init_output_grads(customized_tensors_dict)")
def test_what_init_output_grads_sets_is_meant_to_stay(pefs, caplog):
    scene = pefs.loaded(MLP)
    outputs = scene.model.output_tensors
    seed(scene)
    name = outputs[0].sn_name
    utils.init_output_grads([], [name], {name: torch.tensor(0.25)})
    assert outputs[0].sn_grad == 0.25
    for _ in range(3):
        scene.run(section_types=STEP)
    assert not texts(caplog)


def test_zerograd_without_such_a_section_says_what_becomes_of_the_gradients(pefs, caplog):
    """The next OPT uses them again, as it does on hardware."""
    scene = pefs.loaded(MLP)
    scene.run(section_types=STEP)
    scene.run(section_types=["zerograd"])
    assert deviations(caplog) == ["absent-section"]
    (text,) = told(caplog)
    assert "an OPT without a BCKWD before it uses them again" in text
    assert "nothing to run" not in text
    before = scene.model.first.weight.sn_data
    scene.run(section_types=["opt"])
    assert not torch.equal(scene.model.first.weight.sn_data, before)


# -- init_output_grads=False: only given gradients start a backward --------------------


ONE = torch.ones(())
SEED = torch.linspace(-1, 1, 15).reshape(5, 3)
BACKWARD = {"section_types": ["fwd", "bckwd"]}


@pytest.fixture
def scene(pefs):
    return pefs.loaded(MLP, init_output_grads=False)


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


def test_section_by_section_the_one_that_reads_the_loss_is_refused(pefs):
    scene = pefs.loaded(FINE, init_output_grads=False)
    scene.run(section_types=["fwd"])
    program = samba.session.program
    assert program is not None
    ids = [i for i, s in enumerate(program.sections) if "BCKWD" in {k.name for k in s.kinds}]
    with pytest.raises(NotSeeded):
        samba.session.run(section_ids=[ids])
    scene.model.output_tensors[0].sn_grad = ONE
    samba.session.run(section_types=["bckwd"])
    assert_gradients(scene, ONE, None)
