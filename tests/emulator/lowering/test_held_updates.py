"""Updates that a check of a branch holds back, and those that it lets pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import samba
from emulator.device import Device
from emulator.errors import OtherBranch
from emulator.lowering.write_order import after
from emulator.plans.steps import all_steps
from emulator.plans.xla_options import xla_options
from pef_schema import read_pef
from pef_schema.program import OptimizerKind
from samba.compiler.optimizers import describe_optimizers
from tests.emulator.lowering.one_rule import OneRule
from tests.emulator.lowering.optimizer_cases import CASES
from tests.samba.session.loading import load
from tests.samba.worlds import named


def one_rule(cls: type[torch.optim.Optimizer], options: dict[str, Any]) -> OneRule:
    weight = nn.Parameter(torch.linspace(-1.0, 1.0, 6, dtype=torch.float64).reshape(2, 3))
    (group,) = describe_optimizers([cls([weight], **options)])
    rule = OneRule(group, weight)
    for scale in (1.0, -0.3):
        rule.step(torch.full((2, 3), scale, dtype=torch.float64))
    return rule


def test_all_rules_are_tried() -> None:
    kinds = {one_rule(cls, options).optimizer.kind for cls, options in CASES.values()}
    assert kinds == set(OptimizerKind)


@pytest.mark.parametrize(("cls", "options"), CASES.values(), ids=CASES)
def test_an_update_that_is_held_back_changes_nothing(
    cls: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    """Gradients of a run that went the other way are often no numbers."""
    plain, rule = one_rule(cls, options), one_rule(cls, options)
    rule.check(failed=True)
    before = dict(rule.state)
    for value in (0.7, float("nan"), float("inf")):
        rule.step(torch.full((2, 3), value, dtype=torch.float64))
        for region in rule.written:
            np.testing.assert_array_equal(rule.state[region], before[region])
    # One that passes is what it is without checks.
    rule.check(failed=False)
    for each in (plain, rule):
        each.step(torch.full((2, 3), 0.7, dtype=torch.float64))
    for region in plain.written:
        np.testing.assert_array_equal(rule.state[region], plain.state[region])


class Guarded(nn.Module):
    """Two layers; the second reads what is looked at."""

    def __init__(self, *, guard: bool, max_norm: float | None = None) -> None:
        super().__init__()
        self.rows = nn.Embedding(6, 32, max_norm=max_norm)
        self.first = nn.Linear(32, 48)
        self.norm = nn.LayerNorm(48)
        self.last = nn.Linear(48, 2)
        self.guard = guard

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.first(self.rows(x)) * scale))
        if self.guard and not torch.isfinite(h).all():
            h = torch.clamp(h, -1.0, 1.0)
        return torch.sigmoid(self.last(h)).mean()


X, ONE, NAN = torch.arange(6), torch.ones(()), torch.tensor(float("nan"))


def traced(folder: Path, model: nn.Module) -> str:
    samba.from_torch_model_(model)
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.1)
    load(model, named({"x": X, "scale": ONE}), folder, optimizer)
    return samba.session.pef_path


def optimized(folder: Path, *, guard: bool) -> str:
    pef = traced(folder, Guarded(guard=guard))
    samba.session.reset()
    device = Device(read_pef(pef))
    return device.plan(all_steps(device.program)).executables[0].as_text()


def test_a_check_makes_nothing_twice_and_copies_no_weight(tmp_path: Path) -> None:
    plain = optimized(tmp_path / "plain", guard=False)
    guarded = optimized(tmp_path / "guarded", guard=True)
    # The number of steps, which is read before it is held back, may be copied.
    assert len(re.findall(r" copy\(", guarded)) <= len(re.findall(r" copy\(", plain)) + 1
    for text in (
        r"\[\d\S+ copy\(",
        r" tanh\(",
        r" rsqrt\(",
        r" subtract\(",
        r" dot\(| custom-call\(",
    ):
        assert len(re.findall(text, guarded)) <= len(re.findall(text, plain)), text
    assert " is-finite(" in guarded


def test_rows_that_forward_shortens_are_held_back_too(tmp_path: Path) -> None:
    """``max_norm`` changes a weight before the update, whose rule holds back its own change."""
    model = Guarded(guard=True, max_norm=0.5)
    traced(tmp_path, model)
    before = samba.to_torch(model.rows.weight).detach().clone()
    inputs = named({"x": X, "scale": NAN})
    with pytest.raises(OtherBranch):
        samba.session.run(inputs, model.output_tensors)
    samba.session.to_cpu(model)
    assert torch.equal(samba.to_torch(model.rows.weight), before)
    samba.session.run(named({"x": X, "scale": ONE}), model.output_tensors)
    samba.session.to_cpu(model)
    assert not torch.equal(samba.to_torch(model.rows.weight), before)


class Counted(nn.Module):
    """One weight, which a rate beyond all bounds sends to infinity in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = x * self.w
        if not torch.isfinite(h).all():
            h = torch.clamp(h, -1.0, 1.0)
        return h.sum()


def test_a_plan_with_two_updates_is_held_back_as_a_whole(tmp_path: Path) -> None:
    """The check of the second forward pass fails, and the first update is of the same run."""
    model = samba.from_torch_model_(Counted())
    inputs = named({"x": torch.full((3,), 4.0)})
    optimizer = samba.optim.SGD(model.parameters(), lr=2e38)
    outputs = load(model, inputs, tmp_path, optimizer)
    with pytest.raises(OtherBranch):
        samba.session.run(inputs, outputs, section_types=["fwd", "bckwd", "opt"] * 2)
    samba.session.to_cpu(model)
    assert torch.equal(samba.to_torch(model.w).detach(), torch.ones(3))
    assert float(samba.to_torch(model.calls)) == 0.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("other", ["bfloat16", "float32", "float64"])
def test_all_bits_stay(dtype: str, other: str) -> None:
    with jax.enable_x64(True):
        kind = jnp.dtype(dtype)
        word = np.dtype(f"uint{8 * kind.itemsize}")
        bits = np.random.default_rng(0).integers(0, np.iinfo(word).max, 200, dtype=word)
        array = jax.lax.bitcast_convert_type(jnp.asarray(bits), kind)
        odd = [jnp.asarray(v, other) for v in (-jnp.inf, jnp.nan, [-1.5, 2.0], np.zeros((0, 3)))]
        got = jax.jit(after)(array, odd)
        assert got.dtype == kind
        np.testing.assert_array_equal(np.asarray(jax.lax.bitcast_convert_type(got, word)), bits)


def _update(ordered: bool) -> str:
    """A layer's input gradient and its update, with the weight donated."""

    def step(w: jax.Array, x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
        dx = g @ w
        old = after(w, [dx]) if ordered else w
        return old - 0.1 * (g.T @ x), dx

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 32), (16, 32), (16, 64))]
    lowered = jax.jit(step, donate_argnums=0).lower(*shapes)
    text = lowered.compile(compiler_options=xla_options(jax.devices("cpu")[0])).as_text()
    assert text is not None
    return text


def test_xla_needs_no_copy_of_the_weight() -> None:
    copy = re.compile(r"= f32\[64,32\]\S* copy\(%w")
    assert copy.search(_update(ordered=False)), "if XLA learns this itself, the order can go"
    assert not copy.search(_update(ordered=True))
