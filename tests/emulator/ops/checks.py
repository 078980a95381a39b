"""Compare registered ops with torch: values, dtypes, shapes, gradients, what they read.

What a test compares is compiled as one program: XLA and jax take 40 ms for a program, however
little is in it, and 3 ms for an operation.
"""

from __future__ import annotations

import inspect
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from emulator.dtypes import FROM_NUMPY
from emulator.lowering.section import turned
from emulator.ops.registry import OpSpec, load_ops
from emulator.trace_settings import full_products
from pef_schema.program import DType
from samba.comparison.sides import DEFAULT_TOL, Tol
from samba.tracer.traced import carries_gradient
from tests.emulator.platforms.products import inexact

TORCH_TO_DTYPE = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.complex64: DType.COMPLEX64,
    torch.complex128: DType.COMPLEX128,
}


def to_jax(x: torch.Tensor) -> jax.Array:
    """Copy a torch tensor to a jax array of the same dtype."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype == torch.bfloat16:
        values = x.view(torch.int16).numpy().view(jnp.bfloat16)
    else:
        values = x.numpy()
    return jax.device_put(values.copy())  # for jnp.asarray jax compiles a program a shape


def to_numpy64(x: jax.Array | torch.Tensor) -> np.ndarray:
    """Widen floats and complex numbers to 64-bit parts for comparison; leave the rest."""
    if isinstance(x, torch.Tensor):
        x = to_jax(x)
    a = np.asarray(x)
    kind = FROM_NUMPY[a.dtype]
    if kind.is_complex:
        return a.astype(np.complex128)
    return a.astype(np.float64) if kind.is_floating else a


def torch_op(name: str) -> Callable[..., Any]:
    """The torch overload behind a registry name."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def assert_matches(
    got: jax.Array, want: torch.Tensor, *, tol: Mapping[DType, Tol], what: str
) -> None:
    """Same dtype, same shape, values within the tolerance of the dtype."""
    assert FROM_NUMPY[np.dtype(got.dtype)] == TORCH_TO_DTYPE[want.dtype], (
        f"{what}: dtype {got.dtype}, torch has {want.dtype}"
    )
    assert tuple(got.shape) == tuple(want.shape), f"{what}: shape {got.shape}, torch {want.shape}"
    dtype = TORCH_TO_DTYPE[want.dtype]
    limit = tol.get(dtype, DEFAULT_TOL.get(dtype, Tol(rtol=0.0, atol=0.0)))
    np.testing.assert_allclose(
        to_numpy64(got), to_numpy64(want), rtol=limit.rtol, atol=limit.atol, err_msg=what
    )


_MOST = 64
"""Comparisons of one program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A function that is to be compiled, and what is asked of its results.

    Args:
        what: Its name for a person.
        run: The function.
        calls: Its arguments, of the same shapes in each call.
        judge: Takes the results of all calls, and raises an ``AssertionError`` if they are wrong.
        options: Compiler options.
    """

    what: str
    run: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    judge: Callable[[list[Any]], None]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


_waiting: list[Comparison] | None = None


@contextmanager
def one_program() -> Iterator[None]:
    """Compile what is compared meanwhile as one program, and judge all of it at the end."""
    global _waiting
    before, _waiting = _waiting, []
    waiting = _waiting
    try:
        yield
    finally:
        _waiting = before
    for _, same in itertools.groupby(waiting, lambda comparison: comparison.options):
        listed = list(same)
        for start in range(0, len(listed), _MOST):
            _judge(listed[start : start + _MOST])


def compare(comparison: Comparison) -> None:
    """Judge a comparison: now, or at the end of :func:`one_program`."""
    if _waiting is None:
        _judge([comparison])
    else:
        _waiting.append(comparison)


