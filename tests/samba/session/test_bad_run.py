"""Bad input to a loaded program: the text of each error, and that nothing has changed."""

from __future__ import annotations

import contextlib
import types

import numpy as np
import pytest
import torch

import samba
import samba.utils as utils
from samba.errors import SambaError
from tests.samba.worlds import DROPOUT, INFERENCE, MLP, NO_OPTIMIZER, close, named, other_batch


@pytest.fixture
def scene(pefs):
    scene = pefs.loaded(DROPOUT)
    scene.run(hyperparam_dict={"p": 0.25}, train=False)
    return scene


def memory() -> list[np.ndarray | None]:
    """Everything that is on the device."""
    device = samba.session._slot.loaded.device
    kept = [None if b is None else np.array(b) for b in device.pool.buffers]
    kept += [np.array(device.argin(i)) for i in range(len(device.program.argins))]
    return kept


@contextlib.contextmanager
def refused(*parts: str, case: str = ""):
    """The body raises an error whose text has these parts, and changes nothing on the device."""
    before, runs, caught = memory(), samba.session.counters.runs, types.SimpleNamespace(text="")
    try:
        yield caught
    except SambaError as error:
        text = caught.text = str(error)
    else:
        pytest.fail(f"{case}: nothing was raised")
    missing = [part for part in parts if part not in text]
    assert not missing, f"{case}: {missing} not in: {text}"
    assert samba.session.counters.runs == runs, case
    for ours, theirs in zip(memory(), before, strict=True):
        assert (ours is None) == (theirs is None), case
        assert ours is None or np.array_equal(ours, theirs), case


def tensor(*shape, dtype=torch.float32, name="x"):
    return samba.from_torch_tensor(torch.zeros(*shape, dtype=dtype), name=name)


# Everything that a refused call must not have done.
REST = {"hyperparam_dict": {"lr": 0.9, "momentum": 0.1, "p": 0.75}, "train": True}


BAD_INPUTS = {
    "shape": (
        lambda y: (tensor(4, 4), y),
        ["tensor x", "shape [4, 4] float32", "shape [5, 4] float32", "drop_last", "compile again"],
    ),
    "dtype": (
        lambda y: (tensor(5, 4, dtype=torch.int64), y),
        ["tensor x", "found int64", "compiled for float32", "as .to(torch.float32)"],
    ),
    "name": (
        lambda y: (tensor(5, 4, name="image"), y),
        ["input_tensors[0]", "a tensor named 'image'", "inputs named x, y", "from_torch_tensor"],
    ),
    "the second is wrong": (
        lambda y: (tensor(5, 4), tensor(5, name="y")),
        ["tensor y", "float32", "int64", "as .to(torch.int64)"],
    ),
    "key": (
        lambda y: {"images": torch.zeros(5, 4), "y": y},
        ["input_tensors['images']", "'images'", "inputs named x, y"],
    ),
    "key and name": (
        lambda y: {"x": y},
        ["input_tensors['x']", "a tensor named y", "a tensor for input x", "rename"],
    ),
    "twice": (
        lambda y: (tensor(5, 4), y, tensor(5, 4)),
        ["input_tensors[2]", "a second tensor for input x", "one tensor for each input"],
    ),
    "too many": (
        lambda y: (torch.zeros(5, 4), y, torch.zeros(1)),
        ["input_tensors[2]", "one tensor too many", "inputs named x, y"],
    ),
    "place without a slot": (lambda y: (None, None, torch.zeros(5, 4)), ["one tensor too many"]),
    "an array": (
        lambda y: (np.zeros((5, 4), np.float32), y),
        ["[0]", "found ndarray", "SambaTensor"],
    ),
    "a number": (lambda y: 5, ["input_tensors", "found int", "a tensor, a tuple, a list, a dict"]),
    "the model first": (lambda y: torch.nn.Linear(1, 1), ["found Linear", "a tensor, a tuple"]),
    "without values": (
        lambda y: (samba.SambaTensor(shape=(5, 4), name="x"), y),
        ["input_tensors", "SambaTensor x", "no values"],
    ),
}


