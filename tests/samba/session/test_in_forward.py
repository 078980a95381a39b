"""Names of SambaTensor inside ``forward``: as its page has them, with torch's numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samba
from samba.errors import UnsupportedKeyword
from samba.tensor.lazy_mode import traced_forward
from samba.tracer.errors import TraceError, UnsupportedOps
from tests.api.covers import covers
from tests.samba.refusals import line_of
from tests.samba.session.loading import load
from tests.samba.worlds import close
from tests.tracing import trace

AT = torch.tensor([0, 2])
FLOATS = samba.SambaTensor(torch.tensor([0.0, 2.0]))
TABLE = samba.SambaTensor(torch.arange(12.0).reshape(3, 4), name="table")


def written(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """What ``tensor[index] = value`` leaves."""
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


Way = Callable[[Any, Any], Any]


def same(way: Way) -> tuple[Way, Way]:
    """A way that SambaTensor and torch write alike."""
    return way, way


WAYS: dict[str, tuple[Way, Way]] = {
    "torch()": (lambda h, x: h.torch() * x.torch_tensor(), lambda h, x: h * x),
    "to_torch": (lambda h, x: samba.to_torch(h).sin(), lambda h, x: h.sin()),
    "data": (lambda h, x: h + h.data * x.data, lambda h, x: h + h.detach() * x),
    "view_as": (lambda h, x: h.view_as(other=x.t()), lambda h, x: h.view(4, 3)),
    "to(tensor)": (lambda h, x: h.to(x.bfloat16()), lambda h, x: h.to(torch.bfloat16)),
    "to(other=)": (lambda h, x: h.to(other=x.long()), lambda h, x: h.long()),
    "to(dtype=)": (lambda h, x: x.to(dtype=torch.bfloat16), lambda h, x: x.bfloat16()),
    "type_as": (lambda h, x: x.type_as(tensor=h.int()), lambda h, x: x.int()),
    "type": (lambda h, x: h.type(dtype=torch.int16), lambda h, x: h.short()),
    "type()": (lambda h, x: h * len(h.type()), lambda h, x: h * len("torch.FloatTensor")),
    "casts": same(lambda h, x: (h > 0).bool().int().long().short().bfloat16().float()),
    "cpu": (lambda h, x: h.cpu(inplace=False) * 2, lambda h, x: h * 2),
    "T": (lambda h, x: h.T @ x, lambda h, x: h.t() @ x),
    "permute, reshape": same(lambda h, x: h.permute(1, 0).reshape(-1, 2)),
    "new_zeros(all)": (
        lambda h, x: h * h.new_zeros((3, 4), torch.int64, False),
        lambda h, x: h * 0,
    ),
    "new_zeros(keywords)": (
        lambda h, x: x + x.new_zeros(size=[3, 4], dtype=torch.float32, requires_grad=False),
        lambda h, x: x + 0,
    ),
    "new_ones": (
        lambda h, x: h + x.new_ones((3, 4), dtype=None, requires_grad=True),
        lambda h, x: h + 1,
    ),
    "new_ones(iterable)": (lambda h, x: h + x.new_ones(iter((3, 4))), lambda h, x: h + 1),
    "new_full(all)": (
        lambda h, x: h + x.new_full((3, 4), 5.0, torch.bfloat16, torch.device("cuda"), False),
        lambda h, x: h + torch.full((3, 4), 5.0, dtype=torch.bfloat16),
    ),
    "new_full(keywords)": (
        lambda h, x: h + x.new_full(size=(3, 4), fill_value=5, device=None, requires_grad=None),
        lambda h, x: h + 5,
    ),
    "new_full(device)": (
        lambda h, x: x + x.new_full((3, 4), 5.0, dtype=torch.float32, device="cpu"),
        lambda h, x: x + 5,
    ),
    "new_empty of a shape": (lambda h, x: x + x.new_empty((3, 4)) * 0, lambda h, x: x + 0),
    "new_empty": (
        lambda h, x: h * x.new_empty((3, 4), torch.float32, False).fill_(2.0),
        lambda h, x: h * 2,
    ),
    "sn_name": (lambda h, x: x * len(x.sn_name), lambda h, x: x * len("image")),
    "index by a list": same(lambda h, x: x[None, :, [0, 2]]),
    "index by floats": (lambda h, x: h[None, :, FLOATS], lambda h, x: h[None, :, AT]),
    "assignment": (
        lambda h, x: written(h, (slice(None), 2), samba.ones(3)),
        lambda h, x: written(h, (slice(None), 2), torch.ones(3)),
    ),
    "two assignments": same(lambda h, x: written(written(x, (slice(None), 1), h[:, 0]), 0, 2.5)),
    "assignment by floats": (
        lambda h, x: written(h, (None, slice(None), FLOATS), 2 * samba.ones(1, 3, 2)),
        lambda h, x: written(h, (None, slice(None), AT), 2 * torch.ones(1, 3, 2)),
    ),
    "created": (
        lambda h, x: h * samba.full((4,), 3.0) + samba.zeros(3, 1) + samba.eye(3, 4),
        lambda h, x: h * torch.full((4,), 3.0) + torch.zeros(3, 1) + torch.eye(3, 4),
    ),
    "created like": (
        lambda h, x: h + samba.ones_like(x, dtype=torch.float64) + samba.arange(4),
        lambda h, x: h + torch.ones_like(x, dtype=torch.float64) + torch.arange(4),
    ),
    "samba.tensor": (
        lambda h, x: h * samba.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda h, x: h * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    ),
    "from_torch_tensor": (
        lambda h, x: samba.from_torch_tensor(h) * samba.from_torch_tensor(torch.ones(3, 4)),
        lambda h, x: h * torch.ones(3, 4),
    ),
    "SambaTensor()": (lambda h, x: samba.SambaTensor(h.sin()), lambda h, x: h.sin()),
    "a SambaTensor from outside": (
        lambda h, x: h * TABLE + samba.from_torch_tensor(TABLE).sum(),
        lambda h, x: h * TABLE.torch() + 66.0,
    ),
    "questions": (
        lambda h, x: h * (h.dim() + h.ndimension() + h.ndim + h.numel() + h.nelement()),
        lambda h, x: h * (2 + 2 + 2 + 12 + 12),
    ),
    "sizes": (
        lambda h, x: h * h.size(None)[0] * h.size(dim=1) * h.stride(None)[0] * h.stride(dim=1),
        lambda h, x: h * 3 * 4 * 4 * 1,
    ),
    "kinds": (
        lambda h, x: h * h.element_size() * h.is_floating_point() * (h.device.type == "cpu"),
        lambda h, x: h * 4,
    ),
    "materialize_": (
        lambda h, x: (x.materialize_(), x.has_data * x.reusable() * h)[1],
        lambda h, x: h,
    ),
}


class Ways(nn.Module):
    """All ways, in one way of writing them; what is held is a SambaTensor or a tensor."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear, self.number = nn.Linear(4, 4), number
        self.held = TABLE if number == 0 else TABLE.torch()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.linear(x)
        results = [way[self.number](h, x) for way in WAYS.values()]
        results.append(h * self.held)
        return torch.stack([(r.float() / 8).tanh().mean() for r in results]).sum(), *results


