"""Training on the device against plain torch, where models and optimizers are less usual."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from pef_schema.program import OptimizerKind
from samba.compiler.optimizers import UnsupportedOptimizer
from tests.samba.session.loading import assert_same_gradients, loaded
from tests.samba.worlds import Mlp, World, close, deviations, features, named, other_batch

# -- gradient accumulation -----------------------------------------------------------------

ACCUMULATING = {"grad_accumulation_steps": 2}


def test_gradient_accumulation(tmp_path):
    scene = loaded(World(name="accumulating", config=ACCUMULATING), tmp_path)
    assert samba.session.get_section_types() == {"ZEROGRAD", "FWD", "BCKWD", "OPT"}
    for step in range(3):
        samba.session.run(section_types=["zerograd"])
        scene.host_optimizer.zero_grad()
        for micro in range(2):
            batch = other_batch(10 * step + micro)
            loss, _ = scene.run(named(batch), section_types=["fwd", "bckwd"])
            want = scene.host(**batch)[0]
            want.backward()
            close(loss, want.detach())
        assert_same_gradients(scene)
        samba.session.run(section_types=["opt"])
        scene.host_optimizer.step()
        scene.assert_follows()


def test_a_full_run_with_accumulation_is_one_whole_step(tmp_path):
    """The schedule begins with ZEROGRAD, so nothing is left of earlier runs."""
    scene = loaded(World(name="split", compile={"is_split_batch": True}), tmp_path)
    for step in range(3):
        scene.run(named(other_batch(step)))
        scene.host_step(other_batch(step))
    scene.assert_follows()


def test_accumulation_over_sections_of_a_shared_weight(tmp_path):
    """At o0 a weight used twice gets its gradient from two sections, on top of the last run's."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x, y):
            out = self.head(self.inner(self.inner(x).tanh()))
            return F.cross_entropy(out, y), out

    config = {**ACCUMULATING, "optim_level": "o0"}
    scene = loaded(World(name="twice", model=Twice, config=config), tmp_path)
    samba.session.run(section_types=["zerograd"])
    for micro in range(2):
        batch = other_batch(micro)
        scene.run(named(batch), section_types=["fwd", "bckwd"])
        scene.host(**batch)[0].backward()
    assert_same_gradients(scene)


# -- gradient norm ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.05, pytest.param(100.0, marks=pytest.mark.slow)])
def test_max_grad_norm(tmp_path, limit):
    world = World(
        name="clipped",
        optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, max_grad_norm=limit),
    )
    scene = loaded(world, tmp_path)
    assert samba.session.get_section_types() == {"FWD", "BCKWD", "GRADNORM", "OPT"}
    for step, types in enumerate(([], ["FWD", "BCKWD", "GRADNORM", "OPT"], [])):
        batch = other_batch(step)
        scene.run(named(batch), section_types=types)
        scene.host_step(batch)  # samba's optimizers clip in step() as well
        assert_same_gradients(scene)
    scene.assert_follows()
    assert samba.session.counters.compiles == 1
    scene.run(section_types=["fwd", "bckwd"])
    scene.host_optimizer.zero_grad()
    scene.host(**scene.tensors)[0].backward()
    assert_same_gradients(scene)
    samba.session.run(section_types=["gradnorm"])
    norm = nn.utils.clip_grad_norm_(scene.host.parameters(), limit)
    assert norm > 0.05
    assert_same_gradients(scene)
    close(samba.session.get_tensors_by_name(["adamw0__grad_norm"])[0], norm)


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(1.0, id="small", marks=pytest.mark.slow),
        pytest.param(1e25, id="beyond float32"),
    ],
)
def test_float64_gradients_are_clipped_in_float64(tmp_path, scale):
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3, dtype=torch.float64)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (self.first(x.double()) - y[:, None]).square().sum() * scale

    world = World(
        name="wide",
        model=Wide,
        optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, max_grad_norm=0.1),
    )
    scene = loaded(world, tmp_path)
    scene.run(section_types=["fwd", "bckwd", "gradnorm"])
    scene.host(**scene.tensors).backward()
    norm = nn.utils.clip_grad_norm_(scene.host.parameters(), 0.1)
    for path, weight in scene.host.named_parameters():
        grad = scene.model.get_parameter(path).sn_grad
        torch.testing.assert_close(grad, weight.grad, rtol=1e-13, atol=1e-15)
    (found,) = samba.session.get_tensors_by_name(["adamw0__grad_norm"])
    torch.testing.assert_close(samba.to_torch(found), norm, rtol=1e-13, atol=0)


