"""What torch computes without gradients in ``forward`` trains nothing on the device either."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import samba
from samba.tracer.errors import InPlaceWithoutGradient
from tests.samba.session.loading import loaded
from tests.samba.worlds import Together, World, close


class Pair(nn.Module):
    """Two layers; each subclass lets the gradient of the first pass or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x, y):
        logits = self.second(self.mixed(x))
        return F.cross_entropy(logits, y), logits


class Block(Pair):
    def mixed(self, x):
        with torch.no_grad():
            hidden = self.first(x).tanh()
        return hidden + x


class Decorated(Pair):
    @torch.no_grad()
    def mixed(self, x):
        return self.first(x).tanh()


class InPlaceInside(Pair):
    def mixed(self, x):
        with torch.no_grad():
            hidden = self.first(x)
            hidden.mul_(2.0)
            hidden[:, 0] = 1.0
        return hidden * self.first(x)


class Nested(Pair):
    def mixed(self, x):
        with torch.no_grad():
            a = self.first(x)
            with torch.enable_grad():
                b = self.first(a.tanh())
            c = (a + b).sigmoid()
        return b * c


class Switched(Pair):
    def mixed(self, x):
        torch.set_grad_enabled(False)
        a, b = self.first(x).chunk(2, dim=1)
        torch.set_grad_enabled(True)
        return torch.cat([a, b], 1) * self.first(x)


class Straight(Pair):
    """The usual words for a straight-through estimator."""

    def mixed(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            rounded = (hidden * 4).round() / 4
        return hidden + (rounded - hidden).detach()


class WrittenAfterwards(Pair):
    """What had no gradient is written to in place by what has one."""

    def mixed(self, x):
        with torch.no_grad():
            hidden = self.first(x)
        hidden[:, 1] = self.first(x)[:, 0]
        hidden *= 1.5
        return hidden


class DetachedAndWritten(Pair):
    def mixed(self, x):
        hidden = self.first(x).detach()
        hidden[:, 1] = self.first(x)[:, 0]
        return hidden + hidden.detach().square()


class DetachedInput(Pair):
    """An input is fed in each step, whatever became of it in the one before."""

    def mixed(self, x):
        given = x.detach()
        given[:, 1] = 0.0
        return self.first(given)


class DetachedInPlace(Pair):
    def mixed(self, x):
        hidden = self.first(x).tanh()
        before = hidden * 2.0
        hidden.detach_()
        return before + hidden * self.first(x)


class CastToItsOwnType(Pair):
    """Torch returns the tensor itself, and so its gradient; a copy has none."""

    def mixed(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            same, other = hidden.float().contiguous(), hidden.to(torch.float32, copy=True)
        return same * other.exp()


class Statistics(Pair):
    """Buffers may be changed: they have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def mixed(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return hidden - self.mean


class StatisticsByData(Statistics):
    """Torch's buffer gets values without their gradient, whatever its memory is reached by."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("other", torch.zeros(4))

    def mixed(self, x):
        hidden = self.first(x)
        self.mean.data.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        self.mean.data[1:].mul_(0.5)
        self.other.detach().add_(1)
        return hidden - self.mean


class Recomputed(Pair):
    def mixed(self, x):
        return checkpoint(lambda z: self.first(z).tanh(), x, use_reentrant=False)


MODELS = (
    *(InPlaceInside, Nested, Switched, Straight, WrittenAfterwards, DetachedInPlace, Statistics),
    StatisticsByData,
)
OTHERS = (Block, Decorated, DetachedAndWritten, CastToItsOwnType, Recomputed)


@pytest.mark.parametrize("models", [MODELS, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_gradients_pass_where_torch_lets_them_pass(models, tmp_path):
    make = lambda: Together({model.__name__: model() for model in models})  # noqa: E731
    scene = loaded(World(name="without", model=make), tmp_path)
    for _ in range(3):
        results = scene.run()
        for ours, theirs in zip(results, scene.host_step(), strict=True):
            close(ours, theirs)
    scene.assert_follows()
    samba.session.sync_buffers_to_cpu(scene.model)
    for path, buffer in scene.host.named_buffers():
        close(scene.model.get_buffer(path), buffer, path)


def test_the_frozen_layer_would_have_moved(tmp_path):
    """The comparison bites: with its gradient, the first layer is elsewhere after a step."""

    class Trained(Pair):
        def mixed(self, x):
            return self.first(x).tanh() + x

    frozen, trained = World(name="a", model=Block).build(), World(name="b", model=Trained).build()
    frozen.host_step()
    trained.host_step()
    assert not torch.allclose(frozen.host.first.weight, trained.host.first.weight, atol=1e-4)


def test_a_section_without_gradients_keeps_the_users_lines(tmp_path):
    loaded(World(name="lines", model=Block), tmp_path)
    (tanh,) = [n for n in samba.session.program.graphs[0].nodes if n.op == "aten.tanh.default"]
    assert tanh.source.rpartition(":")[0] == __file__


def test_a_detached_input_may_be_changed(tmp_path):
    World(name="input", model=DetachedInput).build().compile(tmp_path)


class ChangedActivation(Pair):
    def mixed(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            hidden[:, :2].clamp_(min=0.0)  # changes an activation
        return hidden


class ChangedParameter(Pair):
    def mixed(self, x):
        with torch.no_grad():
            self.first.weight.clamp_(-0.1, 0.1)  # changes a parameter
        return self.first(x)


class ChangedByDetach(Pair):
    def mixed(self, x):
        hidden = self.first(x)
        hidden.detach().clamp_(min=0.0)  # shares the memory of hidden
        return hidden


class ChangedByData(Pair):
    def mixed(self, x):
        hidden = self.first(x)
        self.first.weight.data.clamp_(-0.1, 0.1)  # is read before, and not again
        return hidden


class ReadByData(Statistics):
    def mixed(self, x):
        mean = self.mean.data
        mean.clamp_(-0.1, 0.1).add_(self.first(x).mean(0))
        return x - mean  # has a gradient, which the buffer does not have


CHANGED = (ChangedActivation, ChangedParameter, ChangedByDetach, ChangedByData, ReadByData)


@pytest.mark.parametrize("model", CHANGED)
def test_what_has_a_gradient_is_not_changed_in_place(tmp_path, model):
    scene = World(name="changed", model=model).build()
    with pytest.raises(InPlaceWithoutGradient, match=r"clamp_.*has a gradient") as caught:
        scene.compile(tmp_path)
    (line,) = caught.value.lines
    assert "test_without_gradient.py" in line
