"""``session.run``: how inputs are matched and which sections run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from tests.api.covers import covers
from tests.samba.session.loading import load, loaded
from tests.samba.worlds import Scene, World, close, named, other_batch, told

FORWARD = {"section_types": ["fwd"]}


FORMS = {
    "tuple": lambda t: named(t),
    "list": lambda t: list(named(t)),
    "nested list": lambda t: [list(named(t))],
    "reversed": lambda t: named(t)[::-1],
    "None around": lambda t: (None, *named(t), None),
    "dict of named": lambda t: dict(zip(t, named(t), strict=True)),
    "dict of torch tensors": lambda t: dict(t),
    "dict in another order": lambda t: dict(reversed(t.items())),
    "torch tensors": lambda t: tuple(t.values()),
    "torch tensors around None": lambda t: (t["x"], None, t["y"]),
    "one named": lambda t: (t["x"], *named({"y": t["y"]})),
}


@covers("samba.session.run(input_tensors)")
def test_forms_of_inputs(scene):
    for seed, (form, make) in enumerate(FORMS.items()):
        batch = other_batch(seed)
        loss, out = scene.run(make(batch), **FORWARD)
        want_loss, want = scene.host(**batch)
        close(loss, want_loss.detach(), form)
        close(out, want.detach(), form)


def test_an_input_that_is_left_out_keeps_its_values(scene, caplog):
    """Nothing is told, since a run was given it before."""
    batch = other_batch()
    scene.run(named(batch), **FORWARD)
    later = other_batch(seed=8)
    for inputs in (named({"x": later["x"]}), named(later)[0], (later["x"], None), later["x"]):
        loss, _ = scene.run(inputs, **FORWARD)
        close(loss, scene.host(later["x"], batch["y"])[0].detach())
        scene.run(named(batch), **FORWARD)
    loss, _ = scene.run((None, later["y"]), **FORWARD)
    close(loss, scene.host(batch["x"], later["y"])[0].detach())
    loss, _ = scene.run(None, **FORWARD)
    close(loss, scene.host(batch["x"], later["y"])[0].detach())
    assert told(caplog) == []


def test_inputs_are_fed_as_their_tensors_are_now(scene):
    """A SambaTensor is a handle: what its tensor was given since is what runs."""
    batch = other_batch()
    given = named(batch)
    later = other_batch(seed=11)
    given[0].torch().data = later["x"]
    loss, _ = scene.run(given, **FORWARD)
    close(loss, scene.host(later["x"], batch["y"])[0].detach())


class Masked(nn.Module):
    """An optional argument between two others, and arguments named unlike their tensors."""

    def forward(self, image, mask=None, shift=None):
        out = image.tanh()
        if mask is not None:
            out = out * mask
        return out if shift is None else out + shift


def masked_inputs():
    return {"picture": torch.arange(6.0).reshape(2, 3) / 6, "offset": torch.ones(3)}


def test_none_holes_and_argument_names(tmp_path):
    model = Masked()
    picture, offset = named(masked_inputs())
    outputs = load(model, (picture, None, offset), tmp_path, inference=True)
    new, shift = torch.full((2, 3), 0.5), torch.full((3,), 2.0)
    want = model(new, None, shift)
    for inputs in (
        (new, None, shift),
        (new, shift),
        {"image": new, "shift": shift},
        {"picture": new, "offset": shift},
        {"shift": samba.from_torch_tensor(shift, name="offset"), "image": new, "mask": None},
    ):
        (out,) = samba.session.run(inputs, outputs)
        close(out, want)
    # The place of a lone tensor among Nones is its place when the model was traced.
    (out,) = samba.session.run((None, None, torch.zeros(3)), outputs)
    close(out, model(new, None, torch.zeros(3)))


class Single(nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize("name", ["", "x", "other"])
def test_a_bare_tensor(tmp_path, name):
    x = torch.arange(4.0)
    given = samba.from_torch_tensor(x, name=name) if name else x
    pef = samba.session.compile(Single(), given, config_dict={"output_folder": tmp_path})
    model = Single()
    outputs = samba.utils.trace_graph(model, given, pef=pef)
    assert isinstance(outputs, tuple) and model.output_tensors is outputs
    for inputs in (given, (given,), x + 1):
        (out,) = samba.session.run(inputs, outputs)
        tensor = inputs[0] if isinstance(inputs, tuple) else inputs
        assert torch.equal(samba.to_torch(out), samba.to_torch(tensor) * 2)


def test_the_caller_may_reuse_its_buffers(scene):
    """Inputs are copied before ``run`` returns: what is written to them later has no effect."""
    batch = other_batch()
    want = scene.host(**batch)[1].detach()
    inputs = named(batch)
    scene.run(inputs, output_tensors=(), **FORWARD)
    batch["x"].fill_(float("nan"))
    batch["y"].fill_(77)
    scene.run(None, output_tensors=(), **FORWARD)
    close(scene.run(None, **FORWARD)[1], want)


def test_non_contiguous_and_differentiable_inputs(scene):
    batch = other_batch()
    want = scene.host(**batch)[1].detach()
    x = torch.empty(4, 5).t().copy_(batch["x"]).requires_grad_()
    assert not x.is_contiguous()
    inputs = (samba.from_torch_tensor(x, name="x"), samba.from_torch_tensor(batch["y"], name="y"))
    close(scene.run(inputs, **FORWARD)[1], want)


# -- which sections run --------------------------------------------------------


@covers("samba.session.run")
def test_a_full_run_is_torch_training(scene):
    for seed in range(5):
        batch = other_batch(seed)
        loss, out = scene.run(named(batch))
        want_loss, want = scene.host_step(batch)
        close(loss, want_loss)
        close(out, want)
    scene.assert_follows()


def test_section_types(scene):
    for types in (
        ["FWD", "BCKWD", "OPT"],
        ["fwd", "bckwd", "opt"],
        ("Fwd", "bckWD", "Opt"),
        ["$FWD", "$BCKWD", "$OPT"],
        ["FWD", "BCKWD", "GRADNORM", "OPT"],
        {"FWD": 0, "BCKWD": 0, "OPT": 0}.keys(),
    ):
        scene.run(section_types=types)
        scene.host_step()
        scene.assert_follows()
    assert samba.session.counters.compiles == 1


@covers("samba.session.run(section_types)")
def test_section_types_select(scene):
    before = scene.weights()
    scene.run(section_types="fwd")
    scene.run(section_types=["bckwd"])
    for path, weight in scene.weights().items():
        assert torch.equal(weight, before[path])
    scene.run(section_types=["OPT"])
    scene.host_step()
    scene.assert_follows()


@covers("samba.session.run(section_types)")
def test_types_run_in_the_order_given(scene):
    """OPT before BCKWD takes the gradients of the step before."""
    scene.run()
    scene.host_step()
    scene.run(section_types=["opt", "fwd", "bckwd"])
    # The host steps with the gradients it has, then computes new ones.
    scene.host_optimizer.step()
    scene.host_optimizer.zero_grad()
    scene.host(**scene.tensors)[0].backward()
    scene.assert_follows()
    for path, weight in scene.host.named_parameters():
        close(scene.model.get_parameter(path).sn_grad, weight.grad, path)


@covers("samba.session.run(section_ids)")
def test_section_ids(scene):
    for ids in ([0, 1, 2], [[0, 1], [2]], (0, [1, [2]]), range(3), np.arange(3)):
        scene.run(section_ids=ids)
        scene.host_step()
        scene.assert_follows()
    assert samba.session.counters.compiles == 1


def test_call_ids_with_types(scene):
    scene.run(section_types=["fwd"], run_until_call_id=0)
    scene.run(section_types=["bckwd", "opt"], run_from_call_id=1)
    scene.host_step()
    scene.assert_follows()


def test_lists_that_change_between_calls(scene):
    """The session remembers what it prepared, not the caller's list."""
    types, outputs = ["fwd"], list(scene.model.output_tensors)
    assert len(scene.run(section_types=types, output_tensors=outputs)) == 2
    types += ["bckwd", "opt"]
    del outputs[0]
    (out,) = scene.run(section_types=types, output_tensors=outputs)
    close(out, scene.host_step()[1])
    scene.assert_follows()
    ids = [[0], [1]]
    scene.run(section_ids=ids)
    ids[1].append(2)
    scene.run(section_ids=ids)
    scene.host_step()
    scene.assert_follows()
    hyper = {"lr": 0.0}
    scene.run(hyperparam_dict=hyper)
    before = scene.weights()
    hyper["lr"] = 0.1
    scene.run(hyperparam_dict=hyper)
    assert not torch.equal(scene.weights()["first.weight"], before["first.weight"])


