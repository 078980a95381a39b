"""Arguments of ``compile``, ``compile_multigraph`` and ``run``, and what changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import samba
import samba.utils as utils
from pef_schema import read_pef
from pef_schema.program import Role
from samba.distributed.replicas import Replicas
from samba.errors import ArgumentError
from samba.graph import FwdGraph
from tests.api.covers import covers
from tests.samba.graphs import compiled, pair, two
from tests.samba.worlds import MLP, Scene, World, close, named, other_batch, told


def never(*_: object) -> None:
    raise AssertionError("called")


@covers(
    "samba.session.compile(init_output_grads, graph_names, graph_transform_hook, io_host_memory)",
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
        tensor.host_memory = host
    pef = scene.compile(tmp_path)
    assert Path(pef).read_bytes() == Path(pefs(MLP)).read_bytes()
    scene.trace()
    loss, out = scene.run()
    want_loss, want = scene.host_step()
    close(loss, want_loss)
    close(out, want)


@covers(
    "samba.SambaTensor(batch_dim, named_dims, sized_dims, is_complex)",
    ".from_torch_tensor(batch_dim, named_dims)",
)
def test_labels_of_dimensions_change_no_byte(pefs, tmp_path):
    """Deprecated and experimental arguments of tensors."""
    scene = MLP.build()
    x, y = scene.tensors.values()
    dims = {"batch_dim": 0, "named_dims": ("B", "F")}
    labelled = samba.SambaTensor(x, name="x", sized_dims=("B", None), is_complex=False, **dims)
    scene.inputs = (labelled, samba.from_torch_tensor(y, "y", batch_dim=0, named_dims=("B",)))
    assert Path(scene.compile(tmp_path)).read_bytes() == Path(pefs(MLP)).read_bytes()


@covers("samba.session.compile(models, model)")
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
def test_run_takes_no_model(scene):
    """An example of the page gives the model first, which its signature does not have."""
    with pytest.raises(ArgumentError, match=r"found Mlp, expected.*Leave the model out") as caught:
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
    ".compile_multigraph(name, samba_only)",
    ".init_multigraph_runtime(pef)",
)
def test_graphs_are_compiled_under_a_name_and_loaded_from_a_path(tmp_path):
    added()
    config = {"output_folder": str(tmp_path / "other"), "pef_name": "net"}
    assert samba.session.compile_multigraph("x", samba_only=True, config_dict=config) is None
    assert not (tmp_path / "other").exists()
    first = Path(compiled(tmp_path, "net"))
    program = read_pef(first)
    assert (program.name, [graph.name for graph in program.graphs]) == ("net", ["two"])
    second = samba.session.compile_multigraph(name="net", config_dict=config)
    assert Path(second).read_bytes() == first.read_bytes()

    samba.session.reset()
    graph = added()
    samba.session.init_multigraph_runtime(pef=str(first))
    x, y = pair()
    for ours, theirs in zip(
        samba.session.run((x, y), graph.stop), two()(x.torch(), y.torch()), strict=True
    ):
        close(samba.to_torch(ours), theirs.detach())


# -- run runs what it is asked for: seen by gradients of another batch -----------------


FWD, BCKWD, OPT = 0, 1, 2
"""Ids of the sections of the model, which are those of the calls in its schedule too."""


@pytest.fixture
def moved(pefs) -> Scene:
    """The gradients are those of the scene's batch; another batch lies on the device."""
    scene = pefs.loaded(MLP)
    scene.run(section_types=["fwd", "bckwd"])
    samba.session.run(named(other_batch()), (), section_ids=[FWD])
    return scene


def host_gradients(scene: Scene, batch) -> dict[str, torch.Tensor]:
    scene.host.zero_grad()
    scene.host(**batch)[0].backward()
    return {path: p.grad.clone() for path, p in scene.host.named_parameters()}


def assert_gradients(scene: Scene, batch) -> None:
    for path, want in host_gradients(scene, batch).items():
        close(scene.model.get_parameter(path).sn_grad, want, path)


@covers("samba.session.run(section_ids)")
def test_sections_by_id_in_the_given_order(moved):
    before = moved.weights()
    samba.session.run(None, (), section_ids=[FWD])
    assert_gradients(moved, moved.tensors)  # FWD alone leaves gradients and weights
    assert all(torch.equal(w, before[path]) for path, w in moved.weights().items())
    samba.session.run(None, (), section_ids=[OPT, FWD, BCKWD])
    host_gradients(moved, moved.tensors)
    moved.host_optimizer.step()
    moved.assert_follows()  # OPT came first, with the gradients of the batch before
    assert_gradients(moved, other_batch())


@covers("samba.session.run(run_from_call_id, run_until_call_id)")
def test_the_schedule_from_one_call_until_another(moved):
    samba.session.run(None, (), run_until_call_id=FWD)
    assert_gradients(moved, moved.tensors)
    samba.session.run(None, (), run_from_call_id=OPT)
    host_gradients(moved, moved.tensors)
    moved.host_optimizer.step()
    moved.assert_follows()
    samba.session.run(None, (), run_from_call_id=FWD, run_until_call_id=BCKWD)
    assert_gradients(moved, other_batch())
    moved.assert_follows()


@covers("samba.session.run(data_parallel, reduce_on_rdu, data_parallel_mode)")
def test_replicas_are_asked_for_what_run_was_given(pefs, monkeypatch, caplog):
    """Numbers do not depend on where gradients are reduced, so the wish itself is looked at."""
    world = World(name="one_replica", config={"data_parallel": True})
    scene = pefs.loaded(world, data_parallel_mode="inorder")
    asked, wish = [], Replicas.wish

    def spy(self, data_parallel, reduce_on_rdu, mode):
        asked.append((data_parallel, reduce_on_rdu, mode))
        return wish(self, data_parallel, reduce_on_rdu, mode)

    monkeypatch.setattr(Replicas, "wish", spy)
    scene.run()
    assert asked == [] and told(caplog) == []
    for on_rdu in (True, False):
        scene.run(data_parallel=True, reduce_on_rdu=on_rdu, data_parallel_mode="inorder")
    assert asked == [(True, True, "inorder"), (True, False, "inorder")]
    (text,) = told(caplog)
    assert "one replica: there is nothing to reduce" in text
