"""Indices and labels out of range: an IndexError where torch raises, and only there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samba
from emulator.errors import IndexOutOfRange
from tests.samba.session.loading import load
from tests.samba.worlds import deviations, named, told

Forward = Callable[..., Any]


class Model(nn.Module):
    """A function of inputs and a table."""

    def __init__(self, forward: Forward, **buffers: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 6, generator=torch.Generator().manual_seed(3)))
        self.function = forward
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, i: torch.Tensor, x: torch.Tensor) -> Any:
        return self.function(self, i, x)


LINE = Model.forward.__code__.co_firstlineno + 1
"""Where ``forward`` calls the function."""

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def loaded(folder: Path, model: nn.Module, i: torch.Tensor, **config: Any) -> nn.Module:
    """The model on the device."""
    load(samba.from_torch_model_(model), named({"i": i, "x": X}), folder, config=config)
    return model


def run(model: nn.Module, i: torch.Tensor) -> torch.Tensor:
    inputs = named({"i": i, "x": X})
    return samba.to_torch(samba.session.run(inputs, model.output_tensors)[0])


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.arange(int(torch.Size(shape).numel())).reshape(shape).remainder(4).to(dtype)


CASES: dict[str, tuple[Forward, torch.Tensor]] = {
    "embedding": (lambda m, i, x: F.embedding(i, m.table), whole(4, 3)),
    "of int32": (lambda m, i, x: F.embedding(i, m.table), whole(4, 3, dtype=torch.int32)),
    "one index": (lambda m, i, x: F.embedding(i, m.table), whole(1)),
    "scalar": (lambda m, i, x: F.embedding(i, m.table), whole(1)[0]),
    "embedding bag": (lambda m, i, x: F.embedding_bag(i, m.table), whole(4, 3)),
    "gather": (lambda m, i, x: (x * m.table[0]).gather(1, i), whole(4, 2)),
    "index_select": (lambda m, i, x: m.table.index_select(1, i), whole(5)),
    "index": (lambda m, i, x: m.table[i], whole(5)),
    "second index": (lambda m, i, x: m.table[:, i], whole(5)),
    "index_put": (lambda m, i, x: m.table.index_put((i,), x), whole(4)),
    "take": (lambda m, i, x: m.table.take(i), whole(5)),
    "take_along_dim": (lambda m, i, x: torch.take_along_dim(x + m.table[0], i, 1), whole(4, 2)),
    "take_along_dim of all": (lambda m, i, x: torch.take_along_dim(m.table, i), whole(5)),
    "put": (lambda m, i, x: m.table.put(i, x[0]), torch.arange(6)),
    "scatter": (lambda m, i, x: m.table.scatter(0, i, 1.0), whole(4, 2)),
    "scatter_add": (lambda m, i, x: m.table.scatter_add(0, i, x), whole(4, 2)),
    "scatter_reduce": (lambda m, i, x: m.table.scatter_reduce(0, i, x, "sum"), whole(4, 2)),
    "index_add": (lambda m, i, x: m.table.index_add(0, i, x), whole(4)),
    "index_copy": (lambda m, i, x: m.table.index_copy(0, i, x), torch.arange(4)),
    "index_fill": (lambda m, i, x: m.table.index_fill(0, i, 2.0), whole(4)),
    "one_hot": (lambda m, i, x: F.one_hot(i, 6) * m.table[0], whole(4)),
    "cross entropy": (lambda m, i, x: F.cross_entropy(x + m.table[0], i), whole(4)),
    "ignored 1": (lambda m, i, x: F.cross_entropy(x + m.table[0], i, ignore_index=1), whole(4)),
    "ignored 255": (
        lambda m, i, x: F.cross_entropy(x + m.table[0], i.long(), ignore_index=255),
        whole(4, dtype=torch.uint8),
    ),
    "labels of places": (
        lambda m, i, x: F.cross_entropy(x.reshape(2, 6, 2) + m.table[0, 0], i),
        whole(2, 2),
    ),
    "nll_loss": (lambda m, i, x: F.nll_loss((x + m.table[0]).log_softmax(1), i), whole(4)),
    "multi margin": (lambda m, i, x: F.multi_margin_loss(x + m.table[0], i), whole(4)),
    "moved": (
        lambda m, i, x: F.embedding(i.t().reshape(2, -1).unsqueeze(0)[:, 1].int(), m.table),
        whole(4, 3),
    ),
    "two columns": (
        lambda m, i, x: F.embedding(i[:, 0], m.table) + F.embedding(i[:, 1], m.table[:3]),
        whole(4, 2) // 2,
    ),
    "padded": (
        lambda m, i, x: F.cross_entropy(x + m.table[0], F.pad(i, (0, 1), value=-100)[1:]),
        whole(4),
    ),
    "joined": (lambda m, i, x: F.embedding(torch.cat([i.new_zeros(2), i]), m.table), whole(4)),
    "of a float": (lambda m, i, x: F.embedding(i[:, 0].long(), m.table), torch.ones(4, 2)),
}
"""Functions of indices ``i``, and indices that torch takes."""

TRIED = (5, 6, 9, 10, 11, 59, 60, -1, -3, -6, -7, -10, -11, -61, -100, 255)


class AllCases(nn.Module):
    """Every case, each with indices of its own and the same table."""

    def __init__(self) -> None:
        super().__init__()
        self.cases = nn.ModuleList([Model(forward) for forward, _ in CASES.values()])

    def forward(self, x: torch.Tensor, *indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = zip(self.cases, indices, strict=True)
        return tuple([case(i, x) for case, i in pairs])


def test_what_torch_refuses_is_refused_and_nothing_else(tmp_path: Path) -> None:
    good = {f"i{number}": i for number, (_, i) in enumerate(CASES.values())}
    whole = samba.from_torch_model_(AllCases())
    inputs = named({"x": X, **good})
    load(whole, inputs, tmp_path, inference=True)
    for (case, (forward, i)), name, output in zip(
        CASES.items(), good, whole.output_tensors, strict=True
    ):
        try:
            refuses_as_torch(case, Model(forward), i, name, output)
        except BaseException as error:
            error.add_note(f"in case {case}")
            raise


def refuses_as_torch(
    case: str, host: nn.Module, good: torch.Tensor, name: str, output: samba.SambaTensor
) -> None:
    """Indices that torch takes give its results, those that it refuses an error, for one case."""

    def found(i: torch.Tensor) -> torch.Tensor:
        return samba.to_torch(samba.session.run(named({name: i}), [output])[0])

    # Float32 sums of entries of order 1 in another order: some ulps, here and below.
    torch.testing.assert_close(found(good), host(good, X).detach(), rtol=2e-6, atol=2e-6)
    seen = set()
    for number, place in itertools.product(TRIED, (0, -1)):
        if good.dtype is torch.uint8 and number < 0:
            continue
        i = good.clone()
        i.view(-1)[place] = number
        if case in ("put", "index_copy") and number in good.tolist():
            continue  # written twice: torch does not say which one counts
        try:
            wanted = host(i, X).detach()
        except (IndexError, RuntimeError):
            with pytest.raises(IndexOutOfRange) as caught:
                found(i)
            assert caught.value.tensor == name and caught.value.index == number
            assert i[tuple(caught.value.position)] == number
            seen.add("refused")
        else:
            torch.testing.assert_close(found(i), wanted, rtol=2e-6, atol=2e-6)
            seen.add("taken")
    assert seen == ({"taken"} if case == "take_along_dim" else {"refused", "taken"})
    found(good)


def test_the_message_names_input_value_place_line_and_range(tmp_path: Path) -> None:
    def labels(m: Model, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x + m.table[0], i)

    model = loaded(tmp_path, Model(labels), whole(4))
    line = LINE
    with pytest.raises(IndexError) as caught:
        run(model, torch.tensor([0, 1, 6, 7]))
    assert str(caught.value) == (
        "input i holds 6 at [2], out of range for aten.cross_entropy_loss.default in model at "
        f"{__file__}:{line}: it must be 0 to 5, or -100, which is ignored. Nothing was run."
    )


def test_nothing_changes_where_an_index_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path, Model(lambda m, i, x: F.embedding(i, m.table)), whole(4))
    before = run(model, torch.tensor([1, 2, 3, 4]))
    with pytest.raises(IndexOutOfRange):
        run(model, torch.tensor([1, 2, 3, 10]))
    again = samba.session.run(None, model.output_tensors)[0]
    assert torch.equal(samba.to_torch(again), before)


def test_int16_labels_above_32767_are_taken_modulo_65536(tmp_path: Path) -> None:
    """SambaFlow scripts pass the labels of large vocabularies in this way."""

    def forward(m: Model, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x[:, :1].expand(4, 40_000) * m.table[0, 0], i)

    model = loaded(tmp_path, Model(forward), whole(4, dtype=torch.int16))
    high = torch.tensor([39_999, -100, 0, 5]).to(torch.int16)
    assert run(model, high).isfinite()
    with pytest.raises(IndexOutOfRange):
        run(model, torch.tensor([40_000, 0, 0, 5]).to(torch.int16))


def test_a_buffer_is_checked_when_it_goes_to_the_device(tmp_path: Path) -> None:
    def forward(m: Any, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.embedding(i, m.table) + m.table[m.order]

    model = Model(forward, order=torch.tensor([3, 2, 1, 0]))
    model = loaded(tmp_path, model, whole(4))
    model.order.data.copy_(torch.tensor([3, 2, 1, 10]))
    with pytest.raises(IndexOutOfRange, match="10 at "):
        samba.session.to_rdu(model)


def test_a_constant_is_checked_when_the_program_is_loaded(tmp_path: Path) -> None:
    def forward(m: Any, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.embedding(i, m.table) + m.table[torch.tensor([0, 1, 2, 10])]

    with pytest.raises(IndexOutOfRange, match="holds 10 at "):
        loaded(tmp_path, Model(forward), whole(4))


# -- indices that the model computes ---------------------------------------------------


def computed(m: Model, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return m.table[i * 2] + x[:, :1]


def test_computed_indices_are_told_with_their_lines(tmp_path: Path, caplog: Any) -> None:
    loaded(tmp_path, Model(computed), whole(4))
    line = LINE
    (text,) = told(caplog)
    assert deviations(caplog) == ["unchecked-index"]
    assert text.startswith(
        "indices that the model computes itself are not checked: aten.index.Tensor at "
        f"{__file__}:{line}. "
    )
    assert "--check-indices" in text


@pytest.mark.parametrize("level", ["o0", "o3"])
def test_computed_indices_are_checked_where_that_is_asked_for(
    tmp_path: Path, caplog: Any, level: str
) -> None:
    host, i = Model(computed), torch.tensor([1, 0, 4, -5])
    model = loaded(tmp_path, Model(computed), whole(4), check_indices=True, optim_level=level)
    assert told(caplog) == []
    wanted = host(i, X).detach()
    torch.testing.assert_close(run(model, i), wanted)
    line = LINE
    for bad, index in (([1, 0, 5, 4], 10), ([1, 0, -6, 7], -12)):
        with pytest.raises(IndexError, match=re.escape(f"index holds {index} at [2], ")) as caught:
            run(model, torch.tensor(bad))
        error = caught.value
        assert isinstance(error, IndexOutOfRange)
        assert (error.source, error.tensor) == (f"{__file__}:{line}", "")
        assert error.allowed == "-10 to 9"
    torch.testing.assert_close(run(model, i), wanted)


class Trained(nn.Module):
    """Scores whose labels are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layer(x), torch.where(i == 7, -100, i * 1))