def _judge(part: Sequence[Comparison]) -> None:
    """Compile functions as plans are; each product of float32 in them says that it is exact."""

    def together(calls: list[tuple[Any, ...]]) -> list[Any]:
        return [c.run(*args) for c, args in zip(part, calls, strict=True)]

    with jax.enable_x64(True), full_products():
        traced = jax.jit(together).trace([c.calls[0] for c in part])
        assert not (found := inexact(traced.jaxpr)), f"{[c.what for c in part]}: {found}"
        compiled = traced.lower().compile(dict(part[0].options))
        count = max(len(c.calls) for c in part)
        results = [
            compiled([c.calls[min(k, len(c.calls) - 1)] for c in part]) for k in range(count)
        ]
        problems: list[str] = []
        for i, comparison in enumerate(part):
            try:
                comparison.judge([result[i] for result in results[: len(comparison.calls)]])
            except AssertionError as error:
                problems.append(f"{comparison.what}: {error}")
    assert not problems, "\n\n".join(problems)


def cases(
    names: str | Sequence[str], rows: Iterable[Any], *, every: int = 1
) -> Callable[[Callable[..., None]], Any]:
    """As ``pytest.mark.parametrize``, in one test, so that all cases are one program.

    Args:
        names: Arguments of the test function.
        rows: Their values in each case; a tuple if there are several names.
        every: The fast tests try one of so many cases, `make test-all` all of them.

    Returns:
        A decorator.
    """
    keys = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    listed = [row if len(keys) > 1 else (row,) for row in rows]
    listed = listed[:: every if os.environ.get("XLA_FLAGS") else 1]

    def decorate(function: Callable[..., None]) -> Any:
        def test(**others: Any) -> None:
            for row in listed:
                torch.manual_seed(0)
                np.random.seed(0)
                random.seed(0)
                try:
                    function(**dict(zip(keys, row, strict=True)), **others)
                except Exception as error:
                    error.add_note(f"in case {row}")
                    raise

        whole: Any = inspect.signature(function)
        left = [p for name, p in whole.parameters.items() if name not in keys]
        test.__signature__ = whole.replace(parameters=left)  # what pytest reads
        test.__name__, test.__doc__ = function.__name__, function.__doc__
        test.__module__ = function.__module__
        return test

    return decorate


def _said(name: str, args: Sequence[Any]) -> str:
    def one(a: Any) -> str:
        if isinstance(a, torch.Tensor):
            return f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}"
        if isinstance(a, (list, tuple)):
            return f"[{', '.join(map(one, a))}]"
        return repr(a)

    return f"{name}({', '.join(map(one, args))})"


