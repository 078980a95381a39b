"""Arguments of the session's switches and profiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import samba
from tests.api.covers import covers
from tests.samba.worlds import DROPOUT, MLP, close, told


@covers("samba.session.use_legacy_names", ".use_legacy_names(use)")
def test_legacy_names_are_told_and_change_nothing(pefs, tmp_path, caplog):
    samba.session.use_legacy_names(use=False)
    assert told(caplog) == []
    samba.session.use_legacy_names(use=True)
    (text,) = told(caplog)
    assert "operations keep their usual names" in text
    scene = MLP.build()
    assert scene.model.first.weight.sn_name == "mlp__first__weight"
    assert Path(scene.compile(tmp_path)).read_bytes() == Path(pefs(MLP)).read_bytes()


@covers(
    "samba.session.samba_profile(filename)",
    ".start_samba_profile",
    ".end_samba_profile",
    ".end_samba_profile(filename)",
    ".profiler",
)
def test_profiles_are_exported_to_the_file_that_is_named(scene, tmp_path):
    inside, after, none = (tmp_path / name for name in ("inside.txt", "after.txt", "none.txt"))
    profiler = samba.session.profiler
    try:
        with samba.session.samba_profile(filename=str(inside)):
            assert profiler.started
            scene.run()
        assert not profiler.started
        lines = inside.read_text().splitlines()
        assert [line.split()[0] for line in lines[1:]] == profiler.names
        assert "SAMBA_SESSION_RUN" in profiler.names
        profiler.reset()
        samba.session.start_samba_profile()
        scene.run(section_types=["FWD"])
        samba.session.end_samba_profile(filename=str(after))
        assert "SAMBA_SESSION_RUN_FWD" in after.read_text()
        samba.session.start_samba_profile()
        samba.session.end_samba_profile()
        assert sorted(tmp_path.iterdir()) == [after, inside] and not none.exists()
    finally:
        profiler.stop_profile()
        profiler.reset()


@covers("samba.session.enable_lazy_param", "samba.SambaTensor(materializer)")
def test_lazy_parameters_are_made_when_the_device_needs_them(pefs):
    samba.session.enable_lazy_param(seed=11)
    try:
        scene = pefs.scene(MLP)
        lazy = type(scene.host)()
        scene.model = samba.from_torch_model_(lazy)
    finally:
        samba.session.disable_lazy_param()
    scene.optimizer = samba.optim.SGD(scene.model.parameters(), lr=0.1, momentum=0.9)
    assert not any(parameter.has_data for parameter in scene.model.parameters())
    zeros = samba.SambaTensor(
        shape=(5, 4),
        dtype=torch.float32,
        name="x",
        materializer=lambda shape, dtype, requires_grad: torch.full(shape, 0.5, dtype=dtype),
    )
    scene.inputs = (zeros, scene.inputs[1])
    scene.trace()
    weights = {path: p.torch_tensor() for path, p in scene.model.named_parameters()}
    for path, weight in weights.items():
        assert torch.equal(scene.model.get_parameter(path).sn_data, weight), path
    assert (samba.session.get_tensors_by_name(["x"])[0].data == 0.5).all()
    assert not zeros.has_data
    zeros.materializer = lambda shape, dtype, requires_grad: torch.ones(shape, dtype=dtype)
    loss, _ = scene.run()
    close(loss, lazy_loss(scene, weights))


def lazy_loss(scene, weights) -> torch.Tensor:
    scene.host.load_state_dict(weights)
    return scene.host(torch.ones(5, 4), scene.tensors["y"])[0].detach()


@covers("samba.session.use_static_functional")
def test_static_functional_is_for_tracing_and_lazy_initialisation(tmp_path):
    seen = []

    class Asks(nn.Module):
        def forward(self, x):
            seen.append(samba.session.use_static_functional())
            return x + 1

    assert not samba.session.use_static_functional()
    samba.session.compile(Asks(), torch.ones(1), config_dict={"output_folder": str(tmp_path)})
    assert seen and all(seen)
    assert not samba.session.use_static_functional()
    samba.session.enable_lazy_param()
    try:
        assert samba.session.use_static_functional()
    finally:
        samba.session.disable_lazy_param()
    assert not samba.session.use_static_functional()


@covers("samba.session.get_dropout_seed_argin_names")
def test_a_seed_that_is_given_again_sets_the_stream_again(pefs):
    scene = pefs.loaded(DROPOUT)
    (seed,) = samba.session.get_dropout_seed_argin_names()
    drawn = [
        scene.run(section_types=["fwd"], hyperparam_dict={seed: value})[1] for value in (5, 5, 6, 5)
    ]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0], drawn[2])


@covers("samba.session.tracing", ".use_static_functional")
def test_operations_are_symbolic_while_a_script_says_that_it_traces():
    x = samba.SambaTensor(torch.ones(2, 3), name="x")
    weight = samba.SambaParameter(torch.full((4, 3), 2.0))
    samba.session.tracing = True
    assert samba.session.use_static_functional()
    made = {
        "sum": x + 1,
        "view": x.reshape(3, 2).t(),
        "linear": torch.nn.functional.linear(x, weight),
        "chain": (x @ weight.t()).relu().bfloat16(),
    }
    assert all(not tensor.has_data for tensor in made.values())
    assert [tuple(tensor.shape) for tensor in made.values()] == [(2, 3), (2, 3), (2, 4), (2, 4)]
    assert made["chain"].dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\)"):
        _ = x + samba.SambaTensor(torch.ones(2))
    samba.session.tracing = False
    assert made["sum"].torch_tensor().tolist() == [[2] * 3] * 2
    assert made["chain"].torch_tensor().tolist() == [[6] * 4] * 2
    assert (x + 1).has_data