def test_a_checked_training_step_leaves_weights_alone_where_it_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(2)
    host = Trained()
    model = samba.from_torch_model_(Trained())
    model.load_state_dict(host.state_dict())
    inputs = named({"i": whole(4) // 2, "x": X})
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    of_host = torch.optim.SGD(host.parameters(), lr=0.1, momentum=0.9)
    load(model, inputs, tmp_path, optimizer, config={"check_indices": True})
    for labels in ([3, 0, 1, 2], [0, 1, 2, 7], [0, -1, 1, 1], [2, 2, 1, 7], [0, 0, 0, 3]):
        i = torch.tensor(labels)
        of_host.zero_grad()
        try:
            host(i, X).backward()
        except IndexError:
            with pytest.raises(IndexOutOfRange):
                run(model, i)
        else:
            of_host.step()
            run(model, i)
        ours = samba.to_torch(model.layer.weight.sn_data)
        torch.testing.assert_close(ours, host.layer.weight.detach(), rtol=2e-6, atol=2e-7)


QUIET: dict[str, Forward] = {
    "argmax": lambda m, i, x: m.table[x.argmax(1)],
    "topk": lambda m, i, x: m.table[x.topk(2).indices],
    "sort": lambda m, i, x: m.table.gather(0, x.argsort(1)),
    "arange": lambda m, i, x: m.table[torch.arange(9, -1, -1)],
    "clamped": lambda m, i, x: m.table[(i * 3).clamp(-10, 9)],
    "remainder": lambda m, i, x: m.table[(i * 3 + 1) % 10],
    "a mask": lambda m, i, x: m.table[(x[:, 0] > 0).long() + i.bool().long()],
    "quotient": lambda m, i, x: m.table[((i * 3) % 20) // 2],
    "drawn": lambda m, i, x: m.table[torch.randint(0, 10, (4,))],
    "multinomial": lambda m, i, x: m.table[torch.multinomial(x.exp(), 2)],
    "selected": lambda m, i, x: m.table[:4][i > 1].sum(0),
    "where": lambda m, i, x: m.table[torch.where(i > 1, x.argmax(1), 0)],
    "bucket": lambda m, i, x: m.table[torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))],
    "positions": lambda m, i, x: m.table[(i > 0).long().cumsum(0)],
    "byte": lambda m, i, x: F.embedding(i.bool().to(torch.uint8).long(), m.table),
}
"""Computed indices that cannot be out of range."""


def test_indices_that_must_be_in_range_need_no_word(tmp_path: Path, caplog: Any) -> None:
    every = Model(lambda *given: [forward(*given) for forward in QUIET.values()])
    loaded(tmp_path, every, whole(4), inference=True)
    assert told(caplog) == []


LOUD: dict[str, Forward] = {
    "a sum": lambda m, i, x: m.table[i + 1],
    "of a float": lambda m, i, x: m.table[(x[:, 0] * 3).long()],
    "clamped too far": lambda m, i, x: m.table[(i * 3).clamp(0, 10)],
    "argmax of more": lambda m, i, x: m.table[torch.cat([x, x], 1).argmax(1)],
    "masked": lambda m, i, x: m.table[i.masked_fill(i > 2, 10)],
    "padded": lambda m, i, x: m.table[F.pad(i, (0, 1), value=10)],
}


@pytest.mark.parametrize("case", LOUD)
def test_indices_that_may_be_out_of_range_are_told(case: str, tmp_path: Path, caplog: Any) -> None:
    loaded(tmp_path, Model(LOUD[case]), whole(4), inference=True)
    assert deviations(caplog) == ["unchecked-index"]


# -- divisors of whole numbers, for which torch raises too -----------------------------


def by_computed(m: Model, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return m.table[:4, :1] * (12 // (i - 1)) + x[:, :1]


def by_fed(m: Model, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return m.table[:4, :1] * (torch.arange(4) % i) + x[:, :1]


def by_positive(m: Model, i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return m.table[:4, :1] * (12 // i.clamp(min=1, max=9)) + x[:, :1]


def test_computed_divisors_are_told(tmp_path: Path, caplog: Any) -> None:
    loaded(tmp_path, Model(by_computed), whole(4) + 2)
    (text,) = told(caplog)
    assert deviations(caplog) == ["unchecked-index"]
    assert text.startswith(
        "divisors of whole numbers that the model computes itself are not checked: aten."
    )
    assert f"{__file__}:{LINE}. Where torch would raise because one is zero" in text


def test_computed_divisors_are_checked_where_that_is_asked_for(tmp_path: Path, caplog: Any) -> None:
    i = torch.tensor([2, 3, -4, 5])
    model = loaded(tmp_path, Model(by_computed), i, check_indices=True)
    assert told(caplog) == []
    torch.testing.assert_close(run(model, i), Model(by_computed)(i, X).detach())
    i[2] = 1
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Model(by_computed)(i, X)
    with pytest.raises(IndexOutOfRange, match=r"holds 0 at \[2\], .* it must be any number but 0"):
        run(model, i)


def test_fed_divisors_are_checked_in_every_run(tmp_path: Path, caplog: Any) -> None:
    i = torch.tensor([2, 3, -4, 5])
    model = loaded(tmp_path, Model(by_fed), i)
    assert told(caplog) == []
    torch.testing.assert_close(run(model, i), Model(by_fed)(i, X).detach())
    i[1] = 0
    with pytest.raises(IndexOutOfRange, match=r"input i holds 0 at \[1\]"):
        run(model, i)


def test_divisors_that_cannot_be_zero_need_no_word(tmp_path: Path, caplog: Any) -> None:
    i = torch.tensor([0, 3, -4, 5])
    model = loaded(tmp_path, Model(by_positive), i)
    assert told(caplog) == []
    torch.testing.assert_close(run(model, i), Model(by_positive)(i, X).detach())
