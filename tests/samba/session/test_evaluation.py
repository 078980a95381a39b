"""Evaluation between training steps against ``model.eval()`` of torch, over shared memory."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.device import Device
from emulator.errors import NotWritten
from emulator.op_facts.names import CASTS
from samba import utils
from samba.errors import ArgumentError, NotLoaded
from samba.tracer.errors import ShapeMismatch
from tests.samba.session.loading import load, loaded, told_of
from tests.samba.worlds import Scene, Tensors, World, close, named

TRAIN, TEST, LAST = 8, 12, 5
"""Batch sizes."""


class ResNet(nn.Module):
    """A residual network with batch norm and dropout."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4, momentum=0.3)
        self.drop = nn.Dropout(rate)
        self.head = nn.Linear(4, 3)

    def forward(self, image, label):
        x = F.relu(self.norm1(self.stem(image)))
        x = F.relu(x + self.norm2(self.conv(x)))
        out = self.head(self.drop(x.mean((2, 3))))
        return F.cross_entropy(out, label), out


def batch(size: int, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(size, 2, 5, 5, generator=generator)
    return {"image": image, "label": torch.randint(0, 3, (size,), generator=generator)}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def world(name: str, model: Callable[[], nn.Module], **config: str) -> World:
    return World(name=name, model=model, inputs=lambda: batch(TRAIN), optimizer=sgd, config=config)


RESNET = world("evaluated", ResNet)


@pytest.fixture
def scene(pefs) -> Scene:
    return pefs.loaded(RESNET)


def train(scene: Scene, seed: int) -> None:
    """A step of both, on a batch of its own."""
    data = batch(TRAIN, seed)
    scene.host.train()
    close(scene.run(named(data))[0], scene.host_step(data)[0])


def agrees(scene: Scene, evaluate: Any, size: int, seed: int = 99) -> None:
    """Torch's results in evaluation mode are those of an evaluator."""
    data = batch(size, seed)
    found = evaluate.run(named(data))
    scene.host.eval()
    with torch.no_grad():
        for ours, theirs in zip(found, scene.host(**data), strict=True):
            close(ours, theirs)


def test_each_epoch_is_evaluated_as_torch_does(scene):
    """Running statistics, other batch sizes, and training that goes on as if nothing had been."""
    evaluate = samba.session.evaluator(scene.model, named(batch(TEST)))
    for epoch in range(2):
        for step in range(3):
            train(scene, 10 * epoch + step)
        for size in (TEST, TEST, LAST):
            agrees(scene, evaluate, size, seed=size)
    samba.session.to_cpu(scene.model)
    for name, values in scene.host.state_dict().items():
        close(scene.model.state_dict()[name], values, name)


def test_without_evaluation_the_statistics_of_a_batch_are_others(scene):
    """The test above bites: train=False is another thing."""
    train(scene, 0)
    data = batch(TRAIN, 1)
    _, found = scene.run(named(data), section_types=["FWD"], train=False)
    scene.host.eval()
    assert not torch.allclose(found, scene.host(**data)[1].detach(), atol=1e-2)


def test_metrics_of_an_epoch(scene):
    evaluate = samba.session.evaluator(scene.model, named(batch(TEST)))
    train(scene, 0)
    right = seen = 0
    for size in (TEST, TEST, LAST):
        image, label = batch(size, size).values()
        (logits,) = evaluate.run((image, label), evaluate.output_tensors[1:])
        right += int((logits.torch().argmax(1) == label).sum())
        seen += size
    scene.host.eval()
    batches = [batch(size, size) for size in (TEST, TEST, LAST)]
    want = [scene.host(**data)[1].argmax(1) == data["label"] for data in batches]
    assert (right, seen) == (int(torch.cat(want).sum()), 2 * TEST + LAST)


def test_the_random_stream_of_training_goes_on(pefs):
    """With dropout, the losses of training are the same with and without evaluations."""

    def losses(evaluating: bool) -> list[float]:
        scene = pefs.loaded(world("evaluated_dropping", functools.partial(ResNet, 0.5)))
        evaluate = samba.session.evaluator(scene.model) if evaluating else None
        found = []
        for step in range(4):
            (loss,) = samba.session.run(named(batch(TRAIN, step)), scene.model.output_tensors[:1])
            found.append(loss.item())
            if evaluate is not None:
                first = evaluate.run(named(batch(LAST)))
                assert all(map(torch.equal, first, evaluate.run(named(batch(LAST)))))
        samba.session.reset()
        return found

    plain = losses(False)
    assert losses(True) == plain
    assert len(set(plain)) == 4


def test_weights_are_shared_on_the_device(scene, monkeypatch):
    """No array of weights is copied, and none is kept for longer than a run."""
    evaluate = samba.session.evaluator(scene.model)
    train(scene, 0)
    ours = samba.session.need_loaded("a test").device
    weights = ours.region_of("resnet__stem__weight"), ours.region_of("resnet__norm1__running_mean")
    held = []

    before = [ours.pool.buffers[w] for w in weights]
    original = Device.run

    def noted(self, plan):
        names = [ours.program.regions[w].name for w in weights]
        held.append([self.pool.buffers[self.region_of(name)] for name in names])
        original(self, plan)

    monkeypatch.setattr(Device, "run", noted)
    monkeypatch.setattr(Device, "write", lambda *args, **kwargs: pytest.fail("a copy"))
    monkeypatch.setattr(Device, "read", lambda *args, **kwargs: pytest.fail("a copy"))
    evaluate.run(named(batch(TRAIN)))
    assert all(a is b for a, b in zip(held[0], before, strict=True))
    assert all(ours.pool.buffers[w] is b for w, b in zip(weights, before, strict=True))
    part = evaluate._part
    assert all(part.device.pool.buffers[mine] is None for mine, _ in part.shared)


def test_a_program_for_each_form_of_the_inputs_is_made_once(scene):
    evaluate = samba.session.evaluator(scene.model, named(batch(TEST)))
    before = samba.session.counters.traces
    for size in (TEST, LAST, TEST, LAST, TRAIN):
        agrees(scene, evaluate, size)
    assert samba.session.counters.traces == before + 2


def test_inputs_and_outputs_in_the_forms_of_run(scene):
    evaluate = samba.session.evaluator(scene.model)
    image, label = batch(TRAIN).values()
    whole = evaluate.run(named(batch(TRAIN)))
    for inputs in ((image, label), {"label": label, "image": image}, named(batch(TRAIN))[::-1]):
        assert torch.equal(evaluate.run(inputs)[1], whole[1])
    _, out = scene.model.output_tensors
    for outputs in (out, (out,), out.sn_name):
        (found,) = evaluate.run((image, label), outputs)
        assert torch.equal(found, whole[1])
    assert [tuple(o.shape) for o in evaluate.output_tensors] == [(), (TRAIN, 3)]
    evaluate.run(named(batch(LAST)))
    assert [tuple(o.shape) for o in evaluate.output_tensors] == [(), (LAST, 3)]
    with pytest.raises(ArgumentError):
        evaluate.run((image, label, image))


def test_shapes_that_do_not_fit_name_the_line_that_evaluates(scene):
    evaluate = samba.session.evaluator(scene.model)
    image, label = torch.zeros(LAST, 3, 5, 5), torch.zeros(LAST, dtype=torch.int64)
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ShapeMismatch, match=r"ResNet\.stem") as caught:
        evaluate.run((image, label))
    shapes = f"image ({LAST}, 3, 5, 5), label ({LAST},)"
    (note,) = caught.value.__notes__
    assert note == f"{__file__}:{line}: the evaluator traces the model for {shapes}."


