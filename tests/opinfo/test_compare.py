"""The comparison bites: twice the tolerance is too far, in results and in gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from samba.comparison.sides import Tol, tolerance
from tests.opinfo.call import Call, Eager, run_eager
from tests.opinfo.catalog import DTYPES, Entry
from tests.opinfo.check import judge
from tests.opinfo.compare import difference
from tests.opinfo.compiled import Got
from tests.opinfo.exceptions import TIES
from tests.opinfo.samples import Sample, take_apart

FLOATS = [dtype for dtype in DTYPES.values() if dtype.is_floating_point]


class FakeInput:
    """What torch calls a SampleInput."""

    def __init__(self, *args: Any) -> None:
        self.input, *self.args = args
        self.kwargs: dict[str, Any] = {}
        self.output_process_fn_grad = None


def sample(dtype: torch.dtype) -> Sample:
    values = torch.tensor([0.0, 1.0, -3.0, 100.0]).to(dtype)
    other = torch.tensor([1.0, 1.0, 2.0, 3.0]).to(dtype)
    if dtype.is_floating_point:
        values, other = values.requires_grad_(), other.requires_grad_()
    return take_apart(FakeInput(values, other))


def moved(x: torch.Tensor, place: int, by: float) -> torch.Tensor:
    """One element further off by some tolerances; by 1 where none is allowed."""
    x = x.clone()
    tol = tolerance(x.dtype)
    if x.dtype == torch.bool:
        x[place] = ~x[place]
    elif x.is_floating_point():
        x[place] += by * (tol.atol + tol.rtol * abs(x[place].item()))
    else:
        x[place] += 1
    return x


def judged(
    dtype: torch.dtype,
    change: Callable[[Eager], Got],
) -> tuple[str, str]:
    entry = Entry(name="mul", info=None, dtypes=())
    found = sample(dtype)
    module = Call(torch.mul, found)
    eager = run_eager(module, found.tensors, seed=0)
    return judge(entry, module, found.tensors, eager, change(eager), 0)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("place", range(4))
def test_twice_the_tolerance_fails_in_results(dtype: torch.dtype, place: int) -> None:
    def off(eager: Eager) -> Got:
        return Got(outputs=(moved(eager.outputs[0], place, 2.0),), gradients=eager.gradients)

    text, gradient_text = judged(dtype, off)
    assert text.startswith("output 0: 1 of 4 wrong")
    assert not gradient_text
    assert judged(dtype, lambda eager: Got(outputs=eager.outputs, gradients=eager.gradients)) == (
        "",
        "",
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("which", [0, 1])
def test_twice_the_tolerance_fails_in_gradients(dtype: torch.dtype, which: int) -> None:
    def off(eager: Eager) -> Got:
        gradients = list(eager.gradients)
        wrong = gradients[which]
        assert wrong is not None
        gradients[which] = moved(wrong, 2, 2.0)
        return Got(outputs=eager.outputs, gradients=tuple(gradients))

    text, gradient_text = judged(dtype, off)
    assert not text
    assert gradient_text.startswith(f"gradient {which}: 1 of 4 wrong")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_half_the_tolerance_passes(dtype: torch.dtype) -> None:
    want = torch.tensor([1.0, -3.0, 100.0]).to(dtype)
    assert not difference(moved(want, 1, 0.5), want, None)


def test_absent_gradients_are_zero() -> None:
    text = judged(
        torch.float32,
        lambda eager: Got(outputs=eager.outputs, gradients=(None, eager.gradients[1])),
    )[1]
    assert text.startswith("gradient 0")


def test_forms_and_special_values() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert not difference(x.clone(), x, None)
    assert difference(x.double(), x, None) == "dtype torch.float64 instead of torch.float32"
    assert difference(x[:2], x, None) == "shape (2,) instead of (3,)"
    for wrong in ([2.0, float("nan"), float("inf")], [1.0, 0.0, float("inf")]):
        assert "1 of 3 wrong" in difference(torch.tensor(wrong), x, None)
    assert "1 of 3 wrong" in difference(torch.tensor([1.0, float("nan"), 3e38]), x, None)
    assert difference(torch.tensor([2**53 + 1]), torch.tensor([2**53]), None)


def test_torchs_own_rounding_counts_only_so_far() -> None:
    exact = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    want = torch.tensor([1.0, 1000.01])  # eager torch is off by 0.01
    assert not difference(torch.tensor([1.0, 999.99]), want, None, exact)
    assert difference(torch.tensor([1.0, 999.9]), want, None, exact)
    assert difference(torch.tensor([1.02, 1000.01]), want, None, exact)
    assert difference(torch.tensor([1.0, 999.99]), want, Tol(rtol=0, atol=0))


@pytest.mark.parametrize("name", list(TIES))
def test_the_order_of_equals_is_one_that_torch_may_give(name: str) -> None:
    args = (3,) if name in ("kthvalue", "topk") else ()
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    operator, reference = getattr(torch, name), TIES[name]
    torch.testing.assert_close(reference(x, *args), tuple_of(operator(x, *args)))
    tied = x.round()
    got, want = reference(tied, *args), operator(tied, *args)
    if name == "argsort":
        got, want = tied.gather(-1, got), tied.gather(-1, want)
    else:
        got, want = got[0], want[0]
    assert torch.equal(got, want)


def tuple_of(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else tuple(result)
