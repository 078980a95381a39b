"""What is printed when ``forward`` cannot be traced: one short traceback, torch left out."""

from __future__ import annotations

import functools
import logging
import traceback
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samba.tracer.capture import trace_model
from samba.tracer.errors import (
    DataDependentBranch,
    DtypeMismatch,
    ShapeMismatch,
    TraceError,
    UntracedFunction,
)
from samba.tracer.inputs import InputError, collect_inputs
from samba.tracer.traced import FROM_DTYPE
from tests.samba.refusals import line_of
from tests.samba.worlds import deviations, told

here = functools.partial(line_of, __file__)
MOST_LINES = 20


class Net(nn.Module):
    """One layer and a step that a test gives it."""

    def __init__(self, step: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)
        self.wrong = nn.Linear(17, 4)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, x).sum()


def trace(step: Callable[[Net, Tensor], Tensor], x: Tensor | None = None) -> None:
    model = Net(step)
    trace_model(model, collect_inputs(model, (torch.zeros(4, 8) if x is None else x,)))


def misfit(net: Net, x: Tensor) -> Tensor:
    return net.wrong(net.layer(x))  # shapes


def viewed(net: Net, x: Tensor) -> Tensor:
    return net.layer(x).view(4, 17)  # view


def branched(net: Net, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x  # branch


def gradient(net: Net, x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: net.layer(t).square().sum())(x)  # gradient


def jacobian(net: Net, x: Tensor) -> Tensor:
    return torch.func.jacrev(lambda t: t.square().sum())(x)  # jacobian


def per_sample(net: Net, x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda t: t.square().sum()))(x)  # per sample


def conditional(net: Net, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (net.layer(x),))  # cond


def backward(net: Net, x: Tensor) -> Tensor:
    y = net.layer(x).sum()
    y.backward()  # backward
    return y


def penalty(net: Net, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net.layer(x).square().sum(), x, create_graph=True)  # penalty
    return slope


def through_numpy(net: Net, x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(net.layer(x).detach().numpy()))  # numpy


def misspelt(net: Net, x: Tensor) -> Tensor:
    return net.lair(x)  # misspelt


def refusing(net: Net, x: Tensor) -> Tensor:
    raise ValueError("not today")  # refusing


def moved(net: Net, x: Tensor) -> Tensor:
    return net.layer(x.to("cuda"))  # moved


def counted(net: Net, x: Tensor) -> Tensor:
    return net.layer(x.long())  # no product


FAILURES = {
    "shapes": (
        misfit,
        ShapeMismatch,
        ["mat1 and mat2 shapes cannot be multiplied (4x16 and 17x4)"],
    ),
    "view": (viewed, ShapeMismatch, ["shape '[4, 17]' is invalid for input of size 64"]),
    "branch": (
        branched,
        DataDependentBranch,
        ["the value of a tensor: return x if", "torch.where"],
    ),
    "gradient": (gradient, UntracedFunction, ["torch.func.grad, which cannot", "vmap is traced"]),
    "jacobian": (jacobian, UntracedFunction, ["torch.func.jacrev, which cannot"]),
    "per sample": (per_sample, UntracedFunction, ["torch.func.vmap, which cannot"]),
    "cond": (conditional, UntracedFunction, ["torch.cond, which cannot", "torch.where"]),
    "backward": (backward, UntracedFunction, ["Tensor.backward(), which", "return the loss"]),
    "numpy": (through_numpy, TraceError, [".numpy()", "use torch's operations"]),
    "misspelt": (misspelt, TraceError, ["no attribute 'lair'", "calling the model on the host"]),
    "refusing": (refusing, TraceError, ["ValueError: not today", "on the host raises it too"]),
    "moved": (moved, TraceError, ["cuda", "Leave devices out of forward()"]),
    "no product": (counted, TraceError, ["linear of torch.float32 and torch.int64"]),
}


@pytest.mark.parametrize("marker", FAILURES)
def test_a_failure_is_one_short_traceback_that_ends_with_the_users_line(marker, capfd):
    step, kind, parts = FAILURES[marker]
    with pytest.raises(kind) as caught:
        trace(step)
    error = caught.value
    printed = "".join(traceback.format_exception(error))
    assert printed.count("Traceback (most recent call last)") == 1
    assert "site-packages/torch" not in printed and "Developer debug" not in printed
    assert len(printed.splitlines()) <= MOST_LINES, printed
    assert str(error).startswith(here(marker))
    assert all(part in str(error) for part in parts), str(error)
    assert f", line {here(marker).rpartition(':')[2]}, in {step.__name__}" in printed
    assert capfd.readouterr() == ("", "")