def _map(tree: Any, leaf: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(tree, torch.Tensor):
        return leaf(tree)
    if isinstance(tree, torch.dtype):
        return TORCH_TO_DTYPE[tree]
    if isinstance(tree, (list, tuple)):
        return tuple(_map(t, leaf) for t in tree)
    return tree


def _tensors(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def check(
    name: str,
    *args: Any,
    grad: bool = True,
    tol: Mapping[DType, Tol] | None = None,
    grad_tol: Mapping[DType, Tol] | None = None,
    frozen: tuple[int, ...] = (),
    **kwargs: Any,
) -> None:
    """Run op ``name`` in torch and on the device and compare.

    Args:
        name: Registry name.
        args, kwargs: torch arguments (tensors, lists of tensors, scalars, torch dtypes).
        grad: Also compare the gradients of all floating tensor arguments, with a random
            cotangent, and prove that arguments outside ``reads`` do not matter to them.
        tol, grad_tol: Override ``DEFAULT_TOL``; say why where you use it.
        frozen: Argument positions that torch refuses to differentiate.
    """
    spec: OpSpec = load_ops()[name]
    what = _said(name, args)
    limit = DEFAULT_TOL if tol is None else tol
    fn = torch_op(name)
    torch_kwargs = kwargs
    with jax.enable_x64(True):
        kwargs = {k: _map(v, to_jax) for k, v in kwargs.items()}

    leaves: list[torch.Tensor] = []
    where: list[int] = []  # the argument position each leaf came from

    def collect(t: torch.Tensor) -> torch.Tensor:
        t = t.detach().clone()
        leaves.append(t)
        where.append(position)
        wanted = grad and position not in frozen and carries_gradient(t)
        return t.requires_grad_() if wanted else t

    torch_args = []
    for position, arg in enumerate(args):  # noqa: B007  # ``collect`` reads it
        torch_args.append(pytree.tree_map_only(torch.Tensor, collect, arg))
    want = _tensors(fn(*torch_args, **torch_kwargs))

    with jax.enable_x64(True):
        arrays = [to_jax(t) for t in leaves]

    def run(flat: list[jax.Array]) -> tuple[jax.Array, ...]:
        it = iter(flat)
        rebuilt = [_map(a, lambda _t: next(it)) for a in args]
        return tuple(_tensors(spec.lower(*rebuilt, **kwargs)))

    outs = [i for i, w in enumerate(want) if w is not None and w.requires_grad]
    diff = [i for i, t in enumerate(leaves) if t.requires_grad]
    if not (grad and spec.differentiable and outs and diff):

        def judge_values(results: list[Any]) -> None:
            _assert_outputs(name, results[0], want, limit)

        compare(Comparison(what=what, run=run, calls=[(arrays,)], judge=judge_values))
        return
    generator = torch.Generator().manual_seed(7)
    cots = [
        torch.randn(
            want[i].shape,
            generator=generator,
            dtype=torch.complex128 if want[i].is_complex() else torch.float64,
        ).to(want[i].dtype)
        for i in outs
    ]
    expected = torch.autograd.grad(
        [want[i] for i in outs], [leaves[i] for i in diff], cots, allow_unused=True
    )

    def values_and_gradients(
        flat: list[jax.Array], cotangents: list[jax.Array]
    ) -> tuple[tuple[jax.Array, ...], list[jax.Array]]:
        def of(diff_arrays: list[jax.Array]) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
            full = list(flat)
            for i, a in zip(diff, diff_arrays, strict=True):
                full[i] = a
            result = run(full)
            return [result[i] for i in outs], result

        _, vjp, result = jax.vjp(of, [flat[i] for i in diff], has_aux=True)
        return result, list(turned(vjp(list(turned(cotangents)))[0]))

    linear = [i for i in diff if where[i] in spec.linear_in and where.count(where[i]) == 1]
    unread = [] if spec.reads is None else [i for i, p in enumerate(where) if p not in spec.reads]
    with jax.enable_x64(True):
        cotangents = [to_jax(c) for c in cots]
        zeros = {i: to_jax(torch.zeros_like(leaves[i])) for i in {*linear, *unread}}

    def blanked(places: Sequence[int]) -> list[jax.Array]:
        return [zeros[i] if i in places else a for i, a in enumerate(arrays)]

    def judge(results: list[Any]) -> None:
        got, grads = results[0]
        _assert_outputs(name, got, want, limit)
        gtol = limit if grad_tol is None else grad_tol
        for i, g, w in zip(diff, grads, expected, strict=True):
            if w is not None:
                assert_matches(g, w, tol=gtol, what=f"{name} gradient of tensor {i}")
        for i, (_, without) in zip(linear, results[1:], strict=False):
            np.testing.assert_array_equal(
                np.asarray(grads[diff.index(i)]),
                np.asarray(without[diff.index(i)]),
                err_msg=f"{name}: gradient of tensor {i} is not linear in it",
            )
        if spec.reads is not None:
            for i, g, b in zip(diff, grads, results[-1][1], strict=True):
                np.testing.assert_array_equal(
                    np.asarray(g),
                    np.asarray(b),
                    err_msg=f"{name}: gradient of tensor {i} reads outside reads={spec.reads}",
                )

    variants = [arrays, *(blanked([i]) for i in linear), blanked(unread)]
    calls = [(variant, cotangents) for variant in variants]
    compare(Comparison(what=what, run=values_and_gradients, calls=calls, judge=judge))


def _assert_outputs(
    name: str, got: tuple[jax.Array, ...], want: list[Any], tol: Mapping[DType, Tol]
) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if w is not None:
            assert_matches(g, w, tol=tol, what=f"{name} output {i}")
