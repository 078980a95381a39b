"""Where the graphs of two programs differ: nodes, tensors, inputs, outputs, lines of the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pef_schema import Arg, DType, Gradient, Graph, Node, Ref, Value
from pef_schema.module_paths import plain_path
from pef_schema.program_facts import plain_name
from samba.inspection.program_pairs import Both, Change, by_name, fields, order, renamed, some_names


def graph_changes(both: Both) -> Iterator[Change]:
    """Nodes, tensors, inputs, outputs and updates of graphs that both programs have."""
    for i, j in both.pairs.graphs.items():
        graphs = _Graphs(both, i, j)
        yield from graphs.nodes()
        yield from graphs.tensors()
        yield from graphs.ends()


def line_changes(both: Both) -> Iterator[Change]:
    """Source lines of nodes that both programs have, each once, as one change for each graph."""
    for i, j in both.pairs.graphs.items():
        graphs = _Graphs(both, i, j)
        yield from renamed(f"{graphs.where}lines of nodes", list(dict.fromkeys(graphs.moved())))


def home_changes(both: Both) -> Iterator[Change]:
    """Values that both programs have and keep in different memory."""
    for i, j in both.pairs.graphs.items():
        ours, theirs = both.a.graphs[i].values, both.b.graphs[j].values
        for here, there in both.pairs.values[i].items():
            value, other = ours[here], theirs[there]
            for what, a, b in (
                ("value", value.region, other.region),
                ("gradient of", value.grad_region, other.grad_region),
            ):
                known = (b < 0 and a not in both.pairs.regions) or (a < 0 and both.is_new_region(b))
                if not known:
                    yield from fields(
                        f"{what} {value.name}", ("memory", both.region_a(a), both.region_b(b))
                    )


class _Graphs:
    """Two graphs that stand for each other.

    Args:
        both: The programs.
        i, j: Index of the graph in the first and in the second program.
    """

    def __init__(self, both: Both, i: int, j: int) -> None:
        self._both = both
        self._ours, self._theirs = both.a.graphs[i], both.b.graphs[j]
        self._pairs, self._values = both.pairs.nodes[i], both.pairs.values[i]
        self._back = {there: here for here, there in self._values.items()}
        self.where = f"graph {self._ours.name}: " if len(both.a.graphs) > 1 else ""

    def _name_a(self, value: int) -> str:
        return self._ours.values[value].name

    def _name_b(self, value: int) -> str:
        """A value of the second graph goes by the name of its match in the first."""
        if value in self._back:
            return self._name_a(self._back[value])
        return f"{self._theirs.values[value].name}+"

    def nodes(self) -> Iterator[Change]:
        """Nodes that only one has, and what differs in those that both have."""
        ours, theirs = self._ours, self._theirs
        match, other = dict(self._pairs), {j for _, j in self._pairs}
        for i, node in enumerate(ours.nodes):
            what = self.where + _title(i, node)
            if i not in match:
                yield Change(kind="removed", what=what, a=_results(ours, node))
                continue
            there = theirs.nodes[match[i]]
            yield from fields(
                what,
                ("op", node.op, there.op),
                ("module", plain_path(node.module), plain_path(there.module)),
                ("arguments", self._arguments_a(node), self._arguments_b(there)),
                ("results", _results(ours, node), _results(theirs, there)),
            )
            yield from self._own_gradient(what, node, there)
        for j, node in enumerate(theirs.nodes):
            if j not in other:
                yield Change(
                    kind="added", what=self.where + _title(j, node), b=_results(theirs, node)
                )

    def _arguments_a(self, node: Node) -> str:
        gradient = self._ours.gradient_of(node)
        return ", ".join(_texts(node, gradient, [self._name_a(v) for v in node.refs()]))

    def _arguments_b(self, node: Node) -> str:
        gradient = self._theirs.gradient_of(node)
        return ", ".join(_texts(node, gradient, [self._name_b(v) for v in node.refs()]))

    def _own_gradient(self, what: str, node: Node, there: Node) -> Iterator[Change]:
        a, b = self._ours.gradient_of(node), self._theirs.gradient_of(there)
        if a is not None and b is not None and _without_lines(a) != _without_lines(b):
            yield Change(kind="changed", what=f"{what}: gradient", a=_gradient(a), b=_gradient(b))

    def tensors(self) -> Iterator[Change]:
        """Values that no node makes: inputs, weights, constants; names of all others."""
        results = {v for node in self._ours.nodes for v in node.outputs}
        results_there = {v for node in self._theirs.nodes for v in node.outputs}
        yield from by_name(
            f"{self.where}tensor ",
            {v.name: _form(v) for i, v in enumerate(self._ours.values) if i not in results},
            {v.name: _form(v) for i, v in enumerate(self._theirs.values) if i not in results_there},
        )
        names = [
            (self._name_a(here), self._theirs.values[there].name)
            for here, there in self._values.items()
        ]
        yield from renamed(f"{self.where}values", [pair for pair in names if pair[0] != pair[1]])

    def ends(self) -> Iterator[Change]:
        """The graph's name, what it takes, gives and updates."""
        ours, theirs, both = self._ours, self._theirs, self._both
        if ours.name != theirs.name:
            yield from renamed("graph", [(ours.name, theirs.name)])
        inputs_a = some_names(map(self._name_a, ours.inputs), most=len(ours.inputs))
        inputs_b = some_names(map(self._name_b, theirs.inputs), most=len(theirs.inputs))
        yield from fields(f"{self.where}graph", ("inputs", inputs_a, inputs_b))
        yield from by_name(
            f"{self.where}output ",
            {
                o.name: f"{self._name_a(o.value)} in {both.region_a(o.region)}, gradient "
                f"{o.grad.name.lower()} in {both.region_a(o.grad_region)}"
                for o in ours.outputs
            },
            {
                o.name: f"{self._name_b(o.value)} in {both.region_b(o.region)}, gradient "
                f"{o.grad.name.lower()} in {both.region_b(o.grad_region)}"
                for o in theirs.outputs
            },
        )
        yield from order(
            f"{self.where}outputs", [o.name for o in ours.outputs], [o.name for o in theirs.outputs]
        )
        yield from by_name(
            f"{self.where}update of ",
            {both.region_a(u.region): self._name_a(u.value) for u in ours.updates},
            {both.region_b(u.region): self._name_b(u.value) for u in theirs.updates},
        )

    def moved(self) -> Iterator[tuple[str, str]]:
        """Lines of nodes that both have, and of their own gradients, where they differ."""
        for i, j in self._pairs:
            node, there = self._ours.nodes[i], self._theirs.nodes[j]
            lines = [(node.source, there.source)]
            a, b = self._ours.gradient_of(node), self._theirs.gradient_of(there)
            if a is not None and b is not None:
                lines.append((a.source, b.source))
                inner = zip(a.nodes, b.nodes, strict=False)
                lines += [(one.source, other.source) for one, other in inner]
            yield from ((p or "none", q or "none") for p, q in lines if p != q)


