"""Buffers that ``forward`` assigns, in the model itself and in its parts, as torch keeps them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samba
from pef_schema.program import Role
from samba.tracer.changed_state import ChangedAttributes
from samba.tracer.reference import run_reference
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome
from tests.tracing import trace

X = torch.linspace(-1, 1, 12).reshape(3, 4)

Form = Callable[[Any, Tensor], Any]


class Keeps(nn.Module):
    """Two vectors, a square, a number, two places without one, and a function of them."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.register_buffer("none", None)
        self.register_buffer("first", torch.zeros(4))
        self.register_buffer("second", torch.ones(4))
        self.register_buffer("square", torch.arange(16.0).reshape(4, 4))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("other", None)
        self.weight = nn.Parameter(torch.ones(4))
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(self, x)


class Within(nn.Module):
    """A model with that as a part."""

    own: Tensor

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.register_buffer("own", torch.ones(4))
        self.part = Keeps(form)

    def forward(self, x: Tensor) -> Any:
        return self.part(x * self.own)


def average(m: Any, x: Tensor) -> Any:
    m.first = 0.9 * m.first + 0.1 * x.mean(0)
    return x - m.first


def counted(m: Any, x: Tensor) -> Any:
    m.count = m.count + 1
    return x * m.count


def swapped(m: Any, x: Tensor) -> Any:
    y = x + m.first + 10 * m.second
    m.first, m.second = m.second, m.first
    return y


def shifted(m: Any, x: Tensor) -> Any:
    y, before = x + m.first + 10 * m.second, m.first
    m.first = x.mean(0)
    m.second = before
    return y


def old_one_returned(m: Any, x: Tensor) -> Any:
    before, part = m.first, m.first[1:]
    m.first = x.mean(0)
    return before, part, m.first


def turned(m: Any, x: Tensor) -> Any:
    y = x @ m.square
    m.square = m.square.t()
    return y


def written_afterwards(m: Any, x: Tensor) -> Any:
    y = x + m.first
    m.first = x.mean(0)
    m.first.add_(1)
    return y


def twice(m: Any, x: Tensor) -> Any:
    m.count = m.count + 1
    y = x * m.count
    m.count = m.count * 2
    return y


def of_the_input(m: Any, x: Tensor) -> Any:
    y = x[0] - m.first
    m.first = x[0]
    return y


def of_constants(m: Any, x: Tensor) -> Any:
    y = x + m.first
    m.first = torch.full((4,), 7.0)
    return y


def table_of_the_first_call(m: Any, x: Tensor) -> Any:
    if m.other is None:
        m.other = torch.arange(4.0)
    return x * m.other


def registered_in_the_first_call(m: Any, x: Tensor) -> Any:
    if not hasattr(m, "table"):
        m.register_buffer("table", torch.arange(4.0))
    return x * m.table


def registered_in_each_call(m: Any, x: Tensor) -> Any:
    m.register_buffer("table", torch.arange(4.0), persistent=False)
    return x * m.table


def table_beside_its_length(m: Any, x: Tensor) -> Any:
    if getattr(m, "length", 0) < 4:
        m.length = 4
        m.register_buffer("table", torch.arange(4.0), persistent=False)
    return x * m.table


def grown_with_its_length(m: Any, x: Tensor) -> Any:
    if getattr(m, "length", 0) < 8:
        m.length, m.first = 8, torch.arange(8.0)
    return x * m.first[4:]


WRITTEN: list[Form] = [
    *(average, counted, swapped, shifted, old_one_returned, turned, written_afterwards, twice),
    *(of_the_input, of_constants, table_of_the_first_call, registered_in_the_first_call),
    *(registered_in_each_call, table_beside_its_length, grown_with_its_length),
]
FAST = (average, shifted, old_one_returned, registered_in_the_first_call, table_beside_its_length)


def several_calls(model: nn.Module, calls: int) -> list[list[Tensor]]:
    """Results of a traced graph in several calls, each in the state that the last one has left."""
    traced = trace(model, X, inference=True)
    state = {
        s.value: s.tensor.detach().clone()
        for s in traced.sources
        if s.role is not Role.INPUT and s.tensor is not None
    }
    results: list[list[Tensor]] = []
    for call in range(calls):
        env = run_reference(traced.graph(), state | dict.fromkeys(traced.inputs, X + call))
        results.append([env[output.value] for output in traced.outputs])
        state |= {old: env[new] for new, old in traced.updates}
    return results


@pytest.mark.parametrize("make", [Keeps, Within])
@pytest.mark.parametrize(
    "form",
    [pytest.param(f, id=f.__name__, marks=[] if f in FAST else pytest.mark.slow) for f in WRITTEN],
)
def test_what_is_assigned_is_there_in_the_next_call(
    form: Form, make: Callable[[Form], nn.Module]
) -> None:
    host, model = make(form), make(form)
    before = [dict(module._buffers) for module in model.modules()]
    found = several_calls(model, 3)
    after = [module._buffers for module in model.modules()]
    assert [[*entries] for entries in before] == [[*entries] for entries in after]
    assert all(a[k] is b[k] for a, b in zip(before, after, strict=True) for k in a)
    for call, results in enumerate(found):
        wanted = host(X + call)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for ours, theirs in zip(results, wanted, strict=True):
            torch.testing.assert_close(ours, theirs.detach())


