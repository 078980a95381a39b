"""Wrong types and values for the documented arguments of the session and of ``utils``: each its own
error when it is given, and nothing is changed."""

from __future__ import annotations

import pytest
import torch

import samba
import samba.utils as utils
from samba.errors import ArgumentError, SambaError
from tests.api.covers import covers
from tests.samba.worlds import MLP

session = samba.session

BEFORE = {
    "compile, name": (lambda s: session.compile(s.model, s.inputs, name=5), "name=", "int 5"),
    "compile, io_host_memory": (
        lambda s: session.compile(s.model, s.inputs, io_host_memory="zork"),
        "io_host_memory=",
        "True or False",
    ),
    "compile, inference": (
        lambda s: session.compile(s.model, s.inputs, inference="no"),
        "inference=",
        "True or False",
    ),
    "compile, metadata": (
        lambda s: session.compile(s.model, s.inputs, pef_metadata=5),
        "pef_metadata=",
        "int 5",
    ),
    "trace, pef": (lambda s: utils.trace_graph(s.model, s.inputs, pef=5), "pef=", "a path"),
    "trace, transfer": (
        lambda s: utils.trace_graph(s.model, s.inputs, transfer_device="no"),
        "transfer_device=",
        "'no'",
    ),
    "trace, gradients": (
        lambda s: utils.trace_graph(s.model, s.inputs, init_output_grads="no"),
        "init_output_grads=",
        "'no'",
    ),
    "multigraph, module": (lambda s: utils.trace_multigraph(5, s.inputs), "(model)", "int"),
    "multigraph, prefix": (
        lambda s: utils.trace_multigraph(s.model, s.inputs, trace_prefix=5),
        "trace_prefix=",
        "int 5",
    ),
    "multigraph, optimizers": (
        lambda s: utils.trace_multigraph(s.model, s.inputs, optimizers=5),
        "optimizer int",
        "not an optimizer",
    ),
    "multigraph, gradients": (
        lambda s: utils.trace_multigraph(s.model, s.inputs, init_output_grads="no"),
        "init_output_grads=",
        "'no'",
    ),
    "multigraph, name": (lambda s: session.compile_multigraph(name=5), "name=", "int 5"),
    "multigraph, check": (lambda s: session.compile_multigraph(samba_only="no"), "only=", "'no'"),
    "multigraph, pef": (lambda s: session.init_multigraph_runtime(5), "(pef)", "a path"),
    "multigraph, transfer": (
        lambda s: session.init_multigraph_runtime("x.pef", transfer_device="no"),
        "transfer_device=",
        "'no'",
    ),
    "legacy names": (lambda s: session.use_legacy_names("no"), "use_legacy_names(use)", "'no'"),
    "reset": (lambda s: session.reset(5), "reset(pef_path)", "a path"),
    "a session": (lambda s: samba.session.__class__(5), "SambaSession(pef_path)", "a path"),
    "profile": (lambda s: session.samba_profile(5), "samba_profile(filename)", "int 5"),
    "end of a profile": (lambda s: session.end_samba_profile(5), "(filename)", "int 5"),
    "runtime profile": (lambda s: session.start_runtime_profile("no"), "timer_enabled=", "'no'"),
    "end of it": (lambda s: session.end_runtime_profile(5), "(log_file)", "int 5"),
    "exit handler": (lambda s: session.atexit_register(5), "atexit_register(func)", "int 5"),
    "a main function": (lambda s: session.use_abexit(5), "use_abexit(func)", "int 5"),
}

