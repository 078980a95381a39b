"""Stretches that run channels last give what they give with channels second."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from emulator.lowering.channels_last import channels_last_nodes
from emulator.ops.registry import Channels, OpSpec, load_ops
from samba.compiler.build import build_program
from samba.compiler.sections import CompileOptions
from tests.emulator.ops.checks import Comparison, compare, one_program
from tests.tracing import trace

_OPS = load_ops()
_ELEMENTWISE = sorted(
    name for name, spec in _OPS.items() if spec.channels is Channels.ANY and spec.last is None
)


def _required(name: str) -> list[str]:
    """Types of the arguments without a default, as ATen's schema has them."""
    namespace, op, overload = name.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
    return [str(a.type) for a in schema.arguments if not a.has_default_value() and not a.kwarg_only]


def test_an_elementwise_op_does_not_care_where_its_axes_are() -> None:
    assert len(_ELEMENTWISE) > 100
    with one_program():
        for name in _ELEMENTWISE:
            _compare_moved(name)


def _compare_moved(name: str) -> None:
    rng = np.random.default_rng(0)
    whole = "bitwise" in name or name.split(".")[1] in ("gcd", "lcm")

    def argument(kind: str) -> object:
        if kind.startswith(("Tensor", "Optional[Tensor")):
            # Moved or not, the shape is one, and so is the code: XLA's vectors of another length
            # along the last axis may end with other last bits (atan).
            values = rng.uniform(0.1, 0.9, (2, 4, 4, 4))
            return jnp.asarray(values * 10, jnp.int32) if whole else jnp.asarray(values, "float32")
        return 2 if whole else 0.5

    args = [argument(kind) for kind in _required(name)]
    if "clamp." in name or "clip." in name:  # one of two optional limits
        args.append(argument("Tensor" if name.endswith("Tensor") else "Scalar"))
    if name == "aten.pow.Scalar":
        args[0] = 0.5
    with jax.enable_x64(True):  # float_power computes in float64
        arrays = [a for a in args if isinstance(a, jax.Array)]
        moved = [jnp.moveaxis(a, 1, -1) for a in arrays]

    def run(*given: list[jax.Array]) -> list[jax.Array]:
        found = []
        for arrays in given:
            rest = iter(arrays)
            found.append(
                _OPS[name].lower(*(next(rest) if isinstance(a, jax.Array) else a for a in args))
            )
        return found

    def judge(results: list[list[jax.Array]]) -> None:
        want, got = map(np.asarray, results[0])
        np.testing.assert_array_equal(np.moveaxis(got, -1, 1), want)

    compare(Comparison(what=name, run=run, calls=[(arrays, moved)], judge=judge))


_X = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype(np.float32)
_X[0, 1, 2, 3], _X[1, 0, 5, 6], _X[1, 2, 0, :2] = np.nan, np.inf, 1.0
_LAST: list[tuple[str, Callable[..., jax.Array]]] = [
    *(("aten.cat.default", lambda op, x, d=d: op((x, 2 * x), d)) for d in (0, 1, 2, -1, -3)),
    *(
        ("aten.max_pool2d.default", lambda op, x, a=a: op(x, *a))
        for a in (
            (2,), ((2, 3), (2, 2)), (2, 1, 1, 2), (3, 2, 1, 1, True), ((4, 5), 2, 2),
            (2, (9, 8), 1, 1, True),
        )
    ),
]  # fmt: skip
"""Ops with a lowering for channels last: the op, a call of it."""


def test_an_op_gives_the_same_channels_last() -> None:
    """Bit by bit, and so do its gradients: only places are chosen."""
    with one_program():
        for number, (name, call) in enumerate(_LAST):
            _compare_last(f"{name}, case {number}", _OPS[name], call)


def _compare_last(what: str, spec: OpSpec, call: Callable[..., jax.Array]) -> None:
    def moved(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(call(spec.last, jnp.moveaxis(x, 1, -1)), -1, 1)

    def run(x: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        want, pull = jax.vjp(lambda x: call(spec.lower, x), x)
        got, pull_moved = jax.vjp(moved, x)
        return want, got, pull(g)[0], pull_moved(g)[0]

    def judge(results: list[tuple[jax.Array, ...]]) -> None:
        want, got, slope, slope_moved = map(np.asarray, results[0])
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(slope_moved, slope)

    shape = jax.eval_shape(lambda x: call(spec.lower, x), _X).shape
    g = np.random.default_rng(1).integers(-4, 5, shape).astype(np.float32)
    compare(Comparison(what=what, run=run, calls=[(_X, g)], judge=judge))


def test_every_lowering_for_channels_last_is_compared() -> None:
    alike = {"aten.concat.default", "aten.concatenate.default"}  # names of cat
    alike |= {"aten.max_pool1d.default", "aten.max_pool3d.default"}  # of the same code
    wanted = {name for name, spec in _OPS.items() if spec.last is not None}
    assert wanted == {row[0] for row in _LAST} | alike


class Block(nn.Module):
    """What a residual network is made of, and ops that must not move."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.gate = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y)) * 0.5
        gate = torch.sigmoid(self.gate(y.mean((2, 3))))[:, :, None, None]
        y = torch.relu(x + y * gate)
        return y.softmax(1) + y.flatten(1).sum(1)[:, None, None, None]


def test_what_lies_between_convolutions_and_norms_runs_channels_last() -> None:
    traced = trace(Block(), (torch.randn(2, 4, 6, 6),), inference=True)
    graph = build_program(traced, [], CompileOptions(name="block", inference=True)).graphs[0]
    chosen = channels_last_nodes(graph, range(len(graph.nodes)), _OPS)
    names = [graph.nodes[i].op.split(".")[1] for i in sorted(chosen)]
    assert names == ["relu", "mul", "mul", "add", "relu"]


def test_one_image_alone_is_not_taken_for_a_batch() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch = torch.nn.functional.max_pool2d(torch.relu(self.conv(x[None])), 2)
            alone = torch.nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
            return torch.cat([batch, batch], 1).sum() + alone.sum()

    traced = trace(Pooled(), (torch.randn(16, 20, 20),), inference=True)
    graph = build_program(traced, [], CompileOptions(name="pooled", inference=True)).graphs[0]
    chosen = channels_last_nodes(graph, range(len(graph.nodes)), _OPS)
    names = [
        (graph.nodes[i].op.split(".")[1], len(graph.values[graph.nodes[i].outputs[0]].shape))
        for i in sorted(chosen)
    ]
    assert ("cat", 4) in names
    assert ("max_pool2d", 4) in names
    assert ("max_pool2d", 3) not in names


def test_a_transposed_convolution_may_have_more_features_than_channels() -> None:
    """Its shapes are not those of a convolution: one of half a group."""

    class Grown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes = [1, 1], [0, 0], [1, 1], True, [0, 0], 1
            return torch.relu(torch.convolution(x, self.weight, None, *sizes))

    traced = trace(Grown(), (torch.randn(2, 4, 9, 9),), inference=True)
    graph = build_program(traced, [], CompileOptions(name="grown", inference=True)).graphs[0]
    assert [node.op for node in graph.nodes] == ["aten.convolution.default", "aten.relu.default"]
    assert len(channels_last_nodes(graph, range(2), _OPS)) == 1
