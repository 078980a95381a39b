"""Wrong lowerings are planted and must be found; right models must pass."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.ops import registry
from emulator.plans import composition
from samba.comparison.report import Comparison, Phase, Status
from samba.comparison.sides import Tol, judge, statistics, tolerance
from samba.tracer.custom_gradients import GradientRecorder
from samba.tracer.torch_patches import function_outputs
from tests.models.zoo import ZOO


class Small(nn.Module):
    """Two layers with a tanh between, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.act(self.first(x))
        out = self.second(torch.sin(hidden))
        return F.cross_entropy(out, y), out


def small() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Small(), (torch.randn(5, 4), torch.randint(3, (5,)))


def line_of(cls: type, text: str) -> str:
    """``file:line`` of a piece of source."""
    lines, start = inspect.getsourcelines(cls)
    return f"{__file__}:{start + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Puts a wrong lowering in the place of a right one."""
    registry.load_ops()

    def put(op: str, lower: Callable[..., Any]) -> None:
        monkeypatch.setitem(registry._OPS, op, replace(registry._OPS[op], lower=lower))

    return put


@jax.custom_vjp
def sin_of_wrong_slope(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


sin_of_wrong_slope.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x) * 1.01,))


@pytest.fixture(scope="module")
def right() -> Comparison:
    """What is found of a model whose lowerings are right."""
    return samba.utils.compare(*small())


def test_a_right_model_passes(right):
    found = right
    assert found.ok and found.first is None and found.first_nonfinite is None
    phases = [row.phase for row in found.rows]
    assert [phases.count(p) for p in Phase] == [5, 8, 6, 6]
    assert all(row.whole.relative < 1e-6 for row in found.rows)
    assert "no operation is beyond its tolerance" in str(found)


def test_a_wrong_result_is_found_where_it_arises(plant):
    plant("aten.tanh.default", lambda x: jnp.tanh(x).at[2, 1].mul(1.001))
    model, inputs = small()
    found = samba.utils.compare(model, inputs)
    first = found.first
    assert (first.phase, first.op, first.status) == (
        Phase.FORWARD,
        "aten.tanh.default",
        Status.BEYOND,
    )
    assert first.module == "small__act" and first.name == "small__act__tanh__outputs__0"
    assert first.source == line_of(Small, "self.act(self.first(x))")
    want = model.act(model.first(inputs[0]))[2, 1].item()
    assert first.local.index == (2, 1) and first.local.wrong == 1 and first.local.elements == 30
    assert math.isclose(first.local.torch, want) and math.isclose(
        first.local.device, want * 1.001, rel_tol=1e-6
    )
    (into,) = first.inputs
    assert into.name == "small__first__linear__outputs__0" and into.shape == (5, 6)
    assert math.isclose(into.maximum, model.first(inputs[0]).max().item(), rel_tol=1e-6)
    # What comes after is right in itself; what has gone wrong before is told apart.
    wrong = [row for row in found.rows if row.status.is_wrong]
    assert {row.op for row in wrong} == {"aten.tanh.default"}
    sine = next(row for row in found.rows if row.op == "aten.sin.default")
    assert sine.status is Status.OK and sine.local.largest < 1e-6 < sine.whole.largest
    text = str(found)
    assert "first that differs: forward node 1, aten.tanh.default" in text
    assert first.source in text and "1 of 30 elements beyond" in text


def test_a_wrong_gradient_is_found_where_it_arises(plant):
    plant("aten.sin.default", sin_of_wrong_slope)
    model, inputs = small()
    found = samba.utils.compare(model, inputs)
    first = found.first
    assert (first.phase, first.op) == (Phase.BACKWARD, "aten.sin.default")
    assert first.name == "small__act__tanh__outputs__0"
    assert first.source == line_of(Small, "torch.sin(hidden)")
    assert math.isclose(first.local.relative, 0.01, rel_tol=1e-3)
    assert [s.name for s in first.inputs][-1].startswith("gradient of small__sin")
    assert {row.op for row in found.rows if row.status.is_wrong} == {"aten.sin.default"}
    weight = next(r for r in found.rows if r.name == "small__first__weight" and r.node >= 0)
    assert weight.status is Status.OK and math.isclose(weight.whole.relative, 0.01, rel_tol=1e-3)
    assert samba.utils.compare(model, inputs, backward=False).ok
    assert samba.utils.compare(model, inputs, inference=True).ok


def test_nan_and_errors_of_a_lowering_are_found(plant):
    plant("aten.sin.default", lambda x: jnp.sin(x).at[0, 0].set(jnp.nan))
    first = samba.utils.compare(*small()).first
    assert (first.op, first.status, first.nonfinite) == (
        "aten.sin.default",
        Status.NOT_FINITE,
        (0, 1),
    )

    def broken(x: jax.Array) -> jax.Array:
        raise ValueError("no sine today")

    plant("aten.sin.default", broken)
    found = samba.utils.compare(*small())
    assert (found.first.op, found.first.status) == ("aten.sin.default", Status.FAILED)
    assert "no sine today" in found.first.detail
    # The rest is compared all the same.
    assert {(r.phase, r.op) for r in found.rows if r.status.is_wrong} == {
        (Phase.FORWARD, "aten.sin.default"),
        (Phase.BACKWARD, "aten.sin.default"),
        (Phase.COMPILED, ""),
    }