def test_what_torch_raised_is_at_hand_and_logged_at_level_debug(caplog):
    caplog.set_level(logging.DEBUG, logger="samba")
    with pytest.raises(ShapeMismatch) as caught:
        trace(misfit)
    assert "same reduction dim" in str(caught.value.__context__)
    assert caught.value.__cause__ is None
    assert any("reduction dim" in str(r.exc_info) for r in caplog.records if r.name == "samba")


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (lambda net, x: torch.mm(x.int(), net.layer.weight.t()), "call .float() on the input"),
        (lambda net, x: torch.lerp(x, x.double(), 0.5), "call .float() on the input"),
        (lambda net, x: F.embedding(x, net.layer.weight), "call .long()"),
        (lambda net, x: F.cross_entropy(x, torch.zeros(4)), "call .long()"),
    ],
)
def test_dtypes_that_do_not_fit_are_named_with_the_conversion(step, advice):
    with pytest.raises((RuntimeError, IndexError)):
        step(Net(step), torch.zeros(4, 8))
    with pytest.raises(DtypeMismatch) as caught:
        trace(step)
    assert advice in str(caught.value)


def test_float64_beside_float32_is_told_with_the_line_and_the_conversion(caplog):
    """Torch refuses it; SambaFlow promotes, so it is traced."""

    def wide(net: Net, x: Tensor) -> Tensor:
        return net.layer(x) + net.layer(2 * x)  # wide

    x = torch.zeros(4, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="same dtype"):
        wide(Net(wide), x)
    trace(wide, x)
    (text,) = told(caplog)
    # The line of the module that calls the function is the user's last.
    assert text.startswith(here("wide")) and "linear takes float64" in text
    assert ".float()" in text and deviations(caplog) == ["promoted-float64"]
    caplog.clear()
    trace(wide, x.float())
    assert not told(caplog)


def test_other_mixtures_that_torch_refuses_are_told_once_with_their_line(caplog):
    """Torch refuses them; SambaFlow promotes, so they are traced."""

    def narrow(net: Net, x: Tensor) -> Tensor:
        return net.layer(x.bfloat16()) + net.layer(2 * x.bfloat16())  # narrow

    with pytest.raises(RuntimeError, match="same dtype"):
        narrow(Net(narrow), torch.zeros(4, 8))
    trace(narrow)
    (text,) = told(caplog)
    assert text.startswith(here("narrow"))
    assert "linear takes torch.bfloat16 and torch.float32 together" in text
    assert deviations(caplog) == ["promoted-types"]


@pytest.mark.parametrize("module", [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8)])
def test_norms_take_halves_beside_parameters_of_float32_as_in_torch(caplog, module):
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    traced = trace_model(module, collect_inputs(module, (x,)), inference=True)
    (output,) = traced.outputs
    assert module(x).dtype == torch.bfloat16
    assert FROM_DTYPE[traced.values[output.value].dtype] == torch.bfloat16
    assert not told(caplog)


@pytest.mark.parametrize(
    "dtype",
    [torch.int32, *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.int16, torch.int8))],
)
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_narrow_labels_are_told(caplog, loss, dtype):
    x, y = torch.randn(4, 8), torch.tensor([0, 7, 3, 3])
    with pytest.raises(RuntimeError, match="Long"):
        loss(x, y.to(dtype))
    trace(lambda net, x: loss(x, y.to(dtype)), x)
    (text,) = told(caplog)
    assert f"labels or indices of {dtype}" in text
    assert deviations(caplog) == ["narrow-labels"]


