"""Operations that a log calls on the meta device give tensors of the form that torch gives them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from samba.remembering.call_log import CallLog

_X = torch.arange(16).reshape(4, 4)

CALLS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * 2,
    lambda x: x * 2.0,
    lambda x: x * True,
    lambda x: x.t() * 2,
    lambda x: x[1:] * 2,
    lambda x: x.double() * 2,
    lambda x: torch.stack([x, x]),
    lambda x: torch.stack([x, x], 1),
    lambda x: torch.stack([x, x, x]),
    lambda x: torch.stack([x.t(), x.t()]),
    lambda x: x.sum(0),
    lambda x: x.sum(1),
    lambda x: x.sum(0, keepdim=True),
    lambda x: x.sum(0, dtype=torch.float64),
    lambda x: x.float().topk(2).values,
    lambda x: x.float().topk(2).indices,
    lambda x: torch.nn.functional.layer_norm(x.float(), (4,)),
    lambda x: torch.nn.functional.layer_norm(x.float(), (4, 4)),
    lambda x: torch.view_as_complex(x.float().reshape(4, 2, 2)).conj().clone(),
    lambda x: torch.view_as_complex(x.float().reshape(4, 2, 2)).clone(),
]
"""Of each operation several forms, which differ in one thing."""


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj()


def test_calls_of_one_form_give_what_each_of_them_gives() -> None:
    log = CallLog({})
    x = log.stand_in(_X)
    wanted = [_form(call(_X)) for call in CALLS]
    for _ in range(2):
        with log, log.functions:
            found = [_form(call(x)) for call in CALLS]
        assert found == wanted


def test_the_default_type_is_a_part_of_the_form() -> None:
    log = CallLog({})
    x = log.stand_in(_X)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            with log, log.functions:
                assert (x / 2).dtype == torch.ones(2).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_results_of_one_form_are_tensors_of_their_own() -> None:
    log = CallLog({})
    x = log.stand_in(_X.float())
    with log, log.functions:
        one, other = x + 1, x + 1
        other.mul_(2)
    assert log.place_of(one) != log.place_of(other)
    assert one.memory != other.memory
