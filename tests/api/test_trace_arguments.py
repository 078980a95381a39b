"""Inputs, optimizers and gradients of outputs that tracing is given."""

from __future__ import annotations

from pathlib import Path

import torch

import samba
import samba.utils as utils
from samba.graph import FwdGraph
from tests.api.covers import covers
from tests.samba.graphs import compiled, pair, two
from tests.samba.worlds import MLP, close


@covers("samba.utils.trace_graph(init_output_grads)")
def test_without_initialising_output_gradients_nothing_starts_from_ones(pefs):
    scene = pefs.loaded(MLP, init_output_grads=False)
    loss, _ = scene.model.output_tensors
    try:
        first = loss.sn_grad
    except samba.SambaError:
        first = None  # device memory that holds nothing
    assert first is None or not torch.equal(first, torch.ones(()))
    utils.init_output_grads([loss])
    scene.run(section_types=["fwd", "bckwd"])
    scene.host(**scene.tensors)[0].backward()
    close(scene.model.first.weight.sn_grad, scene.host.first.weight.grad)
    scene = pefs.loaded(MLP, init_output_grads=True)
    close(scene.model.output_tensors[0].sn_grad, torch.ones(()))


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


@covers(
    "samba.utils.trace_multigraph(optimizers)",
    "samba.utils.trace_multigraph(init_output_grads)",
)
def test_graphs_are_traced_with_their_optimizers(tmp_path):
    def add():
        model = samba.from_torch_model_(two())
        x, y = pair()
        outputs = utils.trace_multigraph(
            graph=model,
            inputs=(x, y),
            optimizers=[samba.optim.SGD(model.parameters(), lr=0.1)],
            init_output_grads=True,
        )
        samba.session.add_graph(FwdGraph((x, y), outputs, name="two"))
        return outputs

    add()
    path = compiled(tmp_path)
    samba.session.reset()
    outputs = add()
    samba.session.init_multigraph_runtime(path)
    x, y = pair()
    for ours, theirs in zip(
        samba.session.run((x, y), outputs), two()(x.torch(), y.torch()), strict=True
    ):
        close(samba.to_torch(ours), theirs.detach())