@covers(
    "samba.SambaTensor.torch",
    ".data",
    ".sn_name",
    ".view_as",
    ".to",
    ".new_zeros",
    ".new_ones",
    ".new_full",
    ".new_empty",
    ".__setitem__",
    ".__getitem__",
    "samba.from_torch_tensor",
)
def test_every_way_gives_torchs_numbers_and_gradients(tmp_path: Path) -> None:
    model, host = Ways(0), Ways(1)
    host.load_state_dict(model.state_dict())
    x = torch.randn(3, 4)
    samba.from_torch_model_(model)
    given = samba.from_torch_tensor(x, name="image")
    outputs = load(model, given, tmp_path, loss_indices=[0])
    found = samba.session.run(given, outputs)
    wanted = host(x)
    for name, one, other in zip(("loss", *WAYS, "held"), found, wanted, strict=True):
        assert one.dtype == other.dtype, name
        close(one.torch().float(), other.detach().float(), name)
    wanted[0].backward()
    close(model.linear.weight.sn_grad, host.linear.weight.grad)


def traced(forward: Callable[[Any, Tensor], Any], x: Tensor, model: Any = None) -> Any:
    """Trace a function of the model and its input."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return forward(self, x)

    return trace(samba.from_torch_model_(Model()), (x,))


def test_tensors_have_their_names() -> None:
    seen: dict[str, Any] = {}

    def forward(model: Any, image: Any) -> Any:
        hidden = model.linear(image)
        seen.update(
            input=(image.sn_name, image.sn_region_name, image.sn_grad_name, image.batch_dim),
            labels=(image.named_dims, image.sized_dims, image.fast_access),
            cast=image.bfloat16().sn_name,
            weight=(model.linear.weight.sn_name, model.linear.weight.materializer_provided),
            result=(hidden.sn_name, hidden.sn_grad_name, hidden.named_dims),
            outside=(TABLE.sn_name, samba.SambaTensor.is_fast_access("nothing")),
        )
        return hidden

    dims = ("B", None)
    image = samba.randn(3, 4, name="image", region_name="shared", batch_dim=0, named_dims=dims)
    traced(forward, image)
    assert seen == {
        "input": ("image", "shared", "image__grad", 0),
        "labels": (dims, (None, None), False),
        "cast": "image",
        "weight": ("model__linear__weight", False),
        "result": ("", "", (None, None)),
        "outside": ("table", False),
    }
    assert traced_forward() is None
    assert not hasattr(torch.ones(2), "sn_name")
    assert not hasattr(torch._subclasses.FakeTensor, "sn_name")


def test_a_name_given_in_forward_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def forward(model: Any, x: Any) -> Any:
        hidden = samba.from_torch_tensor(model.linear(x), name="hidden")  # named
        assert hidden.sn_name == "hidden"
        return hidden

    with caplog.at_level(logging.WARNING, "samba"):
        traced(forward, torch.randn(3, 4))
    (told,) = caplog.messages
    assert told.startswith(line_of(__file__, "named"))
    assert "names a tensor 'hidden'" in told and told.endswith("[deviation: name-in-forward]")


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "sn_data": (lambda m, x: m.linear.weight.sn_data, "memory-in-forward", "sn_data"),
    "sn_grad": (lambda m, x: m.linear.weight.sn_grad, "memory-in-forward", "sn_grad"),
    "rdu": (lambda m, x: m.linear(x).rdu(), "memory-in-forward", "rdu()"),
    "cpu_": (lambda m, x: m.linear(x).cpu_(), "memory-in-forward", "cpu_()"),
    "clear_data": (lambda m, x: x.clear_data(), "memory-in-forward", "clear_data()"),
    "data_ptr": (lambda m, x: x * x.data_ptr(), "memory-in-forward", "data_ptr()"),
    "data =": (lambda m, x: setattr(x, "data", x * 2) or x, "memory-in-forward", ".data ="),
    "weight.data =": (
        lambda m, x: setattr(m.linear.weight, "data", torch.ones(4, 4)) or m.linear(x),
        "memory-in-forward",
        ".data =",
    ),
    "grad": (
        lambda m, x: x if m.linear.weight.grad is None else x * 2,
        "grad-in-forward",
        "model__linear__weight",
    ),
    "grad_fn": (
        lambda m, x: m.linear(x).grad_fn.register_hook(lambda *_: None),
        "hook-of-grad-fn",
        "grad_fn.register_hook()",
    ),
    "backward": (lambda m, x: m.linear(x).sum().backward(), "untraced-function", "backward()"),
    "requires_grad_": (
        lambda m, x: m.linear.weight.requires_grad_(False) @ x.T,
        "frozen-in-forward",
        "requires_grad of model__linear__weight",
    ),
    "requires_grad =": (
        lambda m, x: setattr(m.linear.weight, "requires_grad", False) or m.linear(x),
        "frozen-in-forward",
        "requires_grad of model__linear__weight",
    ),
    "an empty SambaTensor": (
        lambda m, x: x + samba.SambaTensor(shape=(3, 4), dtype=torch.float32),
        "empty-in-forward",
        "no values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_reaches_past_the_graph_is_refused_with_its_line(name: str) -> None:
    forward, deviation, found = REFUSED[name]
    with pytest.raises(TraceError) as caught:
        traced(forward, torch.randn(3, 4))
    assert caught.value.deviation == deviation
    assert found in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")
    assert len(str(caught.value).splitlines()) == 2


def test_what_means_nothing_in_a_graph_is_left_alone() -> None:
    """The flag of a result, and the gradient of one, are those of torch."""

    def forward(model: Any, x: Any) -> Any:
        hidden = model.linear(x).requires_grad_(True)
        assert x.grad is None and not x.requires_grad and hidden.requires_grad
        return hidden * 2

    assert [n.op for n in traced(forward, torch.randn(3, 4)).nodes] == [
        "aten.linear.default",
        "aten.mul.Tensor",
    ]


def test_type_takes_no_more_than_a_dtype() -> None:
    with pytest.raises(UnsupportedKeyword, match="non_blocking"):
        traced(lambda m, x: m.linear(x).type(torch.int8, non_blocking=True), torch.randn(3, 4))


class Draws(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x + samba.rand(50), samba.randn_like(x), samba.randn(50)


def test_samba_randn_in_forward_draws_anew_in_every_run(tmp_path: Path) -> None:
    model, x = samba.from_torch_model_(Draws()), samba.zeros(50, name="x")
    outputs = load(model, x, tmp_path, inference=True)
    first = [o.torch() for o in samba.session.run(x, outputs)]
    second = [o.torch() for o in samba.session.run(x, outputs)]
    for one, other in zip(first, second, strict=True):
        assert not torch.equal(one, other)
    assert first[0].min() >= 0
    assert first[0].max() < 1
    samba.session.reset_random_generator()
    for one, other in zip(first, samba.session.run(x, outputs), strict=True):
        assert torch.equal(one, other.torch())


SPARSE = torch.eye(3).to_sparse()


class Graph(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.held = how, SPARSE
        self.register_buffer("adjacency", SPARSE.clone())

    def forward(self, x: Tensor) -> Tensor:
        match self.how:
            case "held":
                return torch.sparse.mm(self.held, x)  # held
            case "outside":
                return samba.from_torch_tensor(SPARSE) @ x  # outside
            case "made":
                return torch.eye(3).to_sparse() @ x  # made
            case _:
                return torch.sparse.mm(self.adjacency, x)  # buffer


@pytest.mark.parametrize("how", ["held", "outside", "made", "buffer"])
def test_a_sparse_constant_is_refused_with_its_line(how: str) -> None:
    with pytest.raises(UnsupportedOps, match="sparse_coo tensors are not supported") as caught:
        trace(Graph(how), (torch.randn(3, 4),))
    assert line_of(__file__, how) in str(caught.value)


class Ranked(nn.Module):
    """A teacher in inference mode, and scores that are written to where gradients do not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(x)
        with torch.inference_mode():
            target = self.linear(x * 2)
        return (h * 3 + target.sin()).sum(), target


def test_inference_mode_in_forward_has_no_gradient(tmp_path: Path) -> None:
    model, host = Ranked(), Ranked()
    host.load_state_dict(model.state_dict())
    x = samba.from_torch_model_(model) and samba.randn(3, 4, name="x")
    found = samba.session.run(x, load(model, x, tmp_path, loss_indices=[0]))
    wanted = host(x.torch())
    close(found[1].torch(), wanted[1].clone())
    wanted[0].backward()
    close(model.linear.weight.sn_grad, host.linear.weight.grad)


def test_a_write_behind_the_gradient_is_traced_where_there_is_none() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = x * 2
            h.detach()[0] = 0
            return h.sin()

    nodes = trace(Masked(), (torch.randn(3, 4),), inference=True).nodes
    assert nodes[-1].op == "aten.sin.default"
