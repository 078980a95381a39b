"""NaN and infinities in every place of every reduction and normalisation end where torch's do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.registry import _OPS, load_ops
from emulator.plans.xla_options import xla_options
from samba.comparison.sides import DEFAULT_TOL
from tests.emulator.ops.checks import (
    TORCH_TO_DTYPE,
    Comparison,
    _map,
    compare,
    one_program,
    to_jax,
    to_numpy64,
    torch_op,
)
from tests.emulator.ops.nan_cases import CASES, Case, needs_case

REQUIRED = sorted(name for name, spec in load_ops().items() if needs_case(spec))

GROUPS: dict[str, list[str]] = {}
for _name in REQUIRED:
    _family = load_ops()[_name].lower.__module__.rsplit(".", 1)[-1]
    GROUPS.setdefault(_family, []).append(_name)

SLOW = ("index", "adaptive", "moments", "regression", "distance", "segment")
"""They are made of what the others have, and take longer to compile."""


def test_every_reduction_and_normalisation_has_a_case() -> None:
    assert set(REQUIRED) == set(CASES), "tests/emulator/ops/nan_cases.py says how ops are called"


def cast(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.to(dtype) if tree.is_floating_point() else tree.clone()
    return tree


def poisoned(case: Case, dtype: torch.dtype) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The call with one element replaced, for every element of every tensor and every value."""
    args = tuple(cast(a, dtype) for a in case.args)
    yield "clean", args
    floats = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.dtype == dtype]
    for i in floats if case.poison is None else case.poison:
        for k in range(args[i].numel()):
            for value in case.values if k in (0, args[i].numel() - 1) else case.values[:1]:
                bad = args[i].clone()
                bad.view(-1)[k] = value
                yield f"{value} in element {k} of argument {i}", (*args[:i], bad, *args[i + 1 :])


def results(tree: Any) -> tuple[Any, ...]:
    return tuple(tree) if isinstance(tree, (tuple, list)) else (tree,)


def compare_poisoned(name: str, dtype: torch.dtype) -> None:
    """Compare an op with torch, once for each element that is replaced.

    Tensors are what changes from call to call, so each case is compiled once.
    """
    lower = load_ops()[name].lower
    for position, case in enumerate(CASES[name]):
        if dtype is torch.float32 or case.half:
            _compare_case(f"{name}, case {position}", case, torch_op(name), lower, dtype)


def _compare_case(
    what: str, case: Case, op: Callable[..., Any], lower: Callable[..., Any], dtype: torch.dtype
) -> None:
    kwargs = {k: _map(v, to_jax) for k, v in case.kwargs.items()}

    def run(arrays: list[Any]) -> tuple[Any, ...]:
        rest = iter(arrays)
        args = [_map(a, lambda _: next(rest)) for a in case.args]
        return results(lower(*args, **kwargs))

    names, calls, wanted = [], [], []
    with jax.enable_x64(True):
        for place, args in poisoned(case, dtype):
            names.append(place)
            calls.append(([to_jax(a) for a in args if isinstance(a, torch.Tensor)],))
            wanted.append(results(op(*args, **case.kwargs)))

    def judge(found: list[Any]) -> None:
        for place, want, got in zip(names, wanted, found, strict=True):
            pairs = list(zip(want, got, strict=True))[: case.results]
            for i, (w, g) in enumerate(pairs):
                if w is not None and g is not None:
                    _assert_same(f"{place}, result {i}", case, w, g)

    # As the device compiles.
    options = xla_options(jax.devices("cpu")[0])
    compare(Comparison(what=what, run=run, calls=calls, judge=judge, options=options))


def _assert_same(what: str, case: Case, want: torch.Tensor, got: jax.Array) -> None:
    tol = DEFAULT_TOL.get(TORCH_TO_DTYPE[want.dtype])
    a, b = to_numpy64(got), to_numpy64(want)
    limits = {} if tol is None else {"rtol": 2 * tol.rtol, "atol": 2 * tol.atol}
    if case.more and a.shape == b.shape:
        b = np.where(np.isnan(a), a, b)
    same = np.allclose(a, b, equal_nan=b.dtype.kind == "f", **limits)
    assert same, f"{what}: {a}, torch has {b}"


@pytest.mark.filterwarnings("ignore:.*(deprecated|in beta):UserWarning")  # torch's own, of its ops
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, id="float32"),
        pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.slow] if f in SLOW else []) for f in GROUPS],
)
def test_poison_ends_where_torchs_does(family: str, dtype: torch.dtype) -> None:
    for name in GROUPS[family]:
        compare_poisoned(name, dtype)


def test_a_lost_nan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_ops()["aten.amax.default"]
    dropping = dataclasses.replace(spec, lower=lambda x, dim: jnp.nanmax(x, axis=tuple(dim)))
    monkeypatch.setitem(_OPS, spec.name, dropping)
    with pytest.raises(AssertionError, match="torch has"), one_program():
        compare_poisoned(spec.name, torch.float32)
