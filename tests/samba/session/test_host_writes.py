"""Host tensors that have a twin on the device: what is loaded counts, other writes are told."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from samba.tensor.host_use import twinned
from tests.samba.session.loading import plain, told_of
from tests.samba.worlds import Scene, Tensors, World, close, named


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, x, y):
        out = self.head(self.body(x))
        return F.cross_entropy(out, y), out


def batch(seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 4, generator=generator)
    return {"x": x, "y": torch.randint(0, 3, (8,), generator=generator)}


def world(make: type[torch.optim.Optimizer]) -> World:
    name = f"written_{make.__name__.lower()}"
    return World(
        name=name,
        model=Net,
        inputs=batch,
        optimizer=lambda model: make(model.parameters(), lr=0.05),
    )


ADAM, SGD = world(torch.optim.Adam), world(torch.optim.SGD)


@pytest.fixture
def scene(pefs) -> Scene:
    return pefs.loaded(ADAM)


def steps(scene: Scene, *seeds: int) -> None:
    """Steps of both, on batches of their own."""
    for seed in seeds:
        close(scene.run(named(batch(seed)))[0], scene.host_step(batch(seed))[0])


def follows(scene: Scene) -> None:
    """Host memory has the values of the other host, after ``to_cpu``."""
    samba.session.to_cpu(scene.model)
    ours = scene.model.state_dict()
    for name, values in scene.host.state_dict().items():
        close(ours[name], values, name)


def load_others(*modules: nn.Module) -> None:
    """Load the state of another model, with moved statistics, into each of some models."""
    torch.manual_seed(7)
    state = Net().state_dict()
    state["body.1.running_mean"] += 3.0
    for module in modules:
        module.load_state_dict(state)


# -- states that are loaded ------------------------------------------------------------------


@pytest.mark.parametrize("converted", [True, False])
def test_a_state_that_is_loaded_after_trace_graph_counts_at_the_next_run(pefs, caplog, converted):
    scene = pefs.loaded(SGD) if converted else plain(pefs.scene(SGD))
    steps(scene, 0, 1)
    load_others(scene.model, scene.host)
    steps(scene, 2, 3)
    follows(scene)
    assert not told_of(caplog, "host-write")


def test_a_checkpoint_of_model_and_optimizer_resumes(scene):
    """Saved in the middle, loaded back after further steps: as if they had not been."""
    steps(scene, 0, 1)
    samba.session.to_cpu(scene.model, scene.optimizer)
    file = io.BytesIO()
    torch.save([scene.model.state_dict(), scene.optimizer.state_dict()], file)
    host = copy.deepcopy([scene.host.state_dict(), scene.host_optimizer.state_dict()])
    steps(scene, 2, 3)
    file.seek(0)
    model_state, optimizer_state = torch.load(file)
    scene.model.load_state_dict(model_state)
    scene.optimizer.load_state_dict(optimizer_state)
    scene.host.load_state_dict(host[0])
    scene.host_optimizer.load_state_dict(host[1])
    steps(scene, 4, 5, 6)
    follows(scene)


def test_a_part_that_is_loaded_counts_and_the_rest_trains_on(scene):
    """Host memory is older than the device's there, and is not taken."""
    steps(scene, 0, 1)
    torch.manual_seed(7)
    state = Net().head.state_dict()
    scene.model.head.load_state_dict(state)
    scene.host.head.load_state_dict(state)
    partial = {"body.1.bias": torch.full((6,), 0.5)}
    scene.model.load_state_dict(partial, strict=False)
    scene.host.load_state_dict(partial, strict=False)
    steps(scene, 2, 3)
    follows(scene)


def test_a_state_that_is_assigned_counts(pefs):
    scene = pefs.loaded(SGD)
    scene.run()
    torch.manual_seed(7)
    other = Net()
    scene.model.load_state_dict(other.state_dict(), assign=True)
    loss = samba.session.run(named(batch(1)), scene.model.output_tensors, section_types=["FWD"])[0]
    close(loss, other(**batch(1))[0].detach())


