"""Products of single ops, forward and backward, against torch's own counter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from emulator.op_facts.flops import gradient_flops, has_other, node_flops
from emulator.op_facts.table import op_facts
from pef_schema.program import CUSTOM_GRADIENT, Arg, DType, Gradient, Graph, Node, Ref, Value
from tests.emulator.costs.counting import counted

aten = torch.ops.aten


def meta(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.empty(shape, device="meta", requires_grad=grad)


def graph_of(
    op: str, args: Sequence[Any], results: Sequence[torch.Tensor], kwargs: Any = ()
) -> tuple[Graph, Node]:
    """One node whose tensors are values."""
    values: list[Value] = []

    def add(tensor: torch.Tensor) -> Ref:
        values.append(
            Value(
                name=str(len(values)),
                shape=tuple(tensor.shape),
                dtype=DType.FLOAT32,
                needs_grad=tensor.requires_grad,
            )
        )
        return Ref(len(values) - 1)

    def convert(arg: Any) -> Arg:
        if isinstance(arg, torch.Tensor):
            return add(arg)
        return tuple(map(convert, arg)) if isinstance(arg, (list, tuple)) else arg

    given = tuple(map(convert, args))
    outputs = tuple(add(r).value for r in results)
    node = Node(op=op, args=given, kwargs=tuple(kwargs), outputs=outputs)
    return Graph(name="g", values=tuple(values), nodes=(node,), inputs=(), outputs=()), node


def tensors_of(args: Any) -> list[torch.Tensor]:
    if isinstance(args, torch.Tensor):
        return [args]
    return [t for a in args for t in tensors_of(a)] if isinstance(args, (list, tuple)) else []


def flops_of(graph: Graph, node: Node) -> tuple[int, int]:
    """What we count for a node, forward and backward."""
    return node_flops(graph, node).product_flops, gradient_flops(graph, node).product_flops


def check(
    run: Callable[..., Any], op: str, args: Sequence[Any], **kwargs: Any
) -> tuple[Graph, Node]:
    """Our figures are torch's; returns what they are of."""
    want = counted(lambda *_: run(*args, **kwargs), tensors_of(args))
    result = run(*args, **kwargs)
    results = list(result) if isinstance(result, tuple) else [result]
    graph, node = graph_of(op, args, results, tuple(sorted(kwargs.items())))
    assert flops_of(graph, node) == want, op
    return graph, node