def test_a_checkpoint_that_is_loaded_counts(scene):
    evaluate = samba.session.evaluator(scene.model)
    train(scene, 0)
    other = ResNet()
    for tensor in other.state_dict().values():
        tensor.copy_(torch.rand_like(tensor.float()))
    scene.model.load_state_dict(other.state_dict())
    scene.host.load_state_dict(other.state_dict())
    agrees(scene, evaluate, TRAIN)
    train(scene, 1)
    agrees(scene, evaluate, TRAIN)


def test_state_that_forward_changes_in_evaluation_too_is_the_programs(tmp_path):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(50, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, image, label):
            self.calls += 1
            out = self.head(image.flatten(1))
            return F.cross_entropy(out, label), out * self.calls

    scene = loaded(world("counting", Counting), tmp_path)
    evaluate = samba.session.evaluator(scene.model)
    for step in range(2):
        train(scene, step)
        agrees(scene, evaluate, LAST)
    samba.session.sync_buffers_to_cpu(scene.model)
    assert scene.model.calls.item() == scene.host.calls.item() == 4


def test_what_only_evaluation_reads_comes_from_the_host(tmp_path):
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.other = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, image):
            x = self.body(image).relu()
            return (self.head(x) if self.training else self.other(x)).square().mean()

    torch.manual_seed(0)
    model = TwoHeads()
    host = copy.deepcopy(model)
    samba.from_torch_model_(model)
    x = torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samba.session.run(x, load(model, x, tmp_path, optimizer))
    host(x).backward()
    torch.optim.SGD(host.parameters(), lr=0.1).step()
    close(samba.session.evaluator(model).run(x)[0], host.eval()(x).detach())