REFUSED_TYPES = {
    "softmax": (lambda i: F.softmax(i, 0), torch.int64),
    "gelu": (lambda i: F.gelu(i), torch.int32),
    "var": (lambda i: i.var(), torch.int64),
    "relu": (lambda i: F.relu(i), torch.bool),
    "max_pool1d": (lambda i: F.max_pool1d(i[None], 2), torch.int16),
    "interpolate": (lambda i: F.interpolate(i[None, None], 6), torch.int64),
    "binary_cross_entropy": (lambda i: F.binary_cross_entropy(torch.rand(3), i), torch.float64),
    "index_copy": (lambda i: torch.zeros(5).index_copy(0, i, torch.ones(3)), torch.int32),
    "index_select": (lambda i: torch.zeros(5).index_select(0, i), torch.int16),
    "one_hot": (lambda i: F.one_hot(i, 4), torch.int32),
    "cross_entropy": (lambda i: F.cross_entropy(torch.zeros(3, 4), i), torch.bool),
    "multi_margin_loss": (lambda i: F.multi_margin_loss(torch.zeros(3, 4), i), torch.int32),
    "mul_": (lambda i: (i + 0).mul_(0.5), torch.int64),
    "bitwise_and": (lambda i: i & i, torch.float32),
    "matmul": (lambda i: i[None] @ torch.zeros(3, 2), torch.int64),
    "linear": (lambda i: F.linear(i[None], torch.zeros(2, 3)), torch.int64),
    "lstm_cell": (
        lambda i: torch.lstm_cell(
            i[None], (torch.zeros(1, 2), torch.zeros(1, 2)), torch.zeros(8, 3), torch.zeros(8, 2)
        )[0],
        torch.int32,
    ),
    "batch_norm": (
        lambda i: F.batch_norm(i[:, None], torch.zeros(1), torch.ones(1)),
        torch.int32,
    ),
    "grid_sample": (
        lambda i: F.grid_sample(
            torch.zeros(1, 1, 2, 2), i.view(1, 1, 3, 1).expand(1, 1, 3, 2), align_corners=False
        ),
        torch.float64,
    ),
}


@pytest.mark.parametrize("case", REFUSED_TYPES)
def test_types_that_torch_refuses_are_refused_with_the_line(case):
    """Torch's exporter takes them: it runs no kernels."""
    function, dtype = REFUSED_TYPES[case]
    given = torch.tensor([0, 1, 2]).to(dtype)
    with pytest.raises((RuntimeError, NotImplementedError)):
        function(given)
    with pytest.raises(TraceError) as caught:
        trace(lambda net, x: function(x), given)
    assert __file__ in str(caught.value)
    assert str(dtype) in str(caught.value)


def test_a_gradient_with_respect_to_an_input_is_refused_where_it_is_asked_for():
    """The exporter fails later, when it looks through what it has recorded."""
    with pytest.raises(UntracedFunction, match=r"calls torch\.autograd\.grad, which") as caught:
        trace(penalty)
    assert caught.value.function == "torch.autograd.grad"
    assert "not of those that save tensors" in str(caught.value)
    assert str(caught.value).startswith(here("penalty"))
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) <= MOST_LINES


def test_gradients_with_respect_to_parameters_and_results_are_traced():
    def norm(net: Net, x: Tensor) -> Tensor:
        made = net.layer(x)
        ends = (net.layer.weight, made)
        slopes = torch.autograd.grad(made.square().sum(), ends, create_graph=True)
        return slopes[0].sum() + slopes[1].sum()

    trace(norm)


def test_warnings_of_torch_point_at_the_users_line():
    def broadcast(net: Net, x: Tensor) -> Tensor:
        return F.mse_loss(net.layer(x), torch.zeros(4, 1))  # broadcast

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace(broadcast)
    shown = [w for w in caught if "target size" in str(w.message)]
    assert [f"{w.filename}:{w.lineno}" for w in shown] == [here("broadcast")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TraceError, match="target size"):
            trace(broadcast)


class ByName(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return x * scale


def test_arguments_that_forward_takes_by_name_only_are_asked_for_by_name():
    model, given = ByName(), (torch.ones(2), torch.ones(2))
    with pytest.raises(TypeError):
        model(*given)
    with pytest.raises(InputError, match="takes scale by name only and 1 by position"):
        collect_inputs(model, given)
    trace_model(model, collect_inputs(model, dict(zip(("x", "scale"), given, strict=True))))


def test_a_quantized_module_is_named_and_runs_on_the_host():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it deprecated
        model = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(3, 2)), {nn.Linear}, dtype=torch.qint8
        )
    assert model(torch.ones(1, 3)).shape == (1, 2)
    with pytest.raises(TraceError, match="Linear is a quantized module of torch") as caught:
        trace_model(model, collect_inputs(model, (torch.ones(1, 3),)), inference=True)
    assert "on the host raises it too" not in str(caught.value)


class Mapped(nn.Module):
    def __init__(self, **dims: int) -> None:
        super().__init__()
        self.layer, self.dims = nn.Linear(3, 2), dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.layer(row), **self.dims)(x)


def test_vmap_over_another_dimension():
    x = torch.randn(3, 4)
    model = Mapped(in_dims=1)
    trace_model(model, collect_inputs(model, (x,)), inference=True)
    model = Mapped(in_dims=1, out_dims=1)
    assert model(x).shape == (2, 4)
    with pytest.raises(TraceError, match=r"torch\.vmap with out_dims"):
        trace_model(model, collect_inputs(model, (x,)), inference=True)
