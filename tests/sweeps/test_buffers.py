"""Buffers that forward changes, and the gradients that are computed from what they held."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.sweeps.both_sides import sweep_together, train_both
from tests.sweeps.tally import Tally

Tensor = torch.Tensor

INPUTS = {"x": torch.tensor([0.5, -0.25, 1.0])}
SPLIT = (("fwd",), ("bckwd",), ("opt",))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class _Changed(nn.Module):
    """Computes with a weight and a buffer, which it changes.

    Args:
        dtype: Of the buffer.
        change: Changes it in place.
        consume: Makes values of the product of weight and input, and of the buffer.
        when: Whether it consumes what the buffer holds before the change, after it, or both.
    """

    buffer: Tensor

    def __init__(
        self,
        dtype: torch.dtype,
        change: Callable[[Tensor], Any],
        consume: Callable[[Tensor, Tensor], Tensor],
        when: str,
    ) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("buffer", torch.tensor([1, 0, 2]).to(dtype))
        self.change, self.consume, self.when = change, consume, when

    def forward(self, x: Tensor) -> Tensor:
        h = self.w * x
        if self.when == "copied":
            h = self.consume(h, self.buffer.clone())
        elif self.when == "before":
            h = self.consume(h, self.buffer)
        self.change(self.buffer)
        if self.when != "before":
            h = self.consume(h, self.buffer)
        return h.square().sum()


def _item(b: Tensor) -> None:
    b[1] = 1


def _by_view(b: Tensor) -> None:
    b[1:].add_(1)


OF_NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda b: b.add_(1),
    "mul_": lambda b: b.mul_(2),
    "copy_": lambda b: b.copy_(2 - b),
    "item": _item,
    "view": _by_view,
    "zero_": lambda b: b.zero_(),
    "index_fill_": lambda b: b.index_fill_(0, torch.tensor([1]), 3),
    "clamp_": lambda b: b.clamp_(max=1),
    "masked_fill_": lambda b: b.masked_fill_(b == 0, 2),
    "flip": lambda b: b.copy_(b.flip(0)),
}
OF_BOOLEANS: dict[str, Callable[[Tensor], Any]] = {
    "logical_not_": lambda b: b.logical_not_(),
    "copy_": lambda b: b.copy_(~b),
    "item": _item,
    "bitwise_xor_": lambda b: b.bitwise_xor_(torch.tensor([True, False, True])),
    "flip": lambda b: b.copy_(b.flip(0)),
}
OF_INTEGERS = {"bitwise_xor_": lambda b: b.bitwise_xor_(1), "neg_": lambda b: b.neg_()}
OF_FLOATS = {"lerp_": lambda b: b.lerp_(torch.ones_like(b), 0.5), "exp_": lambda b: b.exp_()}

CONSUMERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where": lambda h, b: h * torch.where(b.bool(), 1.0, 0.5),
    "mul": lambda h, b: h * b,
    # Not tanh, whose gradient near 1 is made of the last digits of its value.
    "twice": lambda h, b: torch.nn.functional.softsign(h * b) * (b + 1),
    "masked_fill": lambda h, b: h.masked_fill(b == 1, 0.25) * 2,
    "gather": lambda h, b: h * h[b.long().abs() % 3],
    "prelu": lambda h, b: torch.nn.functional.prelu(h, b.float().sum().reshape(1) / 4),
}


def _changes(dtype: torch.dtype) -> dict[str, Callable[[Tensor], Any]]:
    if dtype is torch.bool:
        return OF_BOOLEANS
    return OF_NUMBERS | (OF_FLOATS if dtype.is_floating_point else OF_INTEGERS)


def _cases() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    for dtype in (torch.bool, *INTEGERS, *FLOATS):
        changes = _changes(dtype)
        for change, consume, when in itertools.product(
            changes, CONSUMERS, ("after", "copied", "before")
        ):
            made_of = dtype, changes[change], CONSUMERS[consume], when
            yield f"{dtype} {change} {consume} {when}", partial(_Changed, *made_of)


def test_gradients_are_of_what_a_buffer_held(tmp_path):
    """The buffer is read by a gradient in the backward section, after it was changed."""
    rows = dict(_cases())
    flag = "torch.bool logical_not_ where after"
    both = "torch.float32 add_ twice copied"
    tally = Tally("changed buffers, a slice")
    tally.add(flag, *train_both(rows[flag], INPUTS, tmp_path, lr=1.0, runs=SPLIT))
    config = {"optim_level": "o0"}
    tally.add(both, *train_both(rows[both], INPUTS, tmp_path, lr=1.0, config=config))
    tally.close(at_least=2)


@pytest.mark.slow
@pytest.mark.usefixtures("cheap_code")
@pytest.mark.parametrize("runs", [((),), SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("level", ["o3", "o1", "o0"])
def test_changed_buffers(tmp_path, level, runs):
    tally = Tally(f"changed buffers, {level}, {len(runs)} run(s) a step")
    cases = list(_cases())
    step = 5 if (level, len(runs)) == ("o3", 3) else 31
    config = {"optim_level": level}
    some = dict(cases[::step])
    sweep_together(tally, some, INPUTS, tmp_path, lr=0.1, config=config, runs=runs)
    tally.close(at_least=len(some) * 98 // 100)
