"""The functional form of a graph is torch's own, found without tracing the graph again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

from samba.tracer.functional import functional_form
from samba.tracer.lowering import _drop_checks

# torch's own, about its exporter; samba.tracer.capture holds them back.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

X = torch.randn(2, 3, 4)


class Call(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


def described(program: ExportedProgram) -> list[Any]:
    """Nodes with operations, arguments by position, shapes, strides and source lines."""
    _drop_checks(program.graph)
    nodes = list(program.graph.nodes)
    place = {node: f"%{i}" for i, node in enumerate(nodes)}
    found: list[Any] = []
    for node in nodes:
        value = node.meta.get("val")
        leaves = value if isinstance(value, (tuple, list)) else [value]
        forms = [(v.shape, v.stride(), v.dtype) for v in leaves if isinstance(v, Tensor)]
        args = torch.fx.node.map_arg((node.args, node.kwargs), place.__getitem__)
        stack = (node.meta.get("nn_module_stack") or {}).values()
        target = node.target if node.op == "call_function" else ""
        found.append((node.op, target, str(args), forms, node.meta.get("stack_trace"), [*stack]))
    return found


def export(function: Callable[[Tensor], Any]) -> ExportedProgram:
    return torch.export.export(Call(function), (X,), strict=False)


UNTRACED: dict[str, Callable[[Tensor], Any]] = {
    "a reshape that is a view": lambda x: x.reshape(6, 4) * 2,
    "a reshape that is a copy": lambda x: x.transpose(0, 1).reshape(6, 4) * 2,
    "the same reshape twice": lambda x: x.reshape(6, 4) + (x * 2).reshape(6, 4),
    "parts": lambda x: torch.chunk(x, 2, dim=2)[1] * 2,
    "parts that are results": lambda x: x.split(2, dim=2),
    "a cast": lambda x: x.to(torch.float64).sum(),
    "a cast to the same type": lambda x: x.to(torch.float32).reshape(-1),
    "contiguous": lambda x: x.permute(2, 0, 1).contiguous().flatten(1),
    "views": lambda x: x.movedim(0, 2).unflatten(1, (2, 2)).mT.squeeze(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "a product": lambda x: torch.einsum("abc,abd->acd", x, x) @ x.mT.flatten(1).sum(0)[:4],
    "many results": lambda x: x.max(dim=1).values + x.sort(dim=1)[0][:, 0],
}

TRACED: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda x: x.mul(2).add_(1),
    "through a view": lambda x: (y := x.clone(), y[0].zero_(), y.reshape(-1))[2],
    "a constant": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "detached": lambda x: x * x.detach(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "torch's own kernel": lambda x: F.softshrink(x),
}

SLOW = (
    *("the same reshape twice", "parts that are results", "a cast to the same type"),
    *("many results", "attention", "a constant", "torch's own kernel"),
)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[pytest.mark.slow] if what in SLOW else [])
        for what in (*UNTRACED, *TRACED)
    ],
)
def test_the_functional_form_is_torchs(what: str) -> None:
    program = export({**UNTRACED, **TRACED}[what])
    want = program.run_decompositions({})
    got = functional_form(program)
    assert (got is program) == (what in UNTRACED)
    assert described(got) == described(want)
    for mine, theirs in zip(
        got.graph_signature.output_specs, want.graph_signature.output_specs, strict=True
    ):
        assert (mine.kind, mine.target) == (theirs.kind, theirs.target)
    results = [spec.arg.name for spec in got.graph_signature.output_specs]
    (nodes,) = got.graph.output_node().args
    assert isinstance(nodes, tuple)
    assert results == [node.name for node in nodes if isinstance(node, torch.fx.Node)]


def test_what_a_form_is_replaced_by_can_be_decomposed_further() -> None:
    program = functional_form(export(lambda x: F.gelu(x.transpose(0, 1).reshape(6, 4))))
    gelu = torch.ops.aten.gelu.default
    table = torch.export.default_decompositions()
    further = program.run_decompositions({gelu: table[gelu]} if gelu in table else {})
    ran = further.module()(X)
    assert ran.shape == (6, 4)
    assert operator.contains([n.target for n in further.graph.nodes], torch.ops.aten.clone.default)