def test_each_optimizer_clips_its_own(tmp_path):
    def make(model):
        return [
            samba.optim.AdamW(model.first.parameters(), lr=0.01, max_grad_norm=0.01),
            samba.optim.AdamW(model.second.parameters(), lr=0.01),
        ]

    scene = loaded(World(name="clip_one", optimizer=make), tmp_path)
    for _ in range(2):
        scene.run()
        scene.host_step()
    scene.assert_follows()


# -- which parameters --------------------------------------------------------------------------


class Tied(nn.Module):
    """Two parameters in one region of the device, equal at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight.data.copy_(self.first.weight.data)

    def forward(self, x, y):
        out = self.second(self.first(x).tanh())
        return F.cross_entropy(out, y), out


def test_weights_that_share_a_region(tmp_path):
    scene = World(name="tied", model=Tied).build()
    for layer in (scene.model.first, scene.model.second):
        layer.weight.sn_region_name = "shared"
    scene.host.second.weight = scene.host.first.weight
    scene.host_optimizer = samba.optim.SGD(scene.host.parameters(), lr=0.1, momentum=0.9)
    scene.compile(tmp_path)
    scene.trace()
    for step in range(3):
        scene.run(named(other_batch(step)))
        scene.host_step(other_batch(step))
        for weight in scene.model.parameters():
            close(weight.sn_grad, scene.host.first.weight.grad)
            close(weight.sn_data, scene.host.first.weight.detach())
    assert samba.session.get_weight_names() == ["tied__first__weight", "tied__second__weight"]
    fetched = samba.session.get_tensors_by_name([w.sn_grad_name for w in scene.model.parameters()])
    assert torch.equal(fetched[0], fetched[1])
    samba.session.to_cpu(scene.model, scene.optimizer)
    assert torch.equal(scene.model.first.weight.data, scene.model.second.weight.data)
    for weight in scene.model.parameters():
        momentum = scene.optimizer.state[weight]["momentum_buffer"]
        close(momentum, scene.host_optimizer.state[scene.host.first.weight]["momentum_buffer"])


def test_one_parameter_in_two_places(tmp_path):
    def make():
        model = Tied()
        model.second.weight = model.first.weight
        return model

    scene = loaded(World(name="same", model=make), tmp_path)
    for step in range(3):
        scene.run(named(other_batch(step)))
        scene.host_step(other_batch(step))
    scene.assert_follows()
    samba.session.to_cpu(scene.model, scene.optimizer)
    close(scene.model.second.weight.data, scene.host.first.weight.detach())


class Partly(Mlp):
    """Has a frozen weight, a layer that ``forward`` does not use, and one that no optimizer has."""

    def __init__(self) -> None:
        super().__init__()
        self.first.weight.requires_grad_(False)
        self.spare, self.free = nn.Linear(2, 2), nn.Linear(4, 4)

    def forward(self, x, y):
        return super().forward(self.free(x), y)


def test_parameters_that_are_not_trained_stay(tmp_path):
    """Torch leaves them alone, weight decay included, because they get no gradient."""

    def optimizer(model):
        trained = [*model.first.parameters(), *model.second.parameters(), *model.spare.parameters()]
        return samba.optim.AdamW(trained, lr=0.01, weight_decay=0.5)

    scene = loaded(World(name="partly", model=Partly, optimizer=optimizer), tmp_path)
    start = {path: weight.detach().clone() for path, weight in scene.model.named_parameters()}
    for _ in range(2):
        scene.run()
        scene.host_step()
    scene.assert_follows()
    moved = {
        path for path, weight in scene.weights().items() if not torch.equal(weight, start[path])
    }
    assert moved == {"first.bias", "second.weight", "second.bias"}
    with pytest.raises(samba.SambaError, match="no gradient"):
        _ = scene.model.first.weight.sn_grad
    samba.session.to_cpu(scene.model, scene.optimizer)
    assert torch.equal(scene.model.spare.weight.data, scene.host.spare.weight.data)
    assert scene.model.spare.weight not in scene.optimizer.state


def test_a_model_without_parameters(tmp_path):
    class Chain(nn.Module):
        def forward(self, x, y):
            for _ in range(5):
                x = (x * 1.5).tanh()
            return F.cross_entropy(x, y), x

    scene = loaded(World(name="chain", model=Chain, optimizer=lambda m: None), tmp_path)
    for ours, theirs in zip(scene.run(), scene.host(**scene.tensors), strict=True):
        close(ours, theirs)
    assert samba.session.get_weight_names() == []


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [torch.int16, *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.int32, torch.int64))],
)
def test_labels_of_any_integer_type(tmp_path, dtype):
    def inputs():
        return {"x": features()["x"], "y": features()["y"].to(dtype)}

    scene = loaded(World(name="labels", inputs=inputs), tmp_path)
    for _ in range(2):
        loss, _ = scene.run()
        close(loss, scene.host_step({"x": scene.tensors["x"], "y": features()["y"]})[0])
    scene.assert_follows()


def test_bfloat16_parameters(tmp_path):
    """One step; each weight is the bfloat16 that torch gives, or its neighbour."""

    class Bf16(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.bfloat16()

        def forward(self, x, y):
            out = self.second(self.first(x).tanh())
            return F.cross_entropy(out.float(), y), out

    def inputs():
        return {"x": features()["x"].bfloat16(), "y": features()["y"]}

    scene = loaded(World(name="bf16", model=Bf16, inputs=inputs), tmp_path)
    assert scene.model.output_tensors[1].dtype is torch.bfloat16
    loss, out = scene.run()
    want_loss, want = scene.host_step()
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, want, rtol=2**-7, atol=2**-8)
    torch.testing.assert_close(loss, want_loss, rtol=1e-2, atol=0)
    samba.session.to_cpu(scene.model, scene.optimizer)
    for path, weight in scene.host.named_parameters():
        ours = scene.model.get_parameter(path)
        assert ours.dtype is torch.bfloat16 and ours.sn_grad.dtype is torch.bfloat16
        torch.testing.assert_close(ours.data, weight.data, rtol=2**-7, atol=2**-9)
        assert scene.optimizer.state[ours]["momentum_buffer"].dtype is torch.bfloat16


def test_float32_inputs_for_bfloat16_parameters(tmp_path):
    """Mixed dtypes, which eager torch refuses, are computed in the wider one."""

    class Mixed(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.bfloat16()

    scene = loaded(World(name="mixed", model=Mixed), tmp_path)
    loss, out = scene.run()
    assert out.dtype is torch.float32
    wide = scene.host.float()
    want_loss, want = wide(**scene.tensors)
    torch.testing.assert_close(out, want.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss, want_loss.detach(), rtol=1e-5, atol=1e-6)


def test_float64(tmp_path):
    def inputs():
        return {"x": features()["x"].double(), "y": features()["y"]}

    world = World(name="double", model=lambda: Mlp().double(), inputs=inputs)
    scene = loaded(world, tmp_path)
    loss, out = scene.run()
    want_loss, want = scene.host_step()
    assert out.dtype is torch.float64
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(loss, want_loss, rtol=1e-12, atol=1e-14)
    for path, weight in scene.host.named_parameters():
        ours = scene.model.get_parameter(path).sn_data
        torch.testing.assert_close(ours, weight.detach(), rtol=1e-12, atol=1e-14)


def test_adam_with_decoupled_weight_decay(tmp_path):
    """Since torch 2.7 ``Adam`` has AdamW's decay as an option."""

    def make(model):
        return torch.optim.Adam(
            model.parameters(), lr=0.01, weight_decay=0.5, decoupled_weight_decay=True
        )

    scene = loaded(World(name="decoupled", optimizer=make), tmp_path)
    for _ in range(3):
        scene.run()
        scene.host_step()
    scene.assert_follows()
    assert samba.session.program.optimizers[0].kind is OptimizerKind.ADAMW


