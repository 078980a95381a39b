"""What ``run`` returns, and device memory by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import samba
from samba._trace_utils import _trace_torch_graph
from tests.api.covers import covers
from tests.samba.session.loading import load
from tests.samba.worlds import MLP, World, close, named, other_batch, told

FORWARD = {"section_types": ["fwd"]}


@covers("samba.utils.trace_graph", "model.output_tensors")
def test_handles(pefs):
    scene = pefs.scene(MLP)
    outputs = scene.trace()
    assert isinstance(outputs, tuple) and scene.model.output_tensors is outputs
    loss, out = outputs
    assert [o.sn_name for o in outputs] == [
        "mlp__cross_entropy_loss__outputs__0",
        "mlp__second__linear__outputs__0",
    ]
    assert (loss.shape, out.shape) == (torch.Size([]), torch.Size([5, 3]))
    assert (loss.dtype, out.dtype) == (torch.float32, torch.float32)
    assert not loss.has_data
    traced = _trace_torch_graph(scene.host, scene.inputs)  # the same without a PEF
    for ours, theirs in zip(traced, outputs, strict=True):
        assert (ours.sn_name, ours.shape, ours.dtype) == (
            theirs.sn_name,
            theirs.shape,
            theirs.dtype,
        )


def test_results_are_plain_values(scene):
    outputs = samba.session.run(scene.inputs, scene.model.output_tensors)
    assert isinstance(outputs, tuple)
    for output, handle in zip(outputs, scene.model.output_tensors, strict=True):
        assert isinstance(output, samba.SambaTensor)
        assert output.sn_name == handle.sn_name
        assert not output.requires_grad and output.is_leaf and output.is_contiguous()
    loss, out = outputs
    assert isinstance(loss.item(), float)
    assert out.numpy().shape == (5, 3)
    assert torch.max(out.data, 1)[1].shape == (5,)


@covers("samba.session.run(output_tensors)")
def test_any_selection_in_the_order_asked(scene):
    loss, out = scene.model.output_tensors
    everything = {o.sn_name: o for o in samba.session.run(scene.inputs, (loss, out), **FORWARD)}
    for chosen in (
        (loss, out),
        [loss, out],
        (loss,),
        [out, loss, out],
        out,
        [loss.sn_name, out.sn_name],
        out.sn_name,
        (),
        [],
        None,
    ):
        asked = list(chosen or ()) if isinstance(chosen, (tuple, list, type(None))) else [chosen]
        names = [a if isinstance(a, str) else a.sn_name for a in asked]
        for _ in range(2):  # the second time from what the first prepared
            results = samba.session.run(scene.inputs, chosen, **FORWARD)
            assert [r.sn_name for r in results] == names
            assert all(torch.equal(r.data, everything[r.sn_name].data) for r in results)


def test_any_memory_may_be_an_output(scene):
    weight = scene.model.first.weight
    before = weight.data.clone()
    (fetched,) = samba.session.run(scene.inputs, [weight], **FORWARD)
    assert torch.equal(fetched.data, before)
    (gradient,) = samba.session.run(None, ["mlp__first__weight__grad"], section_types=["bckwd"])
    scene.host(**scene.tensors)[0].backward()
    close(gradient, scene.host.first.weight.grad)
    (x,) = samba.session.run(None, [scene.inputs[0]], **FORWARD)
    assert torch.equal(x.data, scene.tensors["x"])


class Wide(nn.Module):
    """An output of 128 KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8192)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize(
    "world",
    [MLP, World(name="wide", model=Wide, inputs=lambda: {"x": torch.ones(4, 4)})],
    ids=lambda w: w.name,
)
def test_results_belong_to_the_caller(pefs, world):
    """Writing to a result changes neither the device nor other results, whatever its size."""
    scene = pefs.loaded(world)
    first = scene.run(**FORWARD)
    want = [o.clone() for o in first]
    for output in first:
        output.fill_(7.0)
    second = scene.run(section_types=["bckwd"])
    assert all(map(torch.equal, second, want))
    fetched = samba.session.get_tensors(scene.model.output_tensors)
    assert all(map(torch.equal, map(samba.to_torch, fetched), want))
    samba.session.run(named(scene.tensors), (), **FORWARD)
    assert all((output == 7.0).all() for output in first)


