"""RDU arithmetic from the options of a compile to the numbers of a run."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from pef_schema import read_pef
from samba.compiler.arithmetic import METADATA, ArithmeticMismatch
from samba.errors import ArgumentError
from samba.tracer.reference import round_to_bfloat16
from samba.utils.argparser import parse_app_args
from tests.samba import graphs
from tests.samba.session.loading import loaded
from tests.samba.worlds import MLP, World, close, named, other_batch


class Explicit(nn.Module):
    """The MLP of the worlds with its rounding written out."""

    def __init__(self, model: nn.Module, preset: str, mode: str) -> None:
        super().__init__()
        self.model, self.preset = model, preset
        self.low = functools.partial(round_to_bfloat16, mode=mode)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = self.low
        high = low if self.preset == "mp4" else lambda t: t

        def linear(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return high(F.linear(low(x), low(layer.weight), low(layer.bias)))

        out = linear(self.model.second, high(linear(self.model.first, x).tanh()))
        return high(F.cross_entropy(out, y)), out


@pytest.mark.parametrize(
    ("preset", "mode"),
    [
        ("mp1", "truncation"),
        ("mp4", "nearest_even"),
        pytest.param("mp1", "nearest_even", marks=pytest.mark.slow),
        pytest.param("mp4", "truncation", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_torchs_with_explicit_casts(tmp_path, preset, mode):
    scene = loaded(MLP, tmp_path, graphamp_preset=preset, bf16_cast=mode)
    plain = [t.detach() for t in scene.host(**scene.tensors)]
    scene.host = Explicit(scene.host, preset, mode)
    loss, out = scene.run()
    want = scene.host_step()
    assert loss.dtype is torch.float32 and out.dtype is torch.float32
    close(loss, want[0])
    close(out, want[1])
    for path, weight in scene.host.model.named_parameters():
        close(scene.weights()[path], weight.detach(), path)
    assert not torch.equal(out, plain[1])  # it bites
    coarse = torch.equal(out, out.bfloat16().float()) and torch.equal(loss, loss.bfloat16().float())
    assert coarse is (preset == "mp4")


@pytest.mark.slow
def test_stochastic_rounding_repeats_and_does_not_depend_on_the_cut(tmp_path):
    found, scenes = [], []
    for i, cut in enumerate([{"optim_level": "o0"}, {"optim_level": "o3"}, {"mapping": "spatial"}]):
        scene = loaded(
            MLP, tmp_path / str(i), graphamp_preset="mp4", enable_stochastic_rounding=True, **cut
        )
        steps = [scene.run() for _ in range(2)]
        assert not torch.equal(steps[0][1], steps[1][1])
        found.append((steps, scene.weights()))
        scenes.append(scene)
    for steps, weights in found[1:]:
        for ours, theirs in zip(steps, found[0][0], strict=True):
            assert all(map(torch.equal, ours, theirs))
        assert all(torch.equal(weights[path], w) for path, w in found[0][1].items())
    # The same seed gives the same numbers again, another one does not.
    scene = scenes[-1]
    _, first = scene.run(section_types=["fwd"], hyperparam_dict={"mlp__seed": 5})
    _, again = scene.run(section_types=["fwd"], hyperparam_dict={"mlp__seed": 4})
    assert not torch.equal(first, again)
    scene.trace()
    _, again = scene.run(section_types=["fwd"], hyperparam_dict={"mlp__seed": 5})
    scene2 = loaded(MLP, tmp_path / "2b", graphamp_preset="mp4", bf16_cast="stochastic")
    _, other = scene2.run(section_types=["fwd"], hyperparam_dict={"mlp__seed": 5})
    assert torch.equal(again, other)


def test_a_run_follows_its_pef_and_refuses_another_arithmetic(tmp_path):
    scene = MLP.build()
    scene.compile(tmp_path, graphamp_preset="mp1", bf16_cast="truncation")
    assert dict(read_pef(scene.pef).metadata)[METADATA] == (
        "graphamp_preset=mp1 bf16_cast=truncation"
    )
    scene.trace(config_dict={"graphamp_preset": "mp1"})
    scene.trace(config_dict={})
    with pytest.raises(ArithmeticMismatch) as caught:
        scene.trace(config_dict={"graphamp_preset": "mp4", "bf16_cast": "truncation"})
    assert caught.value.differences == (("graphamp_preset", "mp4", "mp1"),)
    assert "graphamp_preset=mp4" in str(caught.value) and "mp1" in str(caught.value)
    with pytest.raises(ArithmeticMismatch, match="bf16_cast=stochastic"):
        scene.trace(config_dict={"enable_stochastic_rounding": True})
    plain = MLP.build()
    plain.compile(tmp_path / "plain")
    assert METADATA not in dict(read_pef(plain.pef).metadata)
    with pytest.raises(ArithmeticMismatch, match="found graphamp_preset=mp1"):
        plain.trace(config_dict={"graphamp_preset": "mp1"})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"graphamp_preset": "mp2"},
            "graphamp_preset: found 'mp2', expected 'mp0' or 'mp1' or 'mp4'",
        ),
        ({"bf16_cast": "upward"}, "bf16_cast: found 'upward'"),
        ({"bf16_cast": "truncation", "enable_stochastic_rounding": True}, "together with"),
    ],
)
def test_options_that_do_not_exist_or_contradict_are_refused(tmp_path, config, text):
    with pytest.raises(ArgumentError, match=text):
        MLP.build().compile(tmp_path, **config)


@pytest.fixture
def own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test parses or sets up is forgotten after it, and nothing is known before."""
    monkeypatch.setattr("samba.argconf.parsed._last.value", None)