def test_bad_inputs(scene):
    """One after the other on one device: none of them may leave a trace."""
    for case, (make, parts) in BAD_INPUTS.items():
        with refused(*parts, case=case):
            scene.run(make(scene.inputs[1]), **REST)
    assert_as_before(scene)


def assert_as_before(scene) -> None:
    """The next runs are those that would have followed without the refused call."""
    for seed in (3, 4):
        batch = other_batch(seed)
        scene.run(named(batch), train=False)
    scene.host.eval()
    scene.host_step()
    for seed in (3, 4):
        scene.host_step(other_batch(seed))
    scene.assert_follows()


BAD_CALLS = {
    "keyword": (
        {"imput_tensors": ()},
        [
            "session.run()",
            "unexpected keyword argument: imput_tensors",
            "Did you mean input_tensors",
        ],
    ),
    "far keyword": ({"foo": 1}, ["session.run()", "foo", "It has input_tensors, output_tensors"]),
    "section type": (
        {"section_types": ["fwd", "FORWARD"]},
        ["section_types", "found FORWARD", "has FWD, BCKWD, OPT", ".pef.log"],
    ),
    "type of section type": ({"section_types": [1]}, ["section_types", "int 1", "'FWD'"]),
    "section id": (
        {"section_ids": [0, 3]},
        ["section_ids", "found 3", "sections 0 to 2", ".pef.log"],
    ),
    "negative section id": ({"section_ids": [[-1]]}, ["section_ids", "found -1"]),
    "type of section id": ({"section_ids": ["fwd"]}, ["section_ids", "str 'fwd'", "whole numbers"]),
    "fraction as section id": ({"section_ids": [0.5]}, ["section_ids", "float 0.5"]),
    "ids and types": (
        {"section_ids": [0], "section_types": ["fwd"]},
        ["section_ids=[0]", "['FWD']", "one of the two"],
    ),
    "ids and calls": (
        {"section_ids": [0], "run_until_call_id": 1},
        ["section_ids=[0]", "run_from/until_call_id", "one of the two"],
    ),
    "call id": ({"run_until_call_id": 3}, ["run_until_call_id", "found 3", "calls 0 to 2"]),
    "calls turned round": (
        {"run_from_call_id": 2, "run_until_call_id": 1},
        ["run_from_call_id", "2 and 1", "does not come after"],
    ),
    "output name": (
        {"output_tensors": [tensor(5, 3, name="logits")]},
        ["output_tensors[0]", "logits", "no tensor of that name"],
    ),
    "output without a name": (
        {"output_tensors": [torch.zeros(1)]},
        ["output_tensors[0]", "found Tensor", "model.output_tensors"],
    ),
    "data parallel mode": (
        {"data_parallel_mode": "fast"},
        ["data_parallel_mode", "'fast'", "'normal' or 'inorder' or 'optimal'"],
    ),
    "lr": (
        {"hyperparam_dict": {"lr": "fast"}},
        ["hyperparam_dict['lr']", "str 'fast'", "a finite"],
    ),
    "lr below zero": ({"hyperparam_dict": {"lr": -0.1}}, ["['lr']", "float -0.1", "0 or more"]),
    "p": ({"hyperparam_dict": {"p": 1.5}}, ["['p']", "float 1.5", "a number from 0 to 1"]),
    "seed": ({"hyperparam_dict": {"mlp__seed": 0.5}}, ["['mlp__seed']", "0.5", "a whole number"]),
    "the second value": (
        {"hyperparam_dict": {"lr": 0.5, "momentum": None}},
        ["['momentum']", "NoneType None", "no hyperparameter was changed"],
    ),
    "no dict": ({"hyperparam_dict": 0.1}, ["hyperparam_dict", "found float", "a dict"]),
    "gradient of another shape": (
        {"grad_of_outputs": [None, torch.ones(4, 3)]},
        ["second__linear__outputs__0__grad", "[4, 3]", "[5, 3]"],
    ),
    "the second gradient": (
        {"grad_of_outputs": [torch.tensor(9.0), torch.ones(5, 3) + 1j]},
        ["second__linear__outputs__0__grad", "complex64", "float32"],
    ),
    "too many gradients": (
        {"grad_of_outputs": [None, None, torch.ones(1)]},
        ["grad_of_outputs", "3 gradients", "each of the 2 outputs"],
    ),
    "a number as gradient": (
        {"grad_of_outputs": [1.0]},
        ["grad_of_outputs", "found float", "tensors or None"],
    ),
}