def test_outputs_nobody_computed_are_zeros_and_told(scene, caplog):
    results = scene.run(section_types=["opt"])
    assert all(not r.any() for r in results)
    assert told(caplog) == [
        f"output {o.sn_name} is zeros: no FWD section has computed it yet"
        for o in scene.model.output_tensors
    ]


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tensor": lambda x, out: out,
    "list": lambda x, out: [out, out.sum()],
    "nested": lambda x, out: (out, (out.sum(), [out.argmax(1)])),
    "input": lambda x, out: (x, out),
    "twice": lambda x, out: (out, out),
    "dict": lambda x, out: {"out": out, "sum": out.sum()},
}
"""What ``forward`` may return."""


class Shapes(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.linear = form, nn.Linear(4, 3)

    def forward(self, x):
        return FORMS[self.form](x, self.linear(x))


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_forward(tmp_path, form):
    model = Shapes(form)
    host = copy.deepcopy(model)
    x = samba.randn(5, 4, name="x")
    outputs = load(model, (x,), tmp_path)
    assert len({o.sn_name for o in outputs}) == len(outputs)
    results = samba.session.run((x,), outputs)
    want = host(samba.to_torch(x))
    flat = torch.utils._pytree.tree_leaves(want)
    assert len(results) == len(flat)
    for ours, theirs in zip(results, flat, strict=True):
        assert ours.dtype == theirs.dtype
        close(ours, theirs.detach())


# -- by name ---------------------------------------------------------------------------


@covers(
    "samba.session.get_tensors",
    ".get_tensors(samba_tensors)",
    ".get_tensors_by_name",
    ".get_tensors_by_name(names)",
)
def test_get_tensors(scene):
    scene.run()
    scene.host_step()
    weight, bias = scene.model.first.weight, scene.model.first.bias
    tensors = samba.session.get_tensors(samba_tensors=[weight, bias])
    assert isinstance(tensors, tuple)
    close(tensors[0], scene.host.first.weight.detach())
    close(tensors[1], scene.host.first.bias.detach())
    assert [t.sn_name for t in tensors] == ["mlp__first__weight", "mlp__first__bias"]
    by_name = samba.session.get_tensors_by_name(names=[t.sn_name for t in tensors])
    assert all(map(torch.equal, tensors, by_name))
    assert torch.equal(samba.session.get_tensors_by_name("mlp__first__bias")[0], tensors[1])
    assert torch.equal(samba.session.get_tensors(bias)[0], tensors[1])
    # A fetch is a copy, and leaves the host's own tensors alone.
    tensors[0].zero_()
    close(weight.sn_data, scene.host.first.weight.detach())
    assert not torch.equal(weight.data, scene.host.first.weight.detach())


@covers("samba.session.get_samba_tensor_by_name", ".get_samba_tensor_by_name(name)")
def test_get_samba_tensor_by_name(scene):
    get = samba.session.get_samba_tensor_by_name
    scene.run()
    host = scene.model.first.weight.data.clone()
    assert get(name="mlp__first__weight") is scene.model.first.weight
    assert torch.equal(scene.model.first.weight.data, host)  # nothing is retrieved for it
    assert get("x") is scene.inputs[0]
    assert get("mlp__second__linear__outputs__0") is scene.model.output_tensors[1]


@covers("samba.session.update_tensor", ".update_tensor(name, tensor)")
def test_update_tensor(scene):
    batch = other_batch()
    x, y = named(batch)
    samba.session.update_tensor("x", x)
    samba.session.update_tensor("y", y)
    weight = scene.model.first.weight
    samba.session.update_tensor(name=weight.sn_name, tensor=samba.zeros(6, 4))
    assert not weight.data.any() and weight.sn_data.any()
    scene.host.first.weight.data.zero_()
    assert torch.equal(scene.inputs[0].data, batch["x"])
    samba.session.to_device()
    _, out = scene.run(None, **FORWARD)
    close(out, scene.host(**batch)[1].detach())
    # A tensor that is forgotten stays behind.
    samba.session.update_tensor("x", samba.from_torch_tensor(torch.zeros(5, 4)))
    samba.session.update_tensor("x", None)
    samba.session.to_device()
    _, out = scene.run(None, **FORWARD)
    close(out, scene.host(**batch)[1].detach())
    with pytest.raises(samba.SambaError, match="'x'"):
        samba.session.get_samba_tensor_by_name("x")


def test_a_weight_that_is_forgotten_stays_behind(scene):
    first, second = scene.model.first.weight, scene.model.second.weight
    before = first.sn_data
    samba.session.update_tensor(first.sn_name, samba.zeros(6, 4))
    samba.session.update_tensor(second.sn_name, samba.zeros(3, 6))
    samba.session.update_tensor(first.sn_name, None)
    samba.session.to_device()
    assert torch.equal(first.sn_data, before) and not second.sn_data.any()


# -- life of a session -------------------------------------------------------------------


def test_counters(pefs):
    """Twenty steps: one trace, one compile; another selection is one more compile."""
    scene = pefs.scene(MLP)
    samba.session.reset()
    scene.trace()
    for step in range(20):
        scene.run(named(other_batch(step)), hyperparam_dict={"lr": 0.1 / (step + 1)})
    assert (samba.session.counters.traces, samba.session.counters.compiles) == (1, 1)
    for _ in range(3):
        scene.run(**FORWARD)
        scene.run(section_types=["bckwd", "opt"])
        scene.run(section_ids=[0])  # the same plan as FWD
    counters = samba.session.counters
    assert (counters.traces, counters.compiles, counters.runs) == (1, 3, 29)
    scene.trace()
    counters = samba.session.counters
    assert (counters.traces, counters.compiles, counters.runs) == (2, 3, 29)


@covers("samba.session.tracing")
def test_tracing_is_true_only_inside_a_trace(tmp_path):
    seen = []

    class Watch(nn.Module):
        def forward(self, x):
            seen.append((samba.session.tracing, samba.session.use_static_functional()))
            return x + 1

    model = Watch()
    model(torch.ones(1))
    assert seen == [(False, False)]
    seen.clear()
    samba.session.compile(model, torch.ones(1), config_dict={"output_folder": str(tmp_path)})
    assert seen and all(now == (True, True) for now in seen)
    seen.clear()
    _trace_torch_graph(model, torch.ones(1))
    assert seen and all(now == (True, True) for now in seen)
    with pytest.raises(samba.SambaError):
        samba.session.compile(model, 5)
    assert samba.session.tracing is False
    samba.session.tracing = False  # old scripts set it before a run on the CPU
    model(torch.ones(1))
    assert seen[-1] == (False, False)


@covers("samba.session.reset")
def test_reset_closes_the_device(scene):
    weight = scene.model.first.weight
    assert weight.sn_data.shape == (6, 4)
    samba.session.reset()
    with pytest.raises(samba.SambaError, match="nothing is on the device"):
        samba.session.run(scene.inputs)
    with pytest.raises(samba.SambaError, match="nothing is on the device"):
        _ = weight.sn_data
    scene.trace()
    scene.run()
    scene.host_step()
    scene.assert_follows()


def test_trace_again_starts_from_the_host(scene):
    scene.run()
    scene.trace()
    scene.run()
    scene.host_step()
    scene.assert_follows()


@covers("samba.utils.trace_graph(transfer_device)", "samba.session.to_rdu")
def test_without_a_transfer(pefs):
    scene = pefs.loaded(MLP, transfer_device=False)
    with pytest.raises(samba.SambaError, match="hold no data"):
        scene.run(**FORWARD)
    samba.session.to_rdu(scene.model)
    scene.run()
    scene.host_step()
    scene.assert_follows()


@covers("samba.session.to_device")
def test_to_device(pefs):
    scene = pefs.loaded(MLP, transfer_device=False)
    samba.session.to_device()
    scene.run(None)
    scene.host_step()
    scene.assert_follows()