def test_command_line_and_setup(tmp_path, own_options):
    args = parse_app_args(["compile", "--graphamp-preset", "mp4", "--bf16-cast", "truncation"])
    assert (args.graphamp_preset, args.bf16_cast) == ("mp4", "truncation")
    args = parse_app_args(["run", "--pef", "x"])
    assert (args.graphamp_preset, args.bf16_cast) == (None, None)
    from samba.argconf.args import CompileArgs

    samba.session.setup(
        CompileArgs(graphamp_preset="mp1", output_folder=str(tmp_path), pef_name="small")
    )
    scene = MLP.build()
    pef = samba.session.compile(scene.model, scene.inputs, scene.optimizer)
    assert "graphamp_preset=mp1" in dict(read_pef(pef).metadata)[METADATA]
    assert "bfloat16 -> float32" in Path(f"{pef}.log").read_text()


class Conv(nn.Module):
    """A small convolutional net with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = F.max_pool2d(self.bn(self.conv(x)).relu(), 2).flatten(1)
        out = self.head(out)
        return F.cross_entropy(out, y), out


def pictures() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    y = torch.arange(12) % 3
    x = torch.randn(12, 1, 6, 6, generator=generator) * 0.3 + y[:, None, None, None]
    return {"x": x, "y": y}


@pytest.mark.slow  # test_an_mlp_trains is quicker; test_rounding.py leaves statistics alone
@pytest.mark.parametrize("preset", ["mp1", "mp4"])
def test_a_conv_net_trains(tmp_path, preset):
    world = World(name=f"conv_{preset}", model=Conv, inputs=pictures)
    scene = loaded(world, tmp_path, graphamp_preset=preset)
    losses = [scene.run()[0].item() for _ in range(25)]
    plain = [scene.host_step()[0].item() for _ in range(25)]
    assert losses[-1] < 0.3 * losses[0]
    assert abs(losses[0] - plain[0]) < 0.02 * plain[0]
    assert abs(losses[-1] - plain[-1]) < 0.25 * plain[0]
    # Statistics are state: they are more than bfloat16 can hold.
    samba.session.to_cpu(scene.model)
    mean = scene.model.bn.running_mean.detach().as_subclass(torch.Tensor)
    assert not torch.equal(mean, mean.bfloat16().float())


@pytest.mark.parametrize(
    ("preset", "cast"),
    [
        ("mp1", "stochastic"),
        pytest.param("mp1", "nearest_even", marks=pytest.mark.slow),
        pytest.param("mp4", "nearest_even", marks=pytest.mark.slow),
        pytest.param("mp4", "stochastic", marks=pytest.mark.slow),
    ],
)
def test_an_mlp_trains(tmp_path, preset, cast):
    scene = loaded(MLP, tmp_path, graphamp_preset=preset, bf16_cast=cast)
    batch = other_batch(3)
    losses = [scene.run(named(batch))[0].item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("preset", "cast"),
    [
        ("mp4", "stochastic"),
        pytest.param("mp1", "truncation", marks=pytest.mark.slow),
        pytest.param("mp4", "nearest_even", marks=pytest.mark.slow),
    ],
)
def test_compare_tells_rounding_from_faults(preset, cast):
    scene = MLP.build()
    found = samba.utils.compare(
        scene.host, tuple(scene.tensors.values()), graphamp_preset=preset, bf16_cast=cast
    )
    assert found.ok, str(found)
    expected = [r for r in found.rows if r.status.value == "expected difference"]
    assert {r.phase.value for r in expected} >= {"forward", "model"}
    assert all(0 <= r.local.relative < 2**-7 for r in expected if r.local)
    assert any(r.local.largest > 0 for r in expected if r.local)


@pytest.mark.slow
def test_several_graphs_in_one_pef(tmp_path, own_options):
    found = {}
    for preset in ("mp0", "mp4"):
        graphs.set_up()
        path = graphs.compiled(tmp_path / preset, graphamp_preset=preset)
        samba.session.reset()
        decoding = graphs.set_up()
        samba.session.init_multigraph_runtime(path)
        for graph, start, stop in (("prompt", 0, 3), ("token", 3, 4)):
            tokens = torch.tensor([[4, 9, 1, 7]])[:, start:stop]
            decoding.run(graph, tokens, start)
        found[preset] = [t.data for t in samba.session.get_tensors_by_name(["logits", "cache_k"])]
        samba.session.reset()
    for plain, coarse in zip(found["mp0"], found["mp4"], strict=True):
        coarse = samba.to_torch(coarse)
        assert torch.equal(coarse, coarse.bfloat16().float())
        assert not torch.equal(coarse, samba.to_torch(plain))
        torch.testing.assert_close(coarse, samba.to_torch(plain), rtol=0.1, atol=0.05)
    graphs.set_up()
    samba.session.setup({"command": "run", "graphamp_preset": "mp1"})
    with pytest.raises(ArithmeticMismatch, match="found graphamp_preset=mp1"):
        samba.session.init_multigraph_runtime(path)
