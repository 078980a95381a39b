"""Stretches that run channels last give what they give with channels second."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from emulator.lowering.channels_last import channels_last_nodes
from emulator.ops.registry import Channels, load_ops
from samba.compiler.build import build_program
from samba.compiler.options import CompileOptions
from tests.tracing import trace

_OPS = load_ops()
_ELEMENTWISE = sorted(name for name, spec in _OPS.items() if spec.channels is Channels.ANY)


def _required(name: str) -> list[str]:
    """Types of the arguments without a default, as ATen's schema has them."""
    namespace, op, overload = name.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
    return [str(a.type) for a in schema.arguments if not a.has_default_value() and not a.kwarg_only]


@pytest.mark.parametrize("name", _ELEMENTWISE)
def test_an_elementwise_op_does_not_care_where_its_axes_are(name: str) -> None:
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
    moved = [jnp.moveaxis(a, 1, -1) if isinstance(a, jax.Array) else a for a in args]
    with jax.enable_x64(True):  # float_power computes in float64
        want, got = _OPS[name].lower(*args), _OPS[name].lower(*moved)
    np.testing.assert_array_equal(np.asarray(jnp.moveaxis(got, -1, 1)), np.asarray(want))


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
