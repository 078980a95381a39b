"""Half types: how far the device is from the exact result.

torch's own half kernels round in between, differently per kernel, so an elementwise
comparison with them says little about ops that sum. The truth here is torch in float64 on
the same rounded operands.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree

from emulator.ops.registry import load_ops
from tests.emulator.ops.checks import Comparison, _map, compare, to_jax, to_numpy64, torch_op

_UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def _floats(tree: Any, dtype: torch.dtype) -> Any:
    def to(t: torch.Tensor) -> torch.Tensor:
        return t.to(dtype) if t.is_floating_point() else t

    return pytree.tree_map_only(torch.Tensor, to, tree)


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _assert_near(got: jax.Array, truth: torch.Tensor, unit: float, what: str) -> None:
    want = to_numpy64(truth)
    scale = np.abs(want).max() if want.size else 0.0
    np.testing.assert_allclose(
        to_numpy64(got), want, rtol=2 * unit, atol=2 * unit * scale, err_msg=what
    )


def check_narrow(
    name: str, *args: Any, dtype: torch.dtype = torch.bfloat16, grad: bool = True, **kwargs: Any
) -> None:
    """Compare the first result and its gradients with float64, within two units of rounding.

    Args:
        name: Registry name.
        args, kwargs: torch arguments; floats are rounded to ``dtype``.
        dtype: The half type.
        grad: Compare gradients as well.
    """
    unit = _UNIT[dtype]
    args = tuple(_floats(list(args), dtype))
    exact = _floats(list(args), torch.float64)
    truth_leaves = [t for t in _leaves(exact) if t.is_floating_point()]
    if grad:
        for t in truth_leaves:
            t.requires_grad_()
    truth = torch_op(name)(*exact, **kwargs)
    truth = truth[0] if isinstance(truth, (tuple, list)) else truth
    lower = load_ops()[name].lower
    leaves = _leaves(args)
    diff = [i for i, t in enumerate(leaves) if t.is_floating_point()]
    with jax.enable_x64(True):
        arrays = [to_jax(t) for t in leaves]
    floats = [arrays[i] for i in diff]

    def run(floats: list[jax.Array]) -> jax.Array:
        full = list(arrays)
        for i, a in zip(diff, floats, strict=True):
            full[i] = a
        rest = iter(full)
        result = lower(*_map(args, lambda _: next(rest)), **kwargs)
        return result[0] if isinstance(result, tuple) else result

    def judge_value(results: list[Any]) -> None:
        _assert_near(results[0], truth.detach(), unit, name)

    if not grad:
        compare(Comparison(what=name, run=run, calls=[(floats,)], judge=judge_value))
        return
    cotangent = torch.randn(truth.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    wanted = torch.autograd.grad(truth, truth_leaves, cotangent.double(), allow_unused=True)

    def both(floats: list[jax.Array], cotangent: jax.Array) -> tuple[Any, ...]:
        value, pull = jax.vjp(run, floats)
        return value, pull(cotangent)[0]

    def judge(results: list[Any]) -> None:
        got, grads = results[0]
        assert got.dtype == floats[0].dtype, f"{name}: dtype {got.dtype}"
        _assert_near(got, truth.detach(), unit, name)
        for i, (g, w) in enumerate(zip(grads, wanted, strict=True)):
            if w is not None:
                assert g.dtype == floats[i].dtype, f"{name}: gradient {i} has dtype {g.dtype}"
                _assert_near(g, w, unit, f"{name} gradient {i}")

    calls = [(floats, to_jax(cotangent))]
    compare(Comparison(what=name, run=both, calls=calls, judge=judge))