AFTER = {
    "sync_buffers_to_cpu": (lambda s: session.sync_buffers_to_cpu(5), "to_cpu(model)", "found int"),
    "sync_buffers_to_rdu": (lambda s: session.sync_buffers_to_rdu(5), "to_rdu(model)", "found int"),
    "buffers in place": (
        lambda s: session.sync_buffers_to_cpu(s.model, "no"),
        "sync_buffers_to_cpu(inplace=...)",
        "'no'",
    ),
    "to_cpu": (lambda s: session.to_cpu(5), "session.to_cpu(model)", "found int"),
    "to_cpu_": (lambda s: session.to_cpu_(5), "session.to_cpu_(model)", "found int"),
    "to_cpu in place": (lambda s: session.to_cpu(s.model, inplace="no"), "inplace=", "'no'"),
    "update_tensor": (lambda s: session.update_tensor("x", [1]), "update_tensor('x'", "list [1]"),
    "update_tensor by number": (
        lambda s: session.update_tensor(5, s.inputs[0]),
        "update_tensor(name)",
        "int 5",
    ),
    "update_tensor, unknown": (
        lambda s: session.update_tensor("zork", s.inputs[0]),
        "update_tensor(name)",
        "'zork'",
    ),
    "forget an unknown one": (
        lambda s: session.update_tensor("zork", None),
        "update_tensor(name)",
        "'zork'",
    ),
    "update_tensor, empty": (
        lambda s: session.update_tensor("x", samba.SambaTensor(shape=(5, 4))),
        "shape (5, 4)",
        "no values",
    ),
    "get_tensors": (lambda s: session.get_tensors(5), "get_tensors(samba_tensors)", "int 5"),
    "get_tensors of numbers": (lambda s: session.get_tensors([5]), "(samba_tensors)", "[5]"),
    "by name": (lambda s: session.get_tensors_by_name(5), "get_tensors_by_name(names)", "int 5"),
    "by numbers": (lambda s: session.get_tensors_by_name([5]), "(names)", "list [5]"),
    "one by name": (lambda s: session.get_samba_tensor_by_name(5), "(name)", "int 5"),
    "data_parallel": (lambda s: session.run(data_parallel="no"), "data_parallel=", "'no'"),
    "reduce_on_rdu": (lambda s: session.run(reduce_on_rdu="no"), "reduce_on_rdu=", "'no'"),
    "train": (lambda s: session.run(train="no"), "run(train=...)", "'no'"),
    "output grads": (lambda s: utils.init_output_grads(5), "(output_tensors)", "int 5"),
    "output grads of numbers": (lambda s: utils.init_output_grads([5]), "tensors)", "int 5"),
    "unspecified": (
        lambda s: utils.init_output_grads([], 5),
        "(unspecified_tensor_grad)",
        "int 5",
    ),
    "customized": (
        lambda s: utils.init_output_grads([], [], 5),
        "customized_tensors_dict=",
        "int 5",
    ),
    "customized by a number": (
        lambda s: utils.init_output_grads([], [], {"x": 5}),
        "customized_tensors_dict=...)['x']",
        "int 5",
    ),
    "batch size": (
        lambda s: utils.init_output_grads([], is_variable_batch_size="no"),
        "is_variable_batch_size=",
        "'no'",
    ),
}


def refused(call, parts) -> None:
    with pytest.raises(SambaError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


@covers(
    "samba.session.compile(name, io_host_memory)",
    ".init_multigraph_runtime(pef)",
    ".atexit_register(func)",
    ".use_abexit(func)",
    "samba.utils.trace_graph(pef, transfer_device)",
    ".trace_multigraph(trace_prefix)",
)
def test_wrong_arguments_are_refused_when_they_are_given():
    scene = MLP.build()
    for call, *parts in BEFORE.values():
        refused(lambda call=call: call(scene), parts)


@covers(
    "samba.session.sync_buffers_to_cpu(model)",
    ".sync_buffers_to_rdu(model)",
    ".update_tensor(name, tensor)",
    ".get_tensors(samba_tensors)",
    ".get_tensors_by_name(names)",
    "samba.utils.init_output_grads(output_tensors)",
)
def test_wrong_arguments_are_refused_when_a_program_is_loaded(scene):
    before = [parameter.sn_data for parameter in scene.model.parameters()]
    tensors = dict(session._slot.tensors)
    for call, *parts in AFTER.values():
        refused(lambda call=call: call(scene), parts)
    assert dict(session._slot.tensors) == tensors
    after = [parameter.sn_data for parameter in scene.model.parameters()]
    assert all(map(torch.equal, before, after))
    assert session.counters.runs == 0


@covers("samba.session.run(train, data_parallel)")
def test_what_stands_for_true_and_false_is_taken(scene):
    results = [scene.run(train=train, section_types=["fwd"]) for train in (True, 1, 0, False)]
    assert len({result[0].item() for result in results}) == 1
    with pytest.raises(ArgumentError, match="True or False"):
        scene.run(train=None)