def test_a_loaded_state_is_not_lost_by_to_cpu(scene):
    steps(scene, 0)
    load_others(scene.model, scene.host)
    follows(scene)
    steps(scene, 1)
    follows(scene)


def test_loading_and_transferring_is_loading(scene, caplog):
    """What scripts for SambaFlow do."""
    steps(scene, 0)
    load_others(scene.model, scene.host)
    samba.session.to_rdu(scene.model)
    steps(scene, 1, 2)
    follows(scene)
    assert not told_of(caplog, "host-write")


def test_another_model_may_be_loaded_into(scene):
    """Copies and models of the same class have no twin."""
    steps(scene, 0)
    samba.session.to_cpu(scene.model)
    other = copy.deepcopy(scene.model)
    other.load_state_dict(Net().state_dict())
    steps(scene, 1)
    follows(scene)


def test_a_model_on_the_device_can_be_pickled(scene):
    read = pickle.loads(pickle.dumps(scene.model))  # noqa: S301  # of this process
    for name, values in scene.model.state_dict().items():
        assert torch.equal(read.state_dict()[name], values)


# -- other writes ------------------------------------------------------------------------------


def scale(model: Net) -> None:
    with torch.no_grad():
        model.head.weight.mul_(0.5)


def clamp(model: Net) -> None:
    model.head.weight.data.clamp_(-0.01, 0.01)


def put(model: Net) -> None:
    # Equal rows leave no gradient to what lies before but rounding, of which Adam makes steps.
    model.head.weight.data = torch.linspace(-1, 1, 18).reshape(3, 6)


def initialise(model: Net) -> None:
    nn.init.zeros_(model.head.weight)


def one_entry(model: Net) -> None:
    with torch.no_grad():
        model.head.weight[0, 0] = 7.0


def several(model: Net) -> None:
    with torch.no_grad():
        torch._foreach_mul_([model.head.weight], 0.5)  # pyright: ignore[reportPrivateImportUsage]  # optimizers call it


@pytest.mark.parametrize("write", [scale, clamp, put, initialise, one_entry, several])
def test_a_write_in_place_is_told_with_its_name_and_does_not_count(scene, caplog, write):
    steps(scene, 0, 1)
    samba.session.to_cpu(scene.model)
    write(scene.model)
    steps(scene, 2, 3)
    (text,) = told_of(caplog, "host-write")
    assert text.startswith("session.run: head.weight changed in host memory")
    assert "samba.session.to_rdu(model)" in text
    follows(scene)


@pytest.mark.parametrize("write", [scale, clamp, put, initialise, one_entry, several])
def test_between_to_cpu_and_to_rdu_it_counts(scene, caplog, write):
    """What the warning advises; weights are clipped in this way, and averages swapped in."""
    steps(scene, 0, 1)
    for seed in (2, 3):
        samba.session.to_cpu(scene.model)
        write(scene.model)
        write(scene.host)
        samba.session.to_rdu(scene.model)
        steps(scene, seed)
    follows(scene)
    assert not told_of(caplog, "host-write") and not told_of(caplog, "older-host-values")


def test_a_write_into_a_buffer_is_told(scene, caplog):
    steps(scene, 0)
    scene.model.body[1].reset_running_stats()
    steps(scene, 1)
    (text,) = told_of(caplog, "host-write")
    assert "body.1.running_mean, body.1.running_var, body.1.num_batches_tracked changed" in text


def test_a_write_that_to_cpu_takes_back_is_told(scene, caplog):
    scale(scene.model)
    samba.session.to_cpu(scene.model)
    (text,) = told_of(caplog, "host-write")
    assert text.startswith("session.to_cpu(): head.weight")
    close(scene.model.head.weight, scene.host.head.weight.detach())


def test_single_tensors_that_are_transferred_are_no_host_writes(scene, caplog):
    steps(scene, 0)
    weight = scene.model.head.weight
    weight.cpu()
    weight.data.mul_(0.5)
    weight.rdu()
    with torch.no_grad():
        scene.host.head.weight.mul_(0.5)
    steps(scene, 1)
    follows(scene)
    assert not told_of(caplog, "host-write")


