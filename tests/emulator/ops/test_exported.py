"""Argument forms as torch.export writes them: one graph of many small expressions.

The other tests call ops with arguments made by hand. Here torch chooses the overloads,
leaves defaults out, lifts constants and removes in-place writes; every op it leaves must
have a lowering that understands what it is given. ``tests/sweeps/test_op_variants.py`` exports
every function of torch's database; here is what one writes in Python, and some of each family.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from emulator.ops.registry import load_ops
from samba.comparison.sides import DEFAULT_TOL
from tests.emulator.ops.checks import TORCH_TO_DTYPE, assert_matches, to_jax

T = torch.tensor
DROPPED = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}


def _write(x: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[key] = value
    return x


def _second_row_to_first(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[0].copy_(x[1])
    return x


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "number minus": lambda x: 1 - x,
    "number over": lambda x: 1 / x,
    "number to the": lambda x: 2**x,
    "square": lambda x: x**2,
    "floor division": lambda x: x // 0.3,
    "modulo": lambda x: x % 2,
    "integer over integer": lambda x: torch.arange(4) / 2,
    "bool plus float": lambda x: (x > 0) + 1.5,
    "integer times float tensor": lambda x: torch.arange(8) * x,
    "shift": lambda x: torch.arange(4) << 2,
    "and or not": lambda x: ((x > 0) & (x < 1)) | ~(x != 0),
    "xor": lambda x: (x > 0) ^ True,
    "clamp": lambda x: x.clamp(0, 1),
    "clamp from below": lambda x: x.clamp(min=0) + torch.clamp_min(x, 0),
    "where": lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0, 0.0, x),
    "where of numbers": lambda x: torch.where(x > 0, 1.0, 0.0),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.0),
    "masked fill by tensor": lambda x: x.masked_fill(x > 0, T(2.0)),
    "in place": lambda x: x.clone().add_(1).mul_(2),
    "write a column": lambda x: _write(x, (slice(None), 0), 3.0),
    "write rows": lambda x: _write(x, T([0, 1]), 3.0),
    "write a mask": lambda x: _write(x, x > 0, 3.0),
    "write a step": lambda x: _write(x, (slice(None), slice(1, -1, 2)), x[:, :3]),
    "copy": _second_row_to_first,
    "fill": lambda x: x.clone().fill_(3),
    "zero": lambda x: x.clone().zero_(),
    "like": lambda x: torch.zeros_like(x) + torch.ones_like(x) + torch.full_like(x, 2),
    "new": lambda x: x.new_zeros(3) + x.new_ones(3) + x.new_full((3,), 2),
    "literal": lambda x: T([1.0, 2.0]),
    "full": lambda x: torch.full((2,), 3),
    "arange": lambda x: torch.arange(3),
    "arange of floats": lambda x: torch.arange(0, 6, 2, dtype=torch.float32),
    "causal mask": lambda x: torch.full((3, 3), float("-inf")).triu(1),
    "tril of ones": lambda x: torch.tril(torch.ones(3, 3, dtype=torch.bool)),
    "casts": lambda x: x.to(torch.float64) + x.bfloat16().float() + x.int(),
    "type as": lambda x: torch.arange(4).type_as(x),
    "transpose and view": lambda x: x.t().contiguous().view(-1, 2),
    "last": lambda x: x[..., -1],
    "slices": lambda x: x[1:, ::3],
    "none and ellipsis": lambda x: x[None, ..., 1:2],
    "index": lambda x: x[:, T([0, 1])],
    "two indices": lambda x: x[T([0, 1]), T([2, 3])],
    "expand": lambda x: x[:1].expand(4, -1) + x[:1].expand_as(x),
    "broadcast": lambda x: torch.broadcast_tensors(x, x[0]),
    "stacks": lambda x: (torch.stack([x, x], 1), torch.hstack([x, x]), torch.cat([x, x], -1)),
    "pads": lambda x: tuple(
        F.pad(x, (1, 2), mode=mode) for mode in ("constant", "reflect", "replicate", "circular")
    ),
    "sums": lambda x: (x.sum(), x.sum(1), x.mean((0, 1)), x.mean(-1, keepdim=True)),
    "extremes": lambda x: (x.max(), x.max(1).values, x.amin(0), x.aminmax(dim=0)[1]),
    "truths": lambda x: ((x > 0).all(), (x > 0).any(1), x.count_nonzero(1)),
    "norms": lambda x: (x.norm(), x.norm(3, 1), F.normalize(x), torch.dist(x, x * 2)),
    "scans": lambda x: (x.cumsum(1), *x.cummax(1), x.logcumsumexp(1), x.diff()),
    "sorting": lambda x: (*x.sort(1), *x.topk(2), x.argsort(1), *x.median(1), *x.kthvalue(2)),
    "searching": lambda x: (
        torch.searchsorted(x[0].sort()[0], x),
        torch.bucketize(x, T([0.0, 1.0])),
        torch.isin(x, x[0]),
    ),
    "gather": lambda x: (x.gather(1, T([[1]])), torch.take_along_dim(x, T([[1]]), 1)),
    "scatter": lambda x: (
        x.scatter(1, T([[1]]), 2.0),
        x.scatter_add(1, T([[1]]), x),
        x.scatter_reduce(1, T([[1]]), x, "amax"),
    ),
    "index writes": lambda x: (
        x.index_add(0, T([1]), x[:1]),
        x.index_fill(0, T([1]), 2.0),
        x.index_select(1, T([1, 1])),
    ),
    "embedding": lambda x: F.embedding(T([1, 2]), x, padding_idx=0),
    "embedding bag": lambda x: F.embedding_bag(T([[1, 2]]), x),
}
"""Every case returns one tensor or a tuple of tensors."""


class _All(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[Any]:
        return [_flat(case(x)) for case in CASES.values()]


def _export(module: torch.nn.Module, x: torch.Tensor) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own use of its pytrees
        return torch.export.export(module, (x,), strict=False).run_decompositions({})


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _run(program: torch.export.ExportedProgram, x: jax.Array) -> list[jax.Array]:
    """Interpret an exported graph with the registry's lowerings."""
    ops = load_ops()
    values: dict[torch.fx.Node, Any] = {}
    constants = {s.arg.name: s.target for s in program.graph_signature.input_specs}

    def given(a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            return values[a]
        if isinstance(a, (list, tuple)):
            return tuple(given(b) for b in a)
        return TORCH_TO_DTYPE[a] if isinstance(a, torch.dtype) else a

    for node in program.graph.nodes:
        name = str(node.target)
        if node.op == "placeholder":
            target = constants[node.name]
            values[node] = x if target is None else to_jax(program.constants[target])
        elif node.op == "output":
            return [values[n] for n in node.args[0]]
        elif "getitem" in name:
            values[node] = values[node.args[0]][node.args[1]]
        elif "_assert" not in name:
            kwargs = {k: given(v) for k, v in node.kwargs.items() if k not in DROPPED}
            values[node] = ops[name].lower(*given(node.args), **kwargs)
    raise AssertionError("a graph ends with its output")


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[list[jax.Array], list[torch.Tensor]]]:
    """Device and torch results of every case."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    program = _export(_All(), x)
    with jax.enable_x64(True):
        flat = jax.jit(lambda a: _run(program, a))(to_jax(x))
    rest = iter(flat)
    out = {}
    for name, case in CASES.items():
        want = _flat(case(x))
        out[name] = ([next(rest) for _ in want], want)
    return out


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, results: dict[str, tuple[list[jax.Array], list[torch.Tensor]]]) -> None:
    for got, want in zip(*results[case], strict=True):
        assert_matches(got, want, tol=DEFAULT_TOL, what=case)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3, True),
    "feature dropout": lambda x: F.dropout2d(x[None, :, :, None], 0.3, True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "gumbel": lambda x: torch.empty_like(x).exponential_().log(),
    "rand": lambda x: torch.rand(3, 4) + torch.rand_like(x[:3, :4]),
    "randn": lambda x: torch.randn(3, 4) + torch.randn_like(x[:3, :4]),
    "randint": lambda x: torch.randint(0, 5, (3,)) + torch.randint(5, (3,)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) + torch.empty(8).bernoulli_(0.3),
    "normal": lambda x: torch.normal(x, 2.0) + torch.normal(0.0, 1.0, (8,)) + x.clone().normal_(),
    "uniform": lambda x: torch.empty(3).uniform_(0, 2),
    "randperm": lambda x: torch.randperm(5),
    "multinomial": lambda x: torch.multinomial(x.exp(), 2),
}


def test_random_ops_take_seed_and_stream() -> None:
    """Shapes and dtypes are torch's; numbers differ from seed to seed."""

    class Random(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [case(x) for case in RANDOM.values()]

    program = _export(Random(), torch.randn(4, 8))
    ops = load_ops()
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    assert {str(n.target) for n in nodes} <= {*ops, "<built-in function getitem>"}
    drawing = [n for n in nodes if str(n.target) in ops and ops[str(n.target)].random]
    assert drawing

    def made(a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            v = a.meta["val"]
            return jnp.full(v.shape, 0.5, str(v.dtype).removeprefix("torch."))
        return tuple(made(b) for b in a) if isinstance(a, (list, tuple)) else a

    def draw(seed: jax.Array) -> list[Any]:
        found: list[Any] = []
        for node in drawing:
            kwargs = {k: made(v) for k, v in node.kwargs.items() if k not in DROPPED}
            lower = ops[str(node.target)].lower
            found += _flat(lower(*made(node.args), seed=seed, stream=3, **kwargs))
        return found

    with jax.enable_x64(True):
        one, other = (jax.jit(draw)(np.array([1, step], np.uint32)) for step in (0, 1))
    values = [value for node in drawing for value in _flat(node.meta["val"])]
    for first, second, value in zip(one, other, values, strict=True):
        assert tuple(first.shape) == tuple(value.shape)
        assert str(first.dtype) == str(value.dtype).removeprefix("torch.")
        if first.size > 5:
            assert (np.asarray(first) != np.asarray(second)).any()
