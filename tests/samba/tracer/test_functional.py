"""The functional form of a graph is torch's own, found without tracing the graph again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, reject, settings, strategies as st
from torch import Tensor, nn
from torch.export import ExportedProgram

from samba.tracer.functional import functional_form
from samba.tracer.lowering import _drop_checks
from samba.tracer.marker_ops import check, cotangent, marked

# torch's own, about its exporter; samba.tracer.capture holds them back.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

X = torch.randn(2, 3, 4)


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.layer, self.norm = function, nn.Linear(4, 4), nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        x = self.layer(x)
        return (
            self.function(x, self) if self.function.__code__.co_argcount == 2 else self.function(x)
        )


def described(program: ExportedProgram) -> list[Any]:
    """Nodes with operations, arguments by position, shapes, strides and source lines.

    Sources are in the order of their names: torch puts constants between the buffers of the model
    and those of its parts where it runs a graph again.
    """
    _drop_checks(program.graph)
    sources = sorted(program.graph.find_nodes(op="placeholder"), key=lambda node: node.name)
    nodes = [*sources, *[node for node in program.graph.nodes if node.op != "placeholder"]]
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


def export(function: Callable[..., Any]) -> ExportedProgram:
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
    "marks of ours": lambda x: (
        check(x.sum() > 0, True),
        marked([x * 2], [x], 0)[0] + cotangent(x, 0, 0),
    )[1],
}


def bumped(buffer: Tensor, value: Any, result: Any) -> Any:
    buffer.add_(value)
    return result


IN_PLACE: dict[str, Callable[..., Any]] = {
    "in place": lambda x: x.mul(2).add_(1),
    "in place twice": lambda x: F.relu((y := x * 2), inplace=True).mul_(y).sub_(x, alpha=2) + y,
    "of the result of a module": lambda x: x.clamp_(0, 1).exp(),
    "a view that is read before": lambda x: (x * 2)[0].sum() + (x * 3).relu_().select(0, 0).sum(),
    "a view that reads its own": lambda x: (y := x * 2).add_(y[:1]),
    "many arguments": lambda x: (x * 2).addcmul_(x, x, value=0.5).masked_fill_(x > 0, 1.0),
    "an index": lambda x: (y := x * 1).__setitem__(y > 0, 2.0) or y * 2,
    "a constant": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "detached": lambda x: x * x.detach() + x.detach().detach().relu(),
    "a detached parameter": lambda x, m: x + m.layer.bias.detach() + m.count.detach().sum(),
    "dropout": lambda x: F.dropout(F.dropout(x, 0.5), 0.0) + F.dropout(x, 0.3, training=False),
    "a counter": lambda x, m: bumped(m.count, 1, bumped(m.count, x.sum((0, 2)), x * 2)),
    "a counter that is read": lambda x, m: bumped(m.count, 1, None) or x * m.count[:, None],
    "batch norm": lambda x, m: m.norm(x),
    "batch norm twice": lambda x, m: m.norm(m.norm(x).relu_()),
    "batch norm without statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm of statistics": lambda x, m: F.batch_norm(
        x, m.norm.running_mean, m.norm.running_var, m.norm.weight
    ),
    "bfloat16 statistics": lambda x: (
        mean := x.bfloat16()[0, :, 0].detach() * 1,
        F.batch_norm(x.bfloat16(), mean, var := mean.abs(), training=True),
        mean + var,
        var,
    )[1:],
    "momentum": lambda x, m: F.batch_norm(
        x.bfloat16(), m.norm.running_mean, m.norm.running_var, training=True, momentum=0.5
    ),
}

TRACED: dict[str, Callable[..., Any]] = {
    "a constant that is changed": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).mul_(2),
    "through a view": lambda x: (y := x.clone(), y[0].zero_(), y.reshape(-1))[2],
    "under a view": lambda x: (y := x * 2, z := y[0], y.add_(1), z.sum() + y)[3],
    "under what is detached": lambda x: (y := x * 2, z := y.detach(), y.add_(1), z + y)[3],
    "of another type": lambda x: x.bfloat16().add_(x),
    "a buffer that is a result": lambda x, m: bumped(m.count, 1, (x, m.count)),
    "a copy into a buffer": lambda x, m: (m.count.copy_(x.sum((0, 2))), x)[1],
    "random numbers": lambda x: torch.empty_like(x).uniform_() * x,
    "an empty batch norm": lambda x, m: m.norm.eval()(x[:0]),
    "torch's own kernel": lambda x: F.softshrink(x),
}

UNTRACED |= IN_PLACE

SLOW = (
    *("the same reshape twice", "parts that are results", "a cast to the same type"),
    *("many results", "attention", "torch's own kernel", "momentum", "many arguments"),
    *("a cast", "a product", "of the result of a module", "an index", "a constant"),
    *("batch norm of statistics", "a counter", "of another type", "in place"),
)
"""Forms that ``make test-all`` tries, too: of each kind one is among the others."""


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


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "new": lambda a, b: a * b,
    "add_": lambda a, b: a.add_(b),
    "relu_": lambda a, b: a.relu_(),
    "mul_": lambda a, b: a.mul_(0.5),
    "copy_": lambda a, b: a.copy_(b),
    "fill_": lambda a, b: a.masked_fill_(b > 0, 0.5),
    "view": lambda a, b: a.view(4, 4),
    "transpose": lambda a, b: a.transpose(0, 1),
    "detach": lambda a, b: a.detach(),
    "row": lambda a, b: a[:1].expand(4, 4),
    "reshape": lambda a, b: a.reshape(2, 8).reshape(4, 4),
    "contiguous": lambda a, b: a.contiguous(),
    "row of zeros": lambda a, b: (a[0].zero_(), a)[1],
    "norm": lambda a, b: F.batch_norm(a, b[0].detach() * 1, b[1].detach() * 1, training=True),
}


class Steps(nn.Module):
    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("one", torch.ones(4, 4))
        self.register_buffer("two", torch.full((4, 4), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        held = [self.one, self.two, x * 2]
        for name, a, b in self.steps:
            held.append(STEPS[name](held[a % len(held)], held[b % len(held)]))
        return torch.stack([each.reshape(4, 4) * (i + 1) for i, each in enumerate(held)]).sum(0)


@pytest.mark.slow  # each program is run by torch, too
@pytest.mark.usefixtures("cheap_traces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9))))
def test_whatever_is_written_is_what_torch_writes(steps: list[tuple[str, int, int]]) -> None:
    """Views, writes under them and through them, buffers, in any order."""
    x = torch.randn(4, 4)
    try:
        program = torch.export.export(Steps(steps), (x,), strict=False)
    except RuntimeError:  # torch refuses to write where elements share memory
        reject()
    want = program.run_decompositions({})
    buffers = [t.clone() for t in program.state_dict.values()]
    got = functional_form(program)
    kinds = [(spec.kind, spec.target) for spec in got.graph_signature.output_specs]
    assert kinds == [(spec.kind, spec.target) for spec in want.graph_signature.output_specs]
    run = [torch.fx.Interpreter(p.graph_module).run(*buffers, x) for p in (got, want)]
    for mine, theirs in zip(*run, strict=True):
        assert torch.equal(mine, theirs)