def test_values_that_are_replaced_as_a_whole_are_no_use_of_old_ones(scene, caplog):
    steps(scene, 0)
    first, second = scene.model.head.weight, scene.model.head.bias
    first.data = torch.zeros(3, 6)
    first.rdu()
    samba.session.update_tensor(second.sn_name, samba.zeros(3))
    assert not first.sn_data.any() and not told_of(caplog, "older-host-values")
    samba.session.run(None, (), section_types=["FWD"])
    (text,) = told_of(caplog, "host-write")
    assert "head.bias" in text and "head.weight" not in text


def test_a_moving_average_of_old_host_values_is_told(scene, caplog):
    average = copy.deepcopy(scene.host)
    steps(scene, 0)
    for _ in range(2):
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), scene.model.parameters(), strict=True):
                mean.mul_(0.9).add_(weight, alpha=0.1)
    (text,) = told_of(caplog, "older-host-values")
    assert "body.0.weight" in text and "samba.session.to_cpu(model)" in text


@pytest.mark.parametrize("initialize", [nn.init.trunc_normal_, nn.init.orthogonal_])
def test_values_that_are_drawn_anew_are_no_use_of_old_ones(scene, caplog, initialize):
    steps(scene, 0)
    initialize(scene.model.head.weight)
    assert not told_of(caplog, "older-host-values")
    samba.session.run(None, (), section_types=["FWD"])
    (text,) = told_of(caplog, "host-write")
    assert "head.weight" in text


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.state_dict(),
        lambda model: copy.deepcopy(model),
        lambda model: pickle.dumps(model),
        lambda model: [p.data.clone() for p in model.parameters()],
        lambda model: model(**batch()),
        lambda model: nn.utils.parameters_to_vector(model.parameters()),
    ],
)
def test_uses_of_old_host_values_are_told(scene, caplog, use):
    use(scene.model)
    assert not told_of(caplog, "older-host-values")
    steps(scene, 0)
    use(scene.model)
    assert len(told_of(caplog, "older-host-values")) == 1


def test_values_that_were_copied_are_not_old(scene, caplog):
    steps(scene, 0)
    samba.session.to_cpu(scene.model)
    scene.model.state_dict()
    scene.model.zero_grad()
    scene.optimizer.zero_grad()
    steps(scene, 1)
    scene.model.head.weight.cpu()
    scene.model.head.weight.sum()
    follows(scene)
    assert not told_of(caplog, "older-host-values") and not told_of(caplog, "host-write")


def test_a_state_of_an_optimizer_that_was_not_copied_is_told(scene, caplog):
    """A checkpoint of it would begin with no momentum, or with an old one."""
    scene.optimizer.state_dict()
    steps(scene, 0)
    samba.session.to_cpu(scene.model)
    assert not told_of(caplog, "older-host-values")
    for _ in range(2):
        scene.optimizer.state_dict()
    (text,) = told_of(caplog, "older-host-values")
    assert "state of Adam" in text and "samba.session.to_cpu(model, optimizer)" in text


@pytest.mark.parametrize("make", [ADAM, SGD], ids=lambda made: made.name)
def test_a_state_that_was_copied_or_loaded_is_not_old(pefs, caplog, make):
    scene = pefs.loaded(make)
    steps(scene, 0)
    samba.session.to_cpu(scene.model, scene.optimizer)
    state = copy.deepcopy(scene.optimizer.state_dict())
    samba.session.run(named(batch(1)), ())
    scene.optimizer.load_state_dict(state)
    scene.optimizer.state_dict()
    samba.session.run(None, (), section_types=["FWD"])
    scene.optimizer.state_dict()
    assert not told_of(caplog, "older-host-values")


