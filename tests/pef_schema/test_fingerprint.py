"""Two graphs compare equal if they compute the same, and the first difference is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pef_schema import DType, Graph, Node, Ref, Value, first_difference
from pef_schema.fingerprint import renamed
from tests.pef_schema.cases import edit
from tests.pef_schema.samples import training


def _graph() -> Graph:
    return training().graphs[0]


def _edited(path: str, **changes: Any) -> Graph:
    return edit(training(), f"graphs.0.{path}".rstrip("."), **changes).graphs[0]


def _shuffled(graph: Graph) -> Graph:
    """Return the same graph with its values listed backwards."""
    last = len(graph.values) - 1

    def arg(item: Any) -> Any:
        if isinstance(item, Ref):
            return Ref(last - item.value)
        return tuple(map(arg, item)) if isinstance(item, tuple) else item

    def node(old: Node) -> Node:
        outputs = tuple(last - o if o >= 0 else o for o in old.outputs)
        kwargs = tuple((name, arg(item)) for name, item in old.kwargs)
        return dataclasses.replace(old, args=arg(old.args), kwargs=kwargs, outputs=outputs)

    return dataclasses.replace(
        graph,
        values=graph.values[::-1],
        nodes=tuple(map(node, graph.nodes)),
        inputs=tuple(last - i for i in graph.inputs),
        outputs=tuple(dataclasses.replace(o, value=last - o.value) for o in graph.outputs),
        updates=tuple(dataclasses.replace(u, value=last - u.value) for u in graph.updates),
    )


_SAME = {
    "itself": _graph(),
    "other source lines": _edited("nodes.0", source="elsewhere.py:1", module="m"),
    "other numbering": _shuffled(_graph()),
    "other regions": dataclasses.replace(
        _graph(),
        updates=tuple(dataclasses.replace(u, region=u.region + 50) for u in _graph().updates),
        values=tuple(
            dataclasses.replace(value, region=value.region + 50, grad_region=-1, needs_grad=False)
            for value in _graph().values
        ),
    ),
    "other names of inner values": _edited("values.3", name="hidden"),
}


@pytest.mark.parametrize("name", _SAME)
def test_same(name: str) -> None:
    assert first_difference(_graph(), _SAME[name]) is None


def test_a_result_that_nothing_reads_may_be_dropped() -> None:
    graph = dataclasses.replace(_graph(), updates=())
    dropped = dataclasses.replace(_edited("nodes.2", outputs=(-1,)), updates=())
    assert first_difference(graph, dropped) is None


_OTHER: dict[str, tuple[Graph, str, str, str]] = {
    "op": (
        _edited("nodes.0", op="aten.mm.default"),
        "node 0",
        "%3:float32[2, 4] = aten.linear.default(%0, %1=w:float32[4, 3], %2=c:float32[4])",
        "%3:float32[2, 4] = aten.mm.default(%0, %1=w:float32[4, 3], %2=c:float32[4])",
    ),
    "argument": (
        _edited("nodes.2", args=(Ref(5), 2.5)),
        "node 2",
        "%6:uint32[2] = test.advance.default(%5=seed:uint32[2], 1.5)",
        "%6:uint32[2] = test.advance.default(%5=seed:uint32[2], 2.5)",
    ),
    "type of an argument": (
        _edited("nodes.2", args=(Ref(5), True)),
        "node 2",
        "1.5",
        "True",
    ),
    "order of arguments": (_edited("nodes.0", args=(Ref(1), Ref(0), Ref(2))), "node 0", "", ""),
    "keyword": (_edited("nodes.1", kwargs=()), "node 1", "eps=-inf", ""),
    "shape of a result": (_edited("values.3", shape=(8, 1)), "node 0", "[2, 4]", "[8, 1]"),
    "dtype of a result": (_edited("values.4", dtype=DType.BFLOAT16), "node 1", "", "bfloat16"),
    "shape of an input": (
        _edited("values.0", shape=(9, 3)),
        "input 0",
        "%0=x:float32[2, 3]",
        "%0=x:float32[9, 3]",
    ),
    "name of a weight": (_edited("values.1", name="weight"), "node 0", "w:", "weight:"),
    "no input": (_edited("", inputs=()), "input 0", "%0=x:float32[2, 3]", "(nothing)"),
    "node missing": (
        _edited("", nodes=_graph().nodes[:2]),
        "node 2",
        "%6:uint32[2] = test.advance.default(%5=seed:uint32[2], 1.5)",
        "(nothing)",
    ),
    "output missing": (
        _edited("", outputs=_graph().outputs[:1]),
        "output 1",
        "h = %3",
        "(nothing)",
    ),
    "output name": (_edited("outputs.0", name="nll"), "output 0", "loss = %4", "nll = %4"),
    "update missing": (_edited("", updates=()), "node 2", "%6:uint32[2] = ", "_ = "),
    "update of another state": (
        _edited("updates.0", region=_graph().values[1].region),
        "update 0",
        "seed <- %6",
        "w <- %6",
    ),
    "outputs swapped": (_edited("", outputs=_graph().outputs[::-1]), "output 0", "loss", "h"),
}


@pytest.mark.parametrize("name", _OTHER)
def test_different(name: str) -> None:
    traced, place, ours, theirs = _OTHER[name]
    difference = first_difference(_graph(), traced)
    assert difference is not None
    assert difference.place == place
    assert ours in difference.compiled
    assert theirs in difference.traced
    back = first_difference(traced, _graph())
    assert back is not None
    assert (back.place, back.compiled, back.traced) == (
        place,
        difference.traced,
        difference.compiled,
    )


def test_text() -> None:
    traced = _edited("nodes.0", op="aten.mm.default", source="model.py:14")
    assert str(first_difference(_graph(), traced)) == (
        "node 0 in net.fc differs:\n"
        "  compiled: %3:float32[2, 4] = aten.linear.default"
        "(%0, %1=w:float32[4, 3], %2=c:float32[4])  # model.py:12\n"
        "  traced:   %3:float32[2, 4] = aten.mm.default"
        "(%0, %1=w:float32[4, 3], %2=c:float32[4])  # model.py:14"
    )


def test_not_a_number_equals_itself() -> None:
    graph = _edited("nodes.2", args=(Ref(5), float("nan")))
    other = _edited("nodes.2", args=(Ref(5), float("nan")))
    assert first_difference(graph, other) is None


def test_empty_graphs() -> None:
    empty = Graph(name="e", values=(), nodes=(), inputs=(), outputs=())
    value = Value(name="v", shape=(), dtype=DType.FLOAT32)
    one = dataclasses.replace(empty, values=(value,), inputs=(0,))
    assert first_difference(empty, empty) is None
    difference = first_difference(empty, one)
    assert difference is not None and difference.place == "input 0"


def _with_names(change: Any) -> Graph:
    """The graph with other names of all values and outputs."""
    graph = _graph()
    return dataclasses.replace(
        graph,
        values=tuple(dataclasses.replace(v, name=change(v.name)) for v in graph.values),
        outputs=tuple(dataclasses.replace(o, name=change(o.name)) for o in graph.outputs),
    )


def test_other_names_alone_are_listed_in_pairs() -> None:
    other = _with_names(lambda name: f"other_{name}")
    assert first_difference(_graph(), other) is not None
    pairs = renamed(_graph(), other)
    assert pairs and all(traced == f"other_{compiled}" for compiled, traced in pairs)
    sources = {_graph().values[i].name for i in _graph().inputs}
    assert sources | {o.name for o in _graph().outputs} <= {compiled for compiled, _ in pairs}


@pytest.mark.parametrize("what", _SAME)
def test_the_same_graph_has_no_other_names(what: str) -> None:
    assert renamed(_graph(), _SAME[what]) == ()


def test_names_are_not_all_that_differs() -> None:
    """Another operation, another shape, or updates that go to each other's state."""
    names = _with_names(lambda name: f"other_{name}")
    node = dataclasses.replace(names.nodes[0], op="aten.other.default")
    assert renamed(_graph(), dataclasses.replace(names, nodes=(node, *names.nodes[1:]))) == ()
    assert renamed(_graph(), dataclasses.replace(names, outputs=names.outputs[:-1])) == ()
    longer = dataclasses.replace(names.values[0], shape=(99, *names.values[0].shape[1:]))
    assert renamed(_graph(), dataclasses.replace(names, values=(longer, *names.values[1:]))) == ()