def test_nan_that_torch_has_too_is_named_but_not_wrong():
    class Logs(nn.Module):
        def forward(self, x):
            return torch.log(x) * 2

    found = samba.utils.compare(Logs(), torch.tensor([1.0, -1.0, 0.0]))
    assert found.ok
    row = found.first_nonfinite
    assert row.op == "aten.log.default" and row.nonfinite == (2, 2)
    assert row.inputs[0].minimum == -1.0
    assert "first NaN or inf: forward node 0, aten.log.default" in str(found)


def test_a_fault_between_sections_is_told_from_one_of_an_operation(monkeypatch):
    backward = composition.backward

    def forgetful(*arguments):
        return {r: a * 0 for r, a in backward(*arguments).items()}

    monkeypatch.setattr(composition, "backward", forgetful)
    found = samba.utils.compare(*small())
    assert found.first.phase is Phase.COMPILED
    assert found.first.name == "small__first__weight__grad"
    assert "sections" in found.first.detail
    assert {r.phase for r in found.rows if r.status.is_wrong} == {Phase.COMPILED}


class Doubled(torch.autograd.Function):
    """The identity with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient for one input
        return 2 * g


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return Doubled.apply(self.layer(x))


def test_a_gradient_of_a_function_is_compared():
    found = samba.utils.compare(Custom(), torch.randn(2, 3))
    assert found.ok, str(found)


def test_a_gradient_that_tracing_loses_is_told(monkeypatch):
    monkeypatch.setattr(
        GradientRecorder, "apply", lambda self, cls, args: function_outputs(cls, args)
    )
    found = samba.utils.compare(Custom(), torch.randn(2, 3))
    assert found.first.phase is Phase.MODEL and found.first.name == "custom__layer__weight__grad"


class Noisy(nn.Module):
    """Dropout, noise, batch statistics and two floating types."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.low = nn.Linear(12, 2).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.drop(self.bn(self.conv(x)).relu()) + 0.1
        out = out + torch.rand_like(out)
        return self.low(out.flatten(1).to(torch.bfloat16)).float().square().mean()


@pytest.mark.slow
def test_random_numbers_buffers_and_mixed_types():
    model = Noisy()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    found = samba.utils.compare(model, samba.randn(3, 2, 6, name="x"))
    assert found.ok, str(found)
    drawn = [row for row in found.rows if row.status is Status.DRAWN]
    assert [row.op for row in drawn] == ["aten.rand_like.default"]
    assert {"bfloat16", "float32"} <= {row.dtype for row in found.rows}
    assert any("dropout is off" in note for note in found.notes)
    assert any("draws random numbers" in note for note in found.notes)
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[name]), name


def test_json(right):
    report = json.loads(right.to_json())
    assert report["ok"] is True and report["first"] is None
    assert len(report["rows"]) == len(right.rows)
    row = report["rows"][1]
    assert (row["op"], row["phase"], row["status"]) == ("aten.tanh.default", "forward", "ok")
    assert row["local"]["elements"] == 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_the_judge_bites(dtype):
    want = torch.tensor([100.0, -3.0, 0.5]).to(dtype)
    tol = tolerance(dtype)

    def verdict(got):
        return judge(got, want, tol, lambda: want.double())[0]

    assert verdict(want) is Status.OK
    assert verdict(want.float()) is (Status.OK if dtype is torch.float32 else Status.DTYPE)
    assert verdict(want[:2]) is Status.SHAPE
    off = want.clone()
    step = max(2 * (tol.atol + tol.rtol * 100), 1) if dtype is torch.int64 else 0
    off[0] = off[0].double() + (step or 2 * (tol.atol + tol.rtol * 100))
    assert verdict(off) is Status.BEYOND
    if dtype.is_floating_point:
        off[0] = torch.inf
        assert verdict(off) is Status.NOT_FINITE
        nan = torch.full((2,), torch.nan, dtype=dtype)
        assert judge(nan, nan, tol, lambda: None)[0] is Status.OK


def test_rounding_like_torchs_own_is_no_fault():
    """Where torch itself is off the float64 result, the device may be off as well, not more."""
    exact = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    want = torch.tensor([1.0 + 3e-5, 1e-3])
    tol = Tol(rtol=1.3e-6, atol=0.0)
    near, far = torch.tensor([1.0, 1e-3 + 9e-5]), torch.tensor([1.0, 1e-3 + 2e-4])
    assert judge(near, want, tol, lambda: exact)[0] is Status.OK
    assert judge(far, want, tol, lambda: exact)[0] is Status.BEYOND
    assert judge(near, want, tol, lambda: None)[0] is Status.BEYOND


def test_statistics_leave_nan_out():
    found = statistics("x", torch.tensor([1.0, 3.0, torch.nan, torch.inf]))
    assert (found.minimum, found.maximum, found.mean, found.std) == (1.0, 3.0, 2.0, 1.0)
    assert (found.nans, found.infs) == (1, 1)
    assert math.isnan(statistics("none", torch.zeros(0)).mean)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_passes(name):
    torch.manual_seed(11)
    found = samba.utils.compare(ZOO[name].model(), ZOO[name].inputs())
    assert found.ok, str(found)


@pytest.mark.slow
def test_a_tiny_gpt_and_an_lstm_pass():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm = nn.Embedding(7, 8), nn.LSTM(8, 8)
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 7)

        def forward(self, ids):
            x = self.embed(ids)
            q = x.view(2, 3, 2, 4).transpose(1, 2)
            x = x + F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).reshape(
                2, 3, 8
            )
            out = self.head(self.norm(F.gelu(self.lstm(x)[0])))
            return F.cross_entropy(out.view(-1, 7), ids.view(-1))

    found = samba.utils.compare(Tiny(), torch.randint(7, (2, 3)))
    assert found.ok, str(found)
