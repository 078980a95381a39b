"""Names of the page of ``samba.utils`` that other tests do not cover."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import samba
import samba.utils as utils
from emulator.errors import NotSeeded
from samba.errors import ArgumentError
from tests.api.covers import covers
from tests.samba.worlds import MLP, World, close, told

FORWARD_BACKWARD = {"section_types": ["fwd", "bckwd"]}


@covers("samba.utils.trace_graph(init_output_grads)")
def test_gradients_of_outputs_after_a_trace(pefs):
    scene = pefs.loaded(MLP, init_output_grads=True)
    loss, out = scene.model.output_tensors
    close(loss.sn_grad, torch.ones(()))
    close(out.sn_grad, torch.zeros(5, 3))
    scene.run(**FORWARD_BACKWARD)
    scene.host(**scene.tensors)[0].backward()
    close(scene.model.first.weight.sn_grad, scene.host.first.weight.grad)
    scene.trace(init_output_grads=False)
    with pytest.raises(NotSeeded, match=r"trace_graph\(init_output_grads=False\) initialises none"):
        scene.run(**FORWARD_BACKWARD)
    scene.model.output_tensors[0].sn_grad = torch.tensor(3.0)
    scene.run(**FORWARD_BACKWARD)
    close(scene.model.first.weight.sn_grad, 3 * scene.host.first.weight.grad)
    scene.trace(init_output_grads=True)
    close(scene.model.output_tensors[0].sn_grad, torch.ones(()))


@covers("samba.utils.trace_graph(mapping)")
def test_the_mapping_of_the_pef_holds(pefs, caplog):
    spatial = World(name="spatial", config={"mapping": "spatial"})
    for world, mappings in ((MLP, ("section", "spatial")), (spatial, ("spatial", "section"))):
        for mapping in mappings:
            scene = pefs.loaded(world, mapping=mapping)
            scene.run()
            scene.host_step()
            scene.assert_follows()
    (text,) = told(caplog)
    assert text == (
        f"trace_graph(mapping='spatial'): {pefs(MLP)} was compiled with mapping 'section', "
        "which is used; compile again to change it"
    )


@covers(
    "samba.utils.init_output_grads",
    ".init_output_grads(output_tensors, unspecified_tensor_grad, customized_tensors_dict)",
)
def test_gradients_are_those_given_and_else_ones(scene):
    loss, out = scene.model.output_tensors
    seed, one = torch.linspace(-1, 1, 15).reshape(5, 3), torch.ones(())
    for name in (out.sn_name, out.sn_grad_name):
        utils.init_output_grads(
            output_tensors=[loss.sn_name], customized_tensors_dict={name: samba.SambaTensor(seed)}
        )
        close(out.sn_grad, seed)
        close(loss.sn_grad, one)
        scene.run(**FORWARD_BACKWARD)
        scene.host.zero_grad()
        torch.autograd.backward(scene.host(**scene.tensors), (one, seed))
        close(scene.model.first.weight.sn_grad, scene.host.first.weight.grad)
        loss.sn_grad = 3 * one
        utils.init_output_grads(output_tensors=[], unspecified_tensor_grad=[name])
        close(out.sn_grad, torch.ones(5, 3))
        close(loss.sn_grad, 3 * one)  # not named
    for name in ("y", "no_such"):
        with pytest.raises(samba.SambaError, match=name):
            utils.init_output_grads([], unspecified_tensor_grad=[name])


@covers("samba.utils.init_output_grads(is_variable_batch_size)")
def test_gradients_have_the_compiled_batch_size(scene):
    _, out = scene.model.output_tensors
    seed = torch.linspace(-1, 1, 15).reshape(5, 3)
    for flag in (True, False):
        utils.init_output_grads(
            [out], customized_tensors_dict={out.sn_name: seed}, is_variable_batch_size=flag
        )
        close(out.sn_grad, seed)
        seed = seed + 1
    with pytest.raises(ArgumentError, match=r"\[3, 3\], expected.*\[5, 3\].*batch size") as caught:
        utils.init_output_grads([out], [], {out.sn_name: seed[:3]}, is_variable_batch_size=True)
    assert caught.value.deviation == "fixed-batch-size"


# -- inputs, optimizers and gradients of outputs that tracing is given -----------------


@covers("samba.session.compile(inputs)", "samba.utils.trace_graph(inputs)")
def test_inputs_by_keyword_have_no_order(pefs, tmp_path):
    """A dict means keyword arguments, in whatever order it has them."""
    files = []
    for order in (("x", "y"), ("y", "x")):
        scene = MLP.build()
        by_name = dict(zip(("x", "y"), scene.inputs, strict=True))
        scene.inputs = {name: by_name[name] for name in order}
        files.append(Path(scene.compile(tmp_path / order[0])).read_bytes())
        scene.inputs = {name: by_name[name] for name in reversed(order)}
        scene.trace()
        loss, out = scene.run()
        want_loss, want = scene.host_step()
        close(loss, want_loss)
        close(out, want)
    assert files[0] == files[1] == Path(pefs(MLP)).read_bytes()
