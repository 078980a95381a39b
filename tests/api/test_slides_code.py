"""Code of the slides, with the keywords that it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from samba.errors import ArgumentError
from samba.sambaloader import SambaLoader
from tests.api.covers import covers
from tests.samba.worlds import MLP, Mlp, close, named, other_batch


@covers(
    "numpy.add",
    "torch.ones",
    ".zeros",
    "torch.nn.Conv2d",
    ".Conv2d(kernel_size, in_channels, out_channels, padding, bias)",
    "torch.nn.functional.relu",
    "torch.Tensor.split",
    ".split(dim)",
)
def test_functions_of_torch_and_numpy_take_sambatensors():
    a, b = samba.from_torch_tensor(torch.ones(2, 4)), samba.from_torch_tensor(torch.zeros(2, 4))
    assert np.add(a, b).tolist() == [[1] * 4] * 2
    assert np.add(a, torch.ones(2, 4)).tolist() == (a + 1).tolist() == [[2] * 4] * 2
    module = torch.nn.Conv2d(
        kernel_size=(3, 3), in_channels=3, out_channels=64, padding=1, bias=True
    )
    x = samba.randn(2, 3, 8, 8, name="input", batch_dim=0)
    y = module(x)
    want = F.conv2d(x.torch(), module.weight, module.bias, padding=1)
    assert y.shape == (2, 64, 8, 8) and torch.equal(y.torch(), want)
    x = samba.rand(10, 20, name="input", batch_dim=0) - 0.5
    assert torch.equal(F.relu(x).torch(), x.torch().clamp(min=0))
    first, second = x.split(10, dim=1)
    assert torch.equal(torch.cat([first.torch(), second.torch()], dim=1), x.torch())
    made = np.add(a, b), np.add(a, torch.ones(2, 4)), y, F.relu(x), first
    assert {type(t) for t in made} == {samba.SambaTensor}


@covers(
    "samba.utils.measure_performance(model, inputs, batch_size, inference)",
    ".measure_performance(run_graph_only, n_iterations)",
    ".measure_sections(model, inputs, batch_size, num_sections, n_iterations)",
)
def test_measuring_as_the_slides_write_it(pefs, capsys):
    scene = pefs.loaded(MLP)
    batch = other_batch()
    throughput, latency = utils.measure_performance(
        scene.model,
        named(batch),
        batch_size=5,
        inference=False,
        run_graph_only=False,
        n_iterations=2,
    )
    assert throughput * latency == pytest.approx(5)
    for _ in range(3):  # a run to warm up and two to measure, all on these inputs
        scene.host_step(batch)
    scene.assert_follows()
    rows = utils.measure_sections(
        scene.model, named(other_batch(8)), batch_size=5, num_sections=2, n_iterations=3
    )
    assert [(row.type, row.calls) for row in rows] == [("FWD", 3), ("BCKWD", 3)]
    assert float(capsys.readouterr().out.split()[-2]) > 0  # samples/s
    x, y = samba.session.get_tensors_by_name(["x", "y"])
    close(x.data, other_batch(8)["x"])
    assert torch.equal(y.data, other_batch(8)["y"])


@covers("samba.utils.measure_performance(model)", ".measure_sections(model)")
def test_another_model_than_the_traced_one_is_not_measured(scene):
    other = Mlp()
    other.second = torch.nn.Linear(6, 4)
    for measure in (utils.measure_performance, utils.measure_sections):
        with pytest.raises(ArgumentError, match=r"measure_\w+\(\).*second"):
            measure(other, scene.inputs, n_iterations=1)
    assert samba.session.counters.runs == 0


@covers("samba.sambaloader.SambaLoader", ".SambaLoader(torch_loader)")
def test_a_loader_is_given_by_keyword():
    batches = [(torch.full((2, 3), float(i)), torch.full((2,), i)) for i in range(3)]
    loader = SambaLoader(torch_loader=batches, names=["image", "label"])
    for (image, label), (x, y) in zip(loader, batches, strict=True):
        assert type(image) is type(label) is samba.SambaTensor
        assert (image.sn_name, label.sn_name) == ("image", "label")
        assert torch.equal(image.torch(), x) and torch.equal(label.torch(), y)
