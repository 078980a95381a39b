"""NaN and infinities in every place of every reduction and normalisation end where torch's do."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from emulator.ops.registry import _OPS, load_ops
from emulator.plans.executable_cache import xla_options
from samba.comparison.sides import DEFAULT_TOL
from tests.emulator.ops.checks import TORCH_TO_DTYPE, _map, to_jax, to_numpy64, torch_op
from tests.emulator.ops.nan_cases import CASES, Case, needs_case

REQUIRED = sorted(name for name, spec in load_ops().items() if needs_case(spec))


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


@functools.cache
def compiled(name: str, position: int) -> Any:
    """The lowering; tensors are what changes from call to call, so it is compiled once a type."""
    case, lower = CASES[name][position], load_ops()[name].lower
    kwargs = {k: _map(v, to_jax) for k, v in case.kwargs.items()}

    def run(arrays: list[Any]) -> tuple[Any, ...]:
        given = iter(arrays)
        args = [_map(a, lambda _: next(given)) for a in case.args]
        return results(lower(*args, **kwargs))

    # As the device compiles.
    return jax.jit(run, compiler_options=xla_options(jax.devices("cpu")[0]))


def differences(name: str, dtype: torch.dtype) -> list[str]:
    """Where the device's results are not torch's."""
    found = []
    for position, case in enumerate(CASES[name]):
        if dtype is torch.bfloat16 and not case.half:
            continue
        run = compiled(name, position)
        for what, args in poisoned(case, dtype):
            want = results(torch_op(name)(*args, **case.kwargs))
            got = run([to_jax(a) for a in args if isinstance(a, torch.Tensor)])
            pairs = list(zip(want, got, strict=True))[: case.results]
            for i, (w, g) in enumerate(pairs):
                if w is None or g is None:
                    continue
                kind = TORCH_TO_DTYPE[w.dtype]
                tol = DEFAULT_TOL.get(kind)
                a, b = to_numpy64(g), to_numpy64(w)
                limits = {} if tol is None else {"rtol": 2 * tol.rtol, "atol": 2 * tol.atol}
                if case.more and a.shape == b.shape:
                    b = np.where(np.isnan(a), a, b)
                if not np.allclose(a, b, equal_nan=b.dtype.kind == "f", **limits):
                    found.append(f"case {position}, {what}, result {i}: {a}, torch has {b}")
    return found


@pytest.mark.filterwarnings("ignore:.*(deprecated|in beta):UserWarning")  # torch's own, of its ops
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, id="float32"),
        pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", REQUIRED)
def test_poison_ends_where_torchs_does(name: str, dtype: torch.dtype) -> None:
    with jax.enable_x64(True):
        found = differences(name, dtype)
    assert not found, f"{len(found)} differ, the first: {found[0]}"


def test_a_lost_nan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_ops()["aten.amax.default"]
    dropping = dataclasses.replace(spec, lower=lambda x, dim: jnp.nanmax(x, axis=tuple(dim)))
    monkeypatch.setitem(_OPS, spec.name, dropping)
    compiled.cache_clear()
    found = differences(spec.name, torch.float32)
    compiled.cache_clear()
    assert "torch has" in found[0]