def another_type(m: Any, x: Tensor) -> Any:
    m.count = m.count + 0.5
    return x * m.count


def another_shape(m: Any, x: Tensor) -> Any:
    m.first = torch.cat([m.first, x.mean(0)])
    return x.sum() + m.first.sum()


def first_value(m: Any, x: Tensor) -> Any:
    h = (x + (0.0 if m.other is None else m.other)).tanh()
    m.other = h
    return h


def first_constant(m: Any, x: Tensor) -> Any:
    m.other = torch.zeros(4) if m.other is None else m.other + 1
    return x + m.other


def scale_of_the_first_batch(m: Any, x: Tensor) -> Any:
    if not hasattr(m, "scale"):
        m.register_buffer("scale", x.abs().mean())
    return x / m.scale


def emptied(m: Any, x: Tensor) -> Any:
    y = x if m.second is None else x + m.second
    m.second = None
    return y


def deleted(m: Any, x: Tensor) -> Any:
    y = x
    if hasattr(m, "second"):
        y = x + m.second
        del m.second
    return y


def another_parameter(m: Any, x: Tensor) -> Any:
    y = x * m.weight
    m.weight = nn.Parameter(m.weight * 2)
    return y


def memory_of_another(m: Any, x: Tensor) -> Any:
    m.second.add_(1)
    y = x + m.first
    m.first = m.second
    return y


LOST: dict[Form, str] = {
    another_type: "count: a tensor [] of int64 -> a tensor [] of float32",
    another_shape: "first: a tensor [4] of float32 -> a tensor [8] of float32",
    first_value: "other: nothing -> a tensor [3, 4] of float32",
    first_constant: "other: nothing -> a tensor [4] of float32",
    scale_of_the_first_batch: "scale: nothing -> a tensor [] of float32",
    emptied: "second: a tensor [4] of float32 -> nothing",
    deleted: "second: a tensor [4] of float32 -> nothing",
    another_parameter: "weight: a parameter [4] of float32 -> a parameter [4] of float32",
    memory_of_another: "first: a tensor [4] of float32 -> a tensor [4] of float32",
}


@pytest.mark.parametrize("form", list(LOST), ids=lambda form: form.__name__)
def test_what_a_program_has_no_place_for_is_refused(form: Form) -> None:
    model = Within(form)
    before = [*model.named_buffers(), *model.named_parameters()]
    with pytest.raises(ChangedAttributes, match=r"register_buffer\(name, torch") as caught:
        trace(model, X, inference=True)
    assert f"part.{LOST[form]}" in str(caught.value)
    assert caught.value.deviation == "frozen-attribute"
    after = [*model.named_buffers(), *model.named_parameters()]
    assert [n for n, _ in before] == [n for n, _ in after]
    assert all(a is b for (_, a), (_, b) in zip(before, after, strict=True))


class Centred(nn.Module):
    """Takes the average of its inputs off; torch keeps that with no history."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.mean.exp()
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return y - self.mean


class Centring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.centred = nn.Linear(4, 4), Centred()

    def forward(self, x: Tensor) -> Tensor:
        return self.centred(self.layer(x)).square().sum()


def test_an_average_of_a_part_trains_as_in_torch(tmp_path) -> None:
    """The gradient reads what the buffer held before."""
    outcome = train_both(Centring, {"x": X}, tmp_path, lr=0.01)
    assert outcome == (Outcome.EQUAL, "")


class Reaches(nn.Module):
    """Has another way to its weight and its buffer than their names."""

    scale: Tensor

    def __init__(self, reach: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.reached = reach(self)

    def forward(self, x: Tensor) -> Tensor:
        weight, scale = self.reached()
        self.scale.add_(1)
        return (x @ weight.t() * scale + self.layer(x)).square().sum()


def by_a_list(m: Any) -> Callable[[], Any]:
    held = [m.layer.weight, m.scale]
    return lambda: held


def by_a_closure(m: Any) -> Callable[[], Any]:
    weight, scale = m.layer.weight, m.scale
    return lambda: (weight, scale)


def by_a_partial(m: Any) -> Callable[[], Any]:
    return functools.partial(lambda *held: held, m.layer.weight, m.scale)


def test_a_list_of_a_converted_model_has_its_parameters() -> None:
    model = samba.from_torch_model_(Reaches(by_a_list))
    model.held = held = [model.layer.weight]
    model.reached = lambda: (model.held[0], model.scale)
    traced = trace(model, X)
    assert [s.path for s in traced.sources if s.role is Role.CONSTANT] == []
    assert model.held is held


@pytest.mark.parametrize("reach", [by_a_list, by_a_closure, by_a_partial])
def test_another_way_to_a_tensor_of_the_model_leads_to_it(reach: Callable[[Any], Any]) -> None:
    model = Reaches(reach)
    traced = trace(model, X)
    assert [s.path for s in traced.sources if s.role is Role.CONSTANT] == []
    state = {
        s.value: s.tensor.detach().clone().requires_grad_(s.requires_grad)
        for s in traced.sources
        if s.tensor is not None
    }
    env = run_reference(traced.graph(), state | dict.fromkeys(traced.inputs, X))
    weight = next(s.value for s in traced.sources if s.path == "layer.weight")
    (ours,) = torch.autograd.grad(env[traced.outputs[0].value], [state[weight]])
    (theirs,) = torch.autograd.grad(model(X), [model.layer.weight])
    torch.testing.assert_close(ours, theirs)