def _title(index: int, node: Node) -> str:
    where = f" in {plain_path(node.module)}" if node.module else ""
    return f"node {index} {plain_name(node.op)}{where}"


def _results(graph: Graph, node: Node) -> str:
    return ", ".join(_form(graph.values[v]) if v >= 0 else "unused" for v in node.outputs)


def _form(value: Value) -> str:
    shape = ",".join(map(str, value.shape))
    gradient = " with gradient" if value.needs_grad else ""
    return f"{value.dtype.name.lower()}[{shape}]{gradient}"


def _texts(node: Node, gradient: Gradient | None, names: list[str]) -> list[str]:
    """Arguments as text; values by the names given in the order of ``node.refs()``."""
    rest = iter(names)
    texts = [_argument(arg, rest) for arg in node.args]
    if gradient is not None:
        texts[0] = gradient.name
    return texts + [f"{name}={_argument(arg, rest)}" for name, arg in node.kwargs]


def _argument(arg: Arg, names: Iterator[str]) -> str:
    if isinstance(arg, Ref):
        return f"%{next(names)}"
    if isinstance(arg, tuple):
        return "[" + ", ".join([_argument(item, names) for item in arg]) + "]"
    return arg.name.lower() if isinstance(arg, DType) else repr(arg)


def _gradient(gradient: Gradient) -> str:
    nodes = some_names([plain_name(node.op) for node in gradient.nodes])
    return f"{gradient.name}: {nodes}"


def _without_lines(gradient: Gradient) -> str:
    """All that a gradient computes, as text: NaN equals NaN there."""
    nodes = tuple(replace(node, source="") for node in gradient.nodes)
    return repr(replace(gradient, source="", nodes=nodes))