def test_rounded_arithmetic_is_that_of_the_program(tmp_path):
    scene = loaded(world("rounded", ResNet, graphamp_preset="mp1"), tmp_path)
    evaluate = samba.session.evaluator(scene.model)
    ops = {node.op for node in evaluate._part.device.program.graphs[0].nodes}
    trained = {node.op for node in samba.session.program.graphs[0].nodes}
    assert ops & CASTS and ops & CASTS == trained & CASTS


def test_an_evaluator_is_of_what_is_loaded(pefs):
    with pytest.raises(NotLoaded):
        samba.session.evaluator(ResNet())
    scene = pefs.loaded(RESNET)
    with pytest.raises(ArgumentError, match="another ResNet"):
        samba.session.evaluator(copy.deepcopy(scene.model))
    evaluate = samba.session.evaluator(scene.model)
    given = named(batch(TRAIN))
    utils.trace_graph(scene.model, given, scene.optimizer, pef=scene.pef)
    with pytest.raises(NotLoaded):
        evaluate.run(given)


def test_weights_that_were_not_transferred_are_named(scene):
    given = named(batch(TRAIN))
    utils.trace_graph(scene.model, given, scene.optimizer, pef=scene.pef, transfer_device=False)
    evaluate = samba.session.evaluator(scene.model)
    with pytest.raises(NotWritten, match="resnet__stem__weight"):
        evaluate.run(given)
    samba.session.to_device()
    agrees(scene, evaluate, TRAIN)


# -- modes ---------------------------------------------------------------------------------


def test_train_false_with_batch_norm_is_told_once(scene, caplog):
    for _ in range(2):
        scene.run(section_types=["FWD"], train=False)
        scene.run(section_types=["FWD"])
    (text,) = told_of(caplog, "batch-statistics")
    assert __file__ in text and "samba.session.evaluator" in text


def test_eval_after_trace_graph_is_told_once(scene, caplog):
    for _ in range(3):
        scene.run()
    assert not told_of(caplog, "mode-after-trace")
    scene.model.eval()
    for _ in range(3):
        scene.run()
    (text,) = told_of(caplog, "mode-after-trace")
    assert text.startswith("eval() was called after trace_graph, on norm1, norm2, drop:")
    scene.model.train()
    scene.run()
    assert len(told_of(caplog, "mode-after-trace")) == 1


def test_the_mode_of_a_part_counts(scene, caplog):
    """Statistics that are frozen in the middle of a training."""
    scene.run()
    scene.model.norm2.eval()
    scene.run()
    assert [text.split(":")[0][-5:] for text in told_of(caplog, "mode-after-trace")] == ["norm2"]


def test_modes_that_make_no_difference_are_not_told(tmp_path, caplog):
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.Dropout(0.5))

        def forward(self, image, label):
            out = self.layers(image)
            return F.cross_entropy(out, label), out

    scene = loaded(world("dropping_eval", Dropping), tmp_path)
    scene.model.eval()
    _, found = scene.run(section_types=["FWD"], train=False)
    close(found, scene.host.eval()(**scene.tensors)[1].detach())
    assert not told_of(caplog, "mode-after-trace") and not told_of(caplog, "batch-statistics")
    scene.run(section_types=["FWD"])
    assert len(told_of(caplog, "mode-after-trace")) == 1


def test_a_program_for_inference_is_in_evaluation_mode(tmp_path, caplog):
    model = samba.from_torch_model_(ResNet().eval())
    given = named(batch(TRAIN))
    outputs = load(model, given, tmp_path, inference=True)
    samba.session.run(given, outputs)
    assert not told_of(caplog, "mode-after-trace")
    model.train()
    samba.session.run(given, outputs)
    (text,) = told_of(caplog, "mode-after-trace")
    assert text.startswith("train() was called")


def test_indices_that_are_fed_are_checked_in_evaluation_too(scene):
    evaluate = samba.session.evaluator(scene.model)
    image, label = batch(LAST).values()
    label[2] = 3
    with pytest.raises(IndexError, match="label"):
        evaluate.run((image, label))
    label[2] = 2
    evaluate.run((image, label))