MATRICES = {
    "mm": (aten.mm, "aten.mm.default", [(3, 4), (4, 5)]),
    "bmm": (aten.bmm, "aten.bmm.default", [(2, 3, 4), (2, 4, 5)]),
    "addmm": (aten.addmm, "aten.addmm.default", [(5,), (3, 4), (4, 5)]),
    "baddbmm": (aten.baddbmm, "aten.baddbmm.default", [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "linear": (F.linear, "aten.linear.default", [(2, 3, 4), (5, 4), (5,)]),
    "linear of a matrix": (F.linear, "aten.linear.default", [(3, 4), (5, 4)]),
    "matmul": (torch.matmul, "aten.matmul.default", [(2, 3, 4), (4, 5)]),
    "matmul of batches": (torch.matmul, "aten.matmul.default", [(2, 1, 3, 4), (6, 4, 5)]),
    "inner": (torch.inner, "aten.inner.default", [(3, 4), (5, 4)]),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("wanted", ["all", "first", "last", "none"])
def test_products_of_matrices(name, wanted):
    run, op, shapes = MATRICES[name]
    first = len(shapes) - 2 if op not in ("aten.linear.default",) else 0
    chosen = {"all": range(len(shapes)), "first": [first], "last": [first + 1], "none": []}[wanted]
    made = check(run, op, [meta(*s, grad=i in chosen) for i, s in enumerate(shapes)])
    forward, backward = flops_of(*made)
    assert forward > 0
    assert backward == forward * {"all": 2, "first": 1, "last": 1, "none": 0}[wanted]


def test_addbmm_of_which_torch_counts_the_gradient_alone():
    given = [meta(3, 5, grad=False), meta(2, 3, 4), meta(2, 4, 5)]
    got = flops_of(*graph_of("aten.addbmm.default", given, [meta(3, 5)]))
    assert got == (2 * 2 * 3 * 4 * 5, 2 * 2 * 2 * 3 * 4 * 5)
    assert counted(torch.addbmm, given) == (0, got[1])


def test_tensordot_and_einsum():
    a, b = meta(3, 4, 5), meta(5, 4, 6)
    check(
        lambda x, y, i, j: torch.tensordot(x, y, dims=(i, j)),
        "aten.tensordot.default",
        [a, b, [1, 2], [1, 0]],
    )
    for equation, shapes in (
        ("td,edi->eti", [(7, 3), (2, 3, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...i,ij->...j", [(2, 3, 4), (4, 5)]),
    ):
        given = [meta(*s) for s in shapes]
        check(lambda e, t: torch.einsum(e, *t), "aten.einsum.default", [equation, given])


CONVOLUTIONS = {
    "1d": (F.conv1d, "aten.conv1d.default", [(2, 3, 9), (4, 3, 3)], {}),
    "2d": (F.conv2d, "aten.conv2d.default", [(2, 3, 9, 8), (4, 3, 3, 2), (4,)], {}),
    "3d": (F.conv3d, "aten.conv3d.default", [(2, 3, 5, 6, 7), (4, 3, 2, 3, 2)], {}),
    "strided, padded, dilated": (
        F.conv2d,
        "aten.conv2d.default",
        [(2, 3, 11, 9), (4, 3, 3, 3)],
        {"stride": 2, "padding": 2, "dilation": 2},
    ),
    "depthwise": (F.conv2d, "aten.conv2d.default", [(2, 6, 9, 8), (6, 1, 3, 3)], {"groups": 6}),
    "groups": (F.conv2d, "aten.conv2d.default", [(2, 6, 9, 8), (4, 3, 3, 3)], {"groups": 2}),
    "same": (F.conv2d, "aten.conv2d.padding", [(2, 3, 9, 8), (4, 3, 3, 3)], {"padding": "same"}),
    "transposed 1d": (
        F.conv_transpose1d,
        "aten.conv_transpose1d.default",
        [(2, 3, 9), (3, 4, 3)],
        {},
    ),
    "transposed 2d": (
        F.conv_transpose2d,
        "aten.conv_transpose2d.input",
        [(2, 3, 5, 4), (3, 4, 4, 4), (4,)],
        {"stride": 2, "padding": 1},
    ),
    "transposed 3d": (
        F.conv_transpose3d,
        "aten.conv_transpose3d.input",
        [(2, 3, 4, 3, 5), (3, 2, 2, 2, 2)],
        {},
    ),
    "transposed groups": (
        F.conv_transpose2d,
        "aten.conv_transpose2d.input",
        [(2, 6, 5, 4), (6, 2, 3, 3)],
        {"groups": 2},
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("data", [True, False])
def test_convolutions(name, data):
    run, op, shapes, kwargs = CONVOLUTIONS[name]
    given = [meta(*s, grad=data or i > 0) for i, s in enumerate(shapes)]
    forward, backward = flops_of(*check(run, op, given, **kwargs))
    assert backward == forward * (2 if data else 1)


def test_torch_counts_a_depthwise_gradient_once_for_each_channel():
    """Why the counter is put right: without that the weight's gradient is six times as large."""
    from torch.utils.flop_counter import FlopCounterMode

    x, w = meta(2, 6, 9, 8, grad=False), meta(6, 1, 3, 3)
    right = counted(lambda x, w: F.conv2d(x, w, groups=6), [x, w])
    with FlopCounterMode(display=False) as found:
        F.conv2d(x, w, groups=6).sum().backward()
    assert right[0] == right[1]
    assert found.get_total_flops() == right[0] + 6 * right[1]


@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1,), (2,)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(wanted, causal):
    shapes = [(2, 3, 5, 4), (2, 3, 7 if not causal else 5, 4), (2, 3, 7 if not causal else 5, 6)]
    given = [meta(*s, grad=i in wanted) for i, s in enumerate(shapes)]
    op = "aten.scaled_dot_product_attention.default"
    graph, node = check(F.scaled_dot_product_attention, op, given, is_causal=causal)
    again = gradient_flops(graph, node, again=True).product_flops
    q, k, _ = shapes
    assert again - flops_of(graph, node)[1] == 2 * 2 * 3 * q[2] * k[2] * 4  # the scores


LAYERS = {
    "lstm": (torch.nn.LSTM, {}),
    "two layers": (torch.nn.LSTM, {"num_layers": 2}),
    "both directions": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "batch first": (torch.nn.LSTM, {"batch_first": True}),
    "projected": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    "no bias": (torch.nn.GRU, {"bias": False}),
    "gru": (torch.nn.GRU, {"num_layers": 2}),
    "rnn": (torch.nn.RNN, {}),
}


@pytest.mark.parametrize(
    ("name", "data", "state"),
    [
        *(
            pytest.param(name, data, state, marks=[pytest.mark.slow] if data is state else [])
            for name in ("both directions", "projected")
            for data in (True, False)
            for state in (True, False)
        ),
        *((name, True, False) for name in LAYERS if name not in ("both directions", "projected")),
    ],
)
def test_recurrent_layers(name, data, state):
    make, options = LAYERS[name]
    with torch.device("meta"):
        layer = make(3, 4, **options)
    op = {torch.nn.LSTM: "lstm", torch.nn.GRU: "gru", torch.nn.RNN: "rnn_tanh"}[make]
    x = meta(5, 6, 3, grad=data)
    batch = 5 if layer.batch_first else 6
    parts = (2 if layer.bidirectional else 1) * layer.num_layers
    widths = (layer.proj_size or 4, 4) if op == "lstm" else (4,)
    states = [meta(parts, batch, width, grad=state) for width in widths]
    hx = tuple(states) if op == "lstm" else states[0]
    want = counted(lambda *_: layer(x, hx)[0], [x, *states])
    options = [layer.bias, layer.num_layers, 0.0, True, layer.bidirectional, layer.batch_first]
    output, last = layer(x, hx)
    results = [output, *(last if isinstance(last, tuple) else (last,))]
    params = list(layer.parameters())
    graph, node = graph_of(f"aten.{op}.input", [x, hx, params, *options], results)
    assert flops_of(graph, node) == want
    assert gradient_flops(graph, node, again=True).product_flops == sum(want)


def test_cells():
    with torch.device("meta"):
        cell = torch.nn.LSTMCell(3, 4)
    x, h, c = meta(5, 3), meta(5, 4), meta(5, 4)
    want = counted(lambda *_: cell(x, (h, c))[0], [x, h, c])
    args = [x, (h, c), cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    graph, node = graph_of("aten.lstm_cell.default", args, list(cell(x, (h, c))))
    assert flops_of(graph, node) == want


def test_a_chain_of_matrices():
    given = [meta(10, 2), meta(2, 30), meta(30, 3)]
    want = counted(lambda *_: torch.linalg.multi_dot(given), given)
    graph, node = graph_of("aten.linalg_multi_dot.default", [given], [meta(10, 3)])
    assert node_flops(graph, node).product_flops == want[0] == 360 + 120
    assert gradient_flops(graph, node).product_flops == 2 * want[0]


def test_a_custom_gradient_takes_what_its_own_nodes_take():
    def value(name: str, *shape: int, grad: bool = False) -> Value:
        return Value(name=name, shape=shape, dtype=DType.BFLOAT16, needs_grad=grad)

    gradient = Gradient(
        name="F.backward",
        values=(value("g", 3, 5), value("w", 4, 5), value("t", 5, 4), value("dx", 3, 4)),
        nodes=(
            Node(op="aten.t.default", args=(Ref(1),), outputs=(2,)),
            Node(op="aten.mm.default", args=(Ref(0), Ref(2)), outputs=(3,)),
        ),
        inputs=(0, 1),
        outputs=(3,),
    )
    node = Node(op=CUSTOM_GRADIENT, args=(0, (Ref(0),), (Ref(1),), (Ref(2),)), outputs=(3,))
    graph = Graph(
        name="g",
        values=(
            value("y", 3, 5),
            value("x", 3, 4, grad=True),
            value("w", 4, 5),
            value("passed", 3, 5, grad=True),
        ),
        nodes=(node,),
        inputs=(),
        outputs=(),
        gradients=(gradient,),
    )
    assert node_flops(graph, node).product_flops == 0
    found = gradient_flops(graph, node)
    assert found.products == ((DType.BFLOAT16, 2 * 3 * 5 * 4),)


def test_an_unknown_cost_is_told_by_name():
    x = meta(4, 4)
    graph, node = graph_of("aten.linalg_qr.default", [x], [x, x])
    assert node_flops(graph, node).unknown == ("aten.linalg_qr.default",)
    assert gradient_flops(graph, node).unknown == ("gradient of aten.linalg_qr.default",)
    graph, node = graph_of("somebody.elses.op", [x], [x])
    assert node_flops(graph, node).unknown == ("somebody.elses.op",)
    three = [meta(2, 3), meta(3, 4), meta(4, 5)]
    graph, node = graph_of("aten.einsum.default", ["ij,jk,kl->il", three], [meta(2, 5)])
    assert node_flops(graph, node).unknown == ("aten.einsum.default",)


@pytest.mark.parametrize("op", [name for name, facts in op_facts().items() if facts.products])
def test_arguments_of_any_form_end_as_unknown_or_counted(op):
    for args in (
        [],
        [None] * 9,
        [1.5] * 9,
        [meta()] * 9,
        [[meta()] * 3] * 9,
        ["ij,jk", [meta(2)] * 2],
    ):
        graph, node = graph_of(op, args, [meta()])
        for found in (node_flops(graph, node), gradient_flops(graph, node)):
            assert found.unknown or found.product_flops >= 0


def test_every_op_has_a_cost_or_is_named():
    for op, facts in op_facts().items():
        assert has_other(op) == facts.counted, op
        assert facts.counted or facts.products is None, op