# -- every way gives the same numbers ------------------------------------------


class Deep(nn.Module):
    """Layers of several kinds, a value used twice, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.shared = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, y):
        h = self.norm(self.embed(x))
        h = h + self.shared(F.gelu(self.shared(h)))
        out = self.head(h)
        return F.cross_entropy(out, y), out


def by_type(scene):
    scene.run(section_types=["fwd"])
    for kind in ("bckwd", "opt"):
        scene.run(None, section_types=[kind])


def by_section(scene):
    for section in range(len(samba.session.program.sections)):
        scene.run(None if section else scene.inputs, section_ids=[section])


@pytest.mark.parametrize(
    "config, ways",
    [
        ({"optim_level": "o0"}, [Scene.run, by_section]),
        pytest.param({"optim_level": "o1"}, [Scene.run], marks=pytest.mark.slow),
        pytest.param({"optim_level": "o3"}, [Scene.run, by_type], marks=pytest.mark.slow),
        # In the fast tests a PEF for spatial mapping trains in tests/api/test_utils_page.py.
        pytest.param({"mapping": "spatial"}, [Scene.run, by_type], marks=pytest.mark.slow),
    ],
    ids=["o0", "o1", "o3", "spatial"],
)
def test_every_way_to_run_gives_the_same_numbers(tmp_path, config, ways):
    """XLA fuses across sections, so plans may differ in the last bits, but no further."""
    world = World(
        name="deep",
        model=Deep,
        optimizer=lambda m: samba.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
        config=config,
    )
    scene = loaded(world, tmp_path)
    want = [scene.host_step() for _ in range(3)][-1]
    for step in ways:
        samba.session.to_rdu(scene.model, scene.optimizer)  # both as they were at first
        for _ in range(3):
            step(scene)
        got = samba.session.get_tensors(scene.model.output_tensors)
        for ours, theirs in zip(got, want, strict=True):
            close(ours, theirs)
        scene.assert_follows()
