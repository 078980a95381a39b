"""Views by strides, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from samba.tracer.errors import OverwrittenValue, StateGradient, StridedViewError
from samba.tracer.reference import run_reference
from tests.tracing import trace

Tensor = torch.Tensor


class Net(torch.nn.Module):
    """Something of a weight."""

    state: Tensor

    def __init__(self, compute: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4) / 8)
        self.register_buffer("state", torch.ones(3, 4))
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, self.w * x)


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def both(compute: Callable[[Net, Tensor], Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Result and gradient by torch, and by the traced graph."""
    model = Net(compute)
    want = model(X)
    (theirs,) = torch.autograd.grad(want.square().sum(), [model.w])
    traced = trace(model, X)
    sources = {
        s.value: s.tensor.detach().clone().requires_grad_(s.requires_grad)
        for s in traced.sources
        if s.tensor is not None
    }
    sources |= dict.fromkeys(traced.inputs, X)
    got = run_reference(traced.graph(), sources)[traced.outputs[0].value]
    weight = next(s.value for s in traced.sources if s.path == "w")
    (ours,) = torch.autograd.grad(got.square().sum(), [sources[weight]])
    return [got, ours], [want, theirs]


def _windows(_: Net, h: Tensor) -> Tensor:
    h.unfold(1, 2, 3).mul_(0.5)
    return h


def _diagonal(_: Net, h: Tensor) -> Tensor:
    h.as_strided((3,), (5,)).add_(10.0)
    return h


def _of_a_view(_: Net, h: Tensor) -> Tensor:
    h.t()[1:].as_strided((2, 2), (5, 1), 1).exp_()
    return h


def _columns_to_the_left(_: Net, h: Tensor) -> Tensor:
    """Torch goes forward through memory, and reads each element before it changes it."""
    h[:, :-1] = h[:, 1:]
    return h


def _first_row_off(_: Net, h: Tensor) -> Tensor:
    h[1:] -= h[:1]
    return h


@pytest.mark.parametrize(
    "compute",
    [
        _windows,
        _diagonal,
        _of_a_view,
        lambda _, h: h.t().as_strided((2, 3), (1, 4), 2),
        lambda _, h: h[1:].as_strided((2, 3), (4, 1), 0),
        lambda _, h: h[:, 1:].as_strided((2, 2), (4, 1)),
        lambda _, h: h[:1].expand(3, 4).as_strided((3, 4), (4, 1), 0),
        _columns_to_the_left,
        _first_row_off,
    ],
)
def test_views_by_strides_are_torchs(compute):
    for got, want in zip(*both(compute), strict=True):
        torch.testing.assert_close(got, want)


def _beyond(_: Net, h: Tensor) -> Tensor:
    h[1:].as_strided((2,), (4,), 0).mul_(2.0)
    return h


def _overlapping(_: Net, h: Tensor) -> Tensor:
    h.unfold(1, 3, 1).mul_(2.0)
    return h


def _rows_below(_: Net, h: Tensor) -> Tensor:
    h[1:] += h[:-1]
    return h


def _columns_to_the_right(_: Net, h: Tensor) -> Tensor:
    h[:, 1:] = h[:, :-1]
    return h


def _turned(_: Net, h: Tensor) -> Tensor:
    h[:, :3] += h[:, :3].t()
    return h


def _repeated(_: Net, h: Tensor) -> Tensor:
    h[:1].expand(3, 4).masked_fill_(h > 0.0, 2.0)
    return h


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (_repeated, "overlap in memory"),
        (_beyond, "outside of its tensor's elements"),
        (_overlapping, "overlap in memory"),
        (_rows_below, "single memory location"),
        (_columns_to_the_right, "depends on the order"),
        (_turned, "reads other elements of the memory that it changes"),
    ],
)
def test_a_view_that_no_graph_can_say_is_refused_with_its_line(compute, reason):
    with pytest.raises(StridedViewError, match=reason) as caught:
        trace(Net(compute), X)
    assert caught.value.where.startswith(f"{__file__}:")


def _read_later(net: Net, h: Tensor) -> Tensor:
    out = h * net.state
    net.state.mul_(2.0)
    return out


def test_what_a_gradient_reads_is_not_changed_in_place():
    """Torch raises in the backward pass; the graph would go on."""
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Net(_read_later)(X).sum().backward()
    with pytest.raises(OverwrittenValue, match="modified by an inplace operation") as caught:
        trace(Net(_read_later), X)
    (line,) = caught.value.lines
    assert line.startswith(f"{__file__}:") and line.endswith(" (aten.mul_.Tensor)")


def _kept(net: Net, h: Tensor) -> Tensor:
    net.state.copy_(h)
    return net.state * 2.0


def test_a_gradient_in_a_buffer_is_refused():
    """The next backward pass would go on into the step before."""
    with pytest.raises(StateGradient, match=r"h\.detach\(\)") as caught:
        trace(Net(_kept), X)
    assert caught.value.buffers == ("state",)


class Repeating(torch.nn.Module):
    """Whose backward pass by torch calls a part of ``forward`` again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.norm, x, use_reentrant=False) * 2.0
        h += x
        return h.sum()


def test_a_trace_calls_no_part_of_forward_again():
    """What it would change then are the model's own buffers."""
    model = Repeating()
    trace(model, X)
    assert int(model.norm.num_batches_tracked) == 0
