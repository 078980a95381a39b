"""Arguments of ``compile``, ``compile_multigraph`` and ``run``, and what changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import samba
import samba.utils as utils
from pef_schema import read_pef
from pef_schema.program import Role
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from tests.api.covers import covers
from tests.samba.graphs import compiled, pair, two
from tests.samba.worlds import MLP, World, close


def never(*_: object) -> None:
    raise AssertionError("called")


@covers(
    "samba.session.compile(init_output_grads)",
    "samba.session.compile(graph_names)",
    "samba.session.compile(graph_transform_hook)",
    "samba.session.compile(io_host_memory)",
    "samba.SambaTensor.mem_type",
)
@pytest.mark.parametrize("host", [True, False])
def test_deprecated_and_memory_arguments_change_no_byte(pefs, tmp_path, host):
    world = World(
        name="mlp",
        compile={
            "io_host_memory": host,
            "init_output_grads": host,
            "graph_names": ["forward"],
            "graph_transform_hook": never,
            "app_dir": "nowhere",
        },
    )
    scene = world.build()
    for tensor in (*scene.inputs, *scene.model.parameters()):
        tensor.mem_type = "Host" if host else "HBM"
    pef = scene.compile(tmp_path)
    assert Path(pef).read_bytes() == Path(pefs(MLP)).read_bytes()
    scene.trace()
    loss, out = scene.run()
    want_loss, want = scene.host_step()
    close(loss, want_loss)
    close(out, want)


@covers(
    "samba.SambaTensor(batch_dim)",
    "samba.SambaTensor(named_dims)",
    "samba.SambaTensor(sized_dims)",
    "samba.SambaTensor(is_complex)",
    "samba.from_torch_tensor(batch_dim)",
    "samba.from_torch_tensor(named_dims)",
)
def test_labels_of_dimensions_change_no_byte(pefs, tmp_path):
    """Deprecated and experimental arguments of tensors."""
    scene = MLP.build()
    x, y = scene.tensors.values()
    dims = {"batch_dim": 0, "named_dims": ("B", "F")}
    labelled = samba.SambaTensor(x, name="x", sized_dims=("B", None), is_complex=False, **dims)
    scene.inputs = (labelled, samba.from_torch_tensor(y, "y", batch_dim=0, named_dims=("B",)))
    assert Path(scene.compile(tmp_path)).read_bytes() == Path(pefs(MLP)).read_bytes()


@covers("samba.session.compile(models)", "samba.session.compile(model)")
def test_the_model_is_given_by_the_name_in_the_signature(tmp_path):
    """The page's list of parameters says ``models``, its signature ``model``."""
    model = samba.from_torch_model_(torch.nn.Linear(10, 10))
    inputs = (samba.from_torch_tensor(torch.randn(5, 10), name="input"),)
    with pytest.raises(TypeError, match="'model'"):
        samba.session.compile(models=model, inputs=inputs)
    optim = samba.optim.SGD(model.parameters(), lr=0.1)
    config = {"output_folder": str(tmp_path)}
    pef = samba.session.compile(model=model, inputs=inputs, optimizers=optim, config_dict=config)
    weights = [r.name for r in read_pef(pef).regions if r.role is Role.WEIGHT]
    assert weights == ["linear__weight", "linear__bias"]


@covers("samba.session.run(input_tensors)")
def test_run_takes_no_model(pefs):
    """An example of the page gives the model first, which its signature does not have."""
    scene = pefs.loaded(MLP)
    with pytest.raises(ArgumentError, match=r"a Mlp, wanted.*that of trace_graph") as caught:
        samba.session.run(scene.model, scene.inputs, scene.model.output_tensors)
    assert caught.value.deviation == "run-without-model"
    scene.run()
    scene.host_step()
    scene.assert_follows()


def added() -> FwdGraph:
    x, y = pair()
    graph = FwdGraph((x, y), utils.trace_multigraph(samba.from_torch_model_(two()), (x, y)), "two")
    samba.session.add_graph(graph=graph)
    return graph


@covers(
    "samba.session.add_graph(graph)",
    "samba.session.compile_multigraph(name)",
    "samba.session.compile_multigraph(samba_only)",
    "samba.session.compile_multigraph(kwarg)",
    "samba.session.init_multigraph_runtime(pef)",
)
def test_graphs_are_compiled_under_a_name_and_loaded_from_a_path(tmp_path):
    added()
    config = {"output_folder": str(tmp_path / "other"), "pef_name": "net"}
    wishes = {"io_host_memory": True, "graph_names": ["a"], "enable_hypersection": True}
    assert samba.session.compile_multigraph("x", samba_only=True, config_dict=config) is None
    assert not (tmp_path / "other").exists()
    first = Path(compiled(tmp_path, "net"))
    program = read_pef(first)
    assert (program.name, [graph.name for graph in program.graphs]) == ("net", ["two"])
    second = samba.session.compile_multigraph(name="net", config_dict=config, **wishes)
    assert Path(second).read_bytes() == first.read_bytes()

    samba.session.reset()
    graph = added()
    samba.session.init_multigraph_runtime(pef=str(first))
    x, y = pair()
    for ours, theirs in zip(
        samba.session.run((x, y), graph.stop), two()(x.torch(), y.torch()), strict=True
    ):
        close(samba.to_torch(ours), theirs.detach())