def test_an_optimizer_with_a_step_of_its_own_is_refused(tmp_path):
    class Signs(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.data.add_(parameter.grad.sign(), alpha=-0.1)

    scene = World(name="signs", optimizer=lambda m: Signs(m.parameters(), lr=0.1)).build()
    with pytest.raises(UnsupportedOptimizer, match=r"Signs.*SGD with a step.*test_training\.py"):
        scene.compile(tmp_path)


# -- gradients that no update has used -------------------------------------------------------


def test_a_second_backward_pass_is_told_once(tmp_path, caplog):
    """Torch would add to the gradients of the first; a PEF that does not accumulate replaces."""
    scene = loaded(World(name="plain"), tmp_path)
    for _ in range(4):
        scene.run(section_types=["fwd", "bckwd"])
    assert deviations(caplog) == ["replaced-gradients"]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="plain"),
        pytest.param(ACCUMULATING, id="accumulating", marks=pytest.mark.slow),
    ],
)
def test_usual_steps_are_not_told(tmp_path, caplog, config):
    scene = loaded(World(name="usual", config={"optim_level": "o0", **config}), tmp_path)
    calls = samba.session.program.schedules[0].calls
    for _ in range(2):
        scene.run()
        for call in calls:  # section by section, as measure_sections does
            samba.session.run(section_ids=[call.section])
        for types in (["zerograd"], ["fwd"], ["bckwd"], ["opt"]):
            if types[0].upper() in samba.session.get_section_types():
                scene.run(section_types=types)
    if config:
        samba.session.run(section_types=["zerograd"])
        for _ in range(3):
            scene.run(section_types=["fwd", "bckwd"])
    assert not deviations(caplog)