def test_bad_calls(scene):
    inputs = named(other_batch(9))
    for case, (call, parts) in BAD_CALLS.items():
        with refused(*parts, case=case):
            samba.session.run(
                inputs, **({"output_tensors": scene.model.output_tensors} | REST | call)
            )
    assert_as_before(scene)


def test_a_refused_call_inside_a_repeated_one(scene):
    """The prepared path is undone as well: here its activations are gone."""
    scene.run(section_types=["fwd"])
    for _ in range(2):
        scene.run(section_types=["bckwd"])
    device, program = samba.session._slot.loaded.device, samba.session.program
    device.pool.buffers[:] = [
        None if region.role.is_transient else buffer
        for region, buffer in zip(program.regions, device.pool.buffers, strict=True)
    ]
    with refused("activation", "hold no data", "Run the FWD sections first"):
        scene.run(named(other_batch(9)), section_types=["bckwd"])


def test_backward_before_forward(pefs):
    scene = pefs.loaded(MLP)
    with refused("activation region(s)", "hold no data", "Run the FWD sections first"):
        scene.run(named(other_batch(9)), section_types=["bckwd"], hyperparam_dict={"lr": 0.7})
    # In the full schedule forward and backward are one, and leave nothing behind.
    scene.run()
    scene.host_step()
    with refused("activation"):
        scene.run(section_types=["bckwd", "opt"], hyperparam_dict={"lr": 0.7})
    scene.run()
    scene.host_step()
    scene.assert_follows()


def test_a_missing_input(pefs):
    """Weights are there, the inputs are not: they were never transferred."""
    scene = pefs.loaded(MLP, transfer_device=False)
    samba.session.to_rdu(scene.model, scene.optimizer)
    with refused("input region(s) y", "hold no data", "Pass them in input_tensors"):
        scene.run(scene.inputs[:1])
    scene.run()
    scene.host_step()
    scene.assert_follows()


def test_opt_without_an_optimizer(pefs):
    scene = pefs.loaded(NO_OPTIMIZER)
    with refused(
        "OPT", "program mlp", "without an optimizer", "session.compile(model, inputs, opt"
    ):
        scene.run(section_types=["fwd", "bckwd", "opt"])
    scene.run(section_types=["fwd", "bckwd"])
    scene.host(**scene.tensors)[0].backward()
    close(scene.model.first.weight.sn_grad, scene.host.first.weight.grad)


# -- tensors and the session ------------------------------------------------------------------


def test_gradients_that_do_not_exist(pefs):
    scene = pefs.loaded(INFERENCE)
    loss = scene.model.output_tensors[0]
    with refused("sn_grad of mlp__first__weight", "no gradient", "for inference", "compile again"):
        _ = scene.model.first.weight.sn_grad
    with refused("sn_grad of mlp__cross_entropy_loss__outputs__0", "no gradient"):
        loss.sn_grad = torch.ones(())
    with refused("grad_of_outputs", "mlp__cross_entropy_loss__outputs__0", "no gradient"):
        scene.run(grad_of_outputs=[torch.ones(())], section_types=["bckwd"])
    with refused("sn_grad of x", "no gradient", "requires_grad"):
        _ = scene.inputs[0].sn_grad
    with refused("gradient of mlp__cross", "none"):
        utils.init_output_grads([], [], {loss.sn_name: torch.ones(())})


