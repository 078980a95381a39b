"""What torch makes a view of, and what a copy: changes in place show which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import samba
from samba.errors import ArgumentError
from samba.tracer.errors import DroppedItself
from tests.samba.session.loading import load
from tests.sweeps.both_sides import train_both
from tests.sweeps.tally import Outcome

Tensor = torch.Tensor
See = Callable[[Tensor], Tensor]
ROWS = torch.linspace(-1, 1, 12).reshape(4, 3)
COLUMNS = torch.linspace(-1, 1, 12).reshape(3, 4).t()


class Changing(torch.nn.Module):
    """Changes what a function makes of a tensor, and returns the tensor."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(2.0))
        self.see = see

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.w
        self.see(y).add_(1.0)
        return y.square().sum(), y


class Changed(Changing):
    """The same the other way round: the tensor is changed, and what was made of it returned."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.w
        seen = self.see(y)
        y.add_(1.0)
        return seen.square().sum(), seen


BY_STRIDES: dict[str, See] = {
    "reshape": lambda y: y.reshape(-1),
    "flatten": lambda y: y.flatten(),
    "ravel": lambda y: y.ravel(),
    "contiguous": lambda y: y.contiguous(),
    "as another": lambda y: y.reshape_as(torch.ones(2, 6)),
}


class All(torch.nn.Module):
    """Several models as one, for one compile."""

    def __init__(self, kind: type[Changing], sees: dict[str, See]) -> None:
        super().__init__()
        self.models = torch.nn.ModuleList([kind(see) for see in sees.values()])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        losses, seen = zip(*[model(x) for model in self.models], strict=True)
        return torch.stack(losses).sum(), *seen


@pytest.mark.parametrize("kind", [Changed, pytest.param(Changing, marks=pytest.mark.slow)])
def test_copies_of_what_lies_otherwise_are_torchs(kind, tmp_path):
    make = lambda: All(kind, BY_STRIDES)  # noqa: E731
    assert train_both(make, {"x": COLUMNS}, tmp_path, steps=1) == (Outcome.EQUAL, "")


def test_an_input_that_lies_otherwise_is_refused_where_a_copy_hangs_on_it(tmp_path):
    def loaded(see: See) -> object:
        rows = samba.from_torch_tensor(ROWS, name="x")
        return load(samba.from_torch_model_(Changing(see)), rows, tmp_path, inference=True)

    columns = samba.from_torch_tensor(COLUMNS, name="x")
    with pytest.raises(ArgumentError, match=r"strides \(1, 4\)") as caught:
        samba.session.run(columns, loaded(BY_STRIDES["flatten"]))
    assert caught.value.deviation == "traced-layout"
    assert f"{__file__}:" in str(caught.value)
    # A copy that nothing changes is one that nobody sees.
    samba.session.run(columns, loaded(lambda y: y.flatten() * 1))


UNSAID: dict[str, See] = {
    "einsum": lambda y: torch.einsum("ij->ji", y),
    "a diagonal": lambda y: torch.einsum("ii->i", y[:3]),
    "meshgrid": lambda y: torch.meshgrid(y[:, 0], indexing="ij")[0],
    "unsafe_split": lambda y: torch.unsafe_split(y, 2)[0],
    "unsafe_chunk": lambda y: torch.unsafe_chunk(y, 2)[1],
    "dropout": lambda y: F.dropout(y, 0.5, training=False),
    "torch.dropout": lambda y: torch.dropout(y, 0.5, False),
}


@pytest.mark.parametrize("kind", [Changing, pytest.param(Changed, marks=pytest.mark.slow)])
def test_views_that_do_not_say_so_are_torchs(kind, tmp_path):
    make = lambda: All(kind, UNSAID)  # noqa: E731
    assert train_both(make, {"x": ROWS}, tmp_path, steps=1) == (Outcome.EQUAL, "")


@pytest.mark.parametrize("kind", [Changing, Changed])
@pytest.mark.parametrize("see", [lambda y: F.dropout(y, 0.0), lambda y: F.dropout2d(y[None], 0.0)])
def test_a_change_behind_dropout_of_rate_0_is_refused(kind, see, tmp_path):
    with pytest.raises(DroppedItself, match=r"x = x [+] y instead of x [+]= y") as caught:
        samba.session.compile(kind(see), samba.from_torch_tensor(ROWS, name="x"))
    assert f"{__file__}:" in str(caught.value)


class Adding(torch.nn.Module):
    """Changes what dropout returns, and reads nothing else of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.layer(x), 0.0)
        y += x
        return y.square().sum()


def test_a_change_that_nobody_else_sees_is_not_refused(tmp_path):
    assert train_both(Adding, {"x": ROWS}, tmp_path, steps=1) == (Outcome.EQUAL, "")


class Made(torch.nn.Module):
    """Changes what it makes of numbers, again in each call."""

    def forward(self, x: Tensor) -> Tensor:
        made = torch.tensor([1.0, 2.0, 3.0])
        made.add_(x[0])
        return made * torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize("inference", [False, True])
def test_a_tensor_made_in_forward_is_made_anew(inference, tmp_path):
    model, x = samba.from_torch_model(Made()), samba.from_torch_tensor(ROWS, name="x")
    outputs = load(model, x, tmp_path, inference=inference)
    for _ in range(2):
        (got,) = samba.session.run(x, outputs, section_types=["FWD"])
        torch.testing.assert_close(samba.to_torch(got), Made()(ROWS))