def test_a_state_that_the_optimizer_does_not_have_is_not_old(pefs, caplog):
    """SGD has none without momentum: apps copy the model alone."""
    scene = pefs.loaded(SGD)
    steps(scene, 0)
    samba.session.to_cpu(scene.model)
    scene.optimizer.state_dict()
    assert not told_of(caplog, "older-host-values")


@pytest.mark.parametrize("copied", ["nothing", "model", "all"])
def test_a_program_that_takes_old_host_values_is_told(scene, caplog, copied):
    """As for another batch size, or to infer: without ``to_cpu`` training is lost."""
    steps(scene, 0)
    if copied != "nothing":
        samba.session.to_cpu(scene.model, scene.optimizer if copied == "all" else None)
    scene.trace()
    told = "\n".join(told_of(caplog, "older-host-values"))
    assert told.count("trace_graph of body.0.weight") == (copied == "nothing")
    assert told.count("trace_graph uses the state of Adam") == (copied != "all")


def begin_again(model: Net) -> None:
    for layer in (model.body[0], model.body[1], model.head):
        layer.reset_parameters()


@pytest.mark.parametrize("again", [load_others, begin_again])
def test_what_a_script_has_written_or_loaded_is_not_old(scene, caplog, again):
    """Such as for the next fold of a cross-validation."""
    steps(scene, 0)
    samba.session.optimizers_to_cpu(scene.optimizer)
    again(scene.model)
    scene.trace()
    assert not told_of(caplog, "older-host-values")


def test_nothing_is_looked_after_once_the_session_is_reset(scene, caplog):
    ours = {id(t) for t in (*scene.model.parameters(), *scene.model.buffers())}
    assert ours <= set(twinned)
    scene.trace()
    steps(scene, 0)
    samba.session.reset()
    assert not ours & set(twinned)
    scale(scene.model)
    scene.model.load_state_dict(Net().state_dict())
    assert not told_of(caplog, "host-write") and not told_of(caplog, "older-host-values")


@pytest.mark.parametrize("converted", [True, False])
def test_freezing_after_the_load_is_told_once(pefs, caplog, converted):
    scene = pefs.loaded(ADAM) if converted else plain(pefs.scene(ADAM))
    steps(scene, 0)
    scene.model.head.requires_grad_(False)
    for step in (1, 2):
        steps(scene, step)
    (text,) = told_of(caplog, "requires-grad-after-trace")
    assert "after trace_graph (head.weight is False, head.bias is False)" in text
    scene.model.head.weight.requires_grad = True
    steps(scene, 3)
    assert "head.weight is True" in told_of(caplog, "requires-grad-after-trace")[1]


def test_clipping_gradients_that_are_on_the_device_is_told_once(scene, caplog):
    """``clip_grad_norm_`` finds no gradient on the host, and clips nothing."""
    for step in (1, 2):
        scene.optimizer.zero_grad()
        scene.model.zero_grad()
        steps(scene, step)
        scene.optimizer.step()
    assert not told_of(caplog, "host-gradient")
    for _ in range(2):
        assert nn.utils.clip_grad_norm_(scene.model.parameters(), 0.1) == 0.0
    assert len(told_of(caplog, "host-gradient")) == 1
    scene.model.head.weight.cpu()
    assert scene.model.head.weight.grad is not None


def test_a_step_on_the_host_that_updates_nothing_is_told_once(scene, caplog):
    """It is told where gradients wait on the device for an update, and not beside one."""
    for sections in (["fwd", "bckwd"], ["fwd", "bckwd"], ["opt"]):
        samba.session.run(named(batch(0)), section_types=sections)
    assert told_of(caplog, "replaced-gradients")
    scene.optimizer.step()
    assert not told_of(caplog, "host-gradient")
    for seed in (1, 2):
        samba.session.run(named(batch(seed)), section_types=["fwd", "bckwd"])
        scene.optimizer.step()
        samba.session.run(named(batch(seed)), section_types=["opt"])
        scene.optimizer.step()
    (told,) = told_of(caplog, "host-gradient")
    assert "Adam.step() updates nothing" in told
    assert "section_types=['opt']" in told