def test_gradients_of_another_form(pefs):
    scene = pefs.loaded(MLP)
    loss, out = scene.model.output_tensors
    with refused("__grad", "[2]", "[5, 3]"):
        out.sn_grad = torch.ones(2)
    with refused("gradient of " + out.sn_name, "[2]", "[5, 3]"):
        utils.init_output_grads(
            [loss],
            customized_tensors_dict={loss.sn_name: torch.ones(()), out.sn_name: torch.ones(2)},
        )
    with refused("init_output_grads()", "nothing_of_mine", "no tensor of that name"):
        utils.init_output_grads([loss, "nothing_of_mine"])


def test_names_that_do_not_exist(pefs):
    scene = pefs.loaded(MLP)
    with refused("get_tensors_by_name()", "mlp__third", "no tensor of that name"):
        samba.session.get_tensors_by_name(["mlp__first__weight", "mlp__third"])
    with refused("get_tensors()", "unnamed", "this one has none"):
        samba.session.get_tensors([torch.ones(1)])
    with refused("get_samba_tensor_by_name", "'mlp__frist__weight'", "mlp__first__weight"):
        samba.session.get_samba_tensor_by_name("mlp__frist__weight")
    with refused("update_tensor", "'z'"):
        samba.session.update_tensor("z", None)
    with refused("update_tensor('x', tensor)", "[2]", "[5, 4]"):
        samba.session.update_tensor("x", samba.ones(2))
    assert torch.equal(scene.inputs[0].data, scene.tensors["x"])


class Larger(torch.nn.Module):
    """Has the parameters of the MLP, one of them in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(7, 3)


def test_transfers_of_another_model(pefs):
    pefs.loaded(MLP)
    other = Larger()
    kept = other.first.weight.data.clone()
    for transfer in (samba.session.to_cpu, samba.session.to_cpu_, samba.session.to_rdu):
        with refused("second.weight of the model", "[3, 7]", "[3, 6]", "the model that was traced"):
            transfer(other)
        with refused("first.weight of the model", "none"):
            transfer(torch.nn.Linear(4, 6))
    assert torch.equal(other.first.weight.data, kept)


def test_transfers_of_another_optimizer(pefs):
    scene = pefs.loaded(MLP)
    adam = torch.optim.Adam(scene.model.parameters())
    stale = torch.optim.SGD(scene.host.parameters(), lr=0.1, momentum=0.9)
    for transfer in (samba.session.to_cpu, samba.session.to_rdu):
        with refused("optimizer adam0", "SGD on the device", "ADAM", "given to trace_graph"):
            transfer(scene.model, adam)
        with refused("optimizer sgd1", "parameters of another model"):
            transfer(scene.model, [scene.optimizer, stale])
        with refused("optimizer list", "not an optimizer"):
            transfer(scene.model, [[scene.optimizer]])


BEFORE_TRACE_GRAPH = (
    lambda s, m: s.run(()),
    lambda s, m: s.to_cpu(m),
    lambda s, m: s.to_cpu_(m),
    lambda s, m: s.to_rdu(m),
    lambda s, m: s.to_device(),
    lambda s, m: s.sync_buffers_to_cpu(m),
    lambda s, m: s.sync_buffers_to_rdu(m),
    lambda s, m: s.get_tensors([]),
    lambda s, m: s.get_tensors_by_name([]),
    lambda s, m: s.get_samba_tensor_by_name("x"),
    lambda s, m: s.update_tensor("x", None),
    lambda s, m: s.get_weight_names(),
    lambda s, m: s.get_section_types(),
    lambda s, m: s.get_argin_names(),
    lambda s, m: s.get_dropout_rate_argin_names(),
    lambda s, m: s.get_dropout_seed_argin_names(),
    lambda s, m: s.reset_random_generator(),
    lambda s, m: s.synchronize(),
    lambda s, m: utils.init_output_grads(["x"]),
    lambda s, m: utils.measure_performance(m, (), 1),
    lambda s, m: utils.measure_sections(m, ()),
)


def test_before_trace_graph():
    model = MLP.build().model
    for call in BEFORE_TRACE_GRAPH:
        with pytest.raises(SambaError, match=r"nothing is on the device.*utils\.trace_graph\("):
            call(samba.session, model)
