"""Rules of one graph: values, their homes, inputs, nodes, outputs, updates and custom gradients."""

from __future__ import annotations

from typing import TypeGuard

from pef_schema.program import (
    CUSTOM_GRADIENT,
    Arg,
    DType,
    Gradient,
    Graph,
    Node,
    OutputGrad,
    Program,
    Ref,
    Region,
    Role,
    Value,
)
from pef_schema.verify_rules import Report, check_sizes, takes_sizes

_KEPT = frozenset({Role.INPUT, Role.CONSTANT, Role.ARGIN})
"""Roles of regions that the forward pass must not change; an embedding may renorm its weight."""
_HOMES = frozenset(
    {
        Role.INPUT,
        Role.WEIGHT,
        Role.BUFFER,
        Role.CONSTANT,
        Role.ACTIVATION,
        Role.OUTPUT,
        Role.ARGIN,
        Role.SEED,
    }
)
"""Roles of regions that hold values of the forward pass."""
_GRADIENTS = (Role.GRADIENT, Role.COTANGENT)
"""Roles of regions that hold gradients of values."""
_OUTPUT_GRADIENTS = (Role.OUTPUT_GRADIENT,)


def check_graph(program: Program, graph: Graph, where: str, report: Report) -> None:
    """Check one graph.

    Args:
        program: The program it belongs to.
        graph: The graph.
        where: Its place, for messages.
        report: Receives the problems.
    """
    report.unique(f"{where} value", [value.name for value in graph.values])
    _check_values(program, graph, where, report)
    known = _check_inputs(graph, where, report)
    check_nodes(graph, where, known, report)
    _check_results(program, graph, where, known, report)
    check_gradients(graph, where, report)


def _check_values(program: Program, graph: Graph, where: str, report: Report) -> None:
    regions = program.regions
    count = len(regions)
    # By identity: values share their shapes, and a hash of numbers can be made to collide.
    checked: set[tuple[int, DType]] = set()
    for index, value in enumerate(graph.values):
        key = (id(value.shape), value.dtype)
        if key not in checked:
            checked.add(key)
            problem = report.shape(value.shape, value.dtype.itemsize)
            if problem:
                report.add(f"{where} value {index}: {problem}")
        if value.region != -1:
            if not 0 <= value.region < count:
                report.index(f"{where} value {index}", "region", value.region, count)
            else:
                home = regions[value.region]
                if home.shape != value.shape or home.dtype is not value.dtype:
                    report.add(
                        f"{where} value {index} ({value.name[:80]}): it is {value.dtype.name} "
                        f"{value.shape}, but its region is {home.dtype.name} {home.shape}"
                    )
                if home.role not in _HOMES:
                    report.add(
                        f"{where} value {index} ({value.name[:80]}): region {value.region} is "
                        f"{home.role.name}, which holds no values of a forward pass"
                    )
        if value.grad_region != -1:
            if not 0 <= value.grad_region < count:
                report.index(f"{where} value {index}", "grad_region", value.grad_region, count)
            else:
                place = f"{where} value {index} ({value.name[:80]})"
                home = regions[value.grad_region]
                _check_gradient_home(value, home, _GRADIENTS, place, report)
        if value.needs_grad and not value.dtype.has_gradient:
            report.add(
                f"{where} value {index} ({value.name[:80]}): {value.dtype.name} carries no gradient"
            )


def _check_gradient_home(
    value: Value, home: Region, roles: tuple[Role, ...], place: str, report: Report
) -> None:
    """Check the region of a value's gradient."""
    if home.shape != value.shape:
        report.add(f"{place}: its shape is {value.shape}, but its gradient's is {home.shape}")
    elif home.dtype is not value.dtype:
        report.add(f"{place}: it is {value.dtype.name}, but its gradient is {home.dtype.name}")
    if home.role not in roles:
        names = " or ".join(role.name for role in roles)
        report.add(f"{place}: its gradient is {home.role.name}, expected {names}")


def _check_inputs(graph: Graph | Gradient, where: str, report: Report) -> bytearray:
    """Check the inputs and return which values are known before the first node."""
    known = bytearray(len(graph.values))
    for index in graph.inputs:
        if not 0 <= index < len(graph.values):
            report.index(where, "input value", index, len(graph.values))
        elif known[index]:
            report.add(f"{where}: value {index} is an input twice")
        else:
            known[index] = 1
            if isinstance(graph, Graph) and graph.values[index].region < 0:
                report.add(f"{where}: input value {index} has no region")
    return known


def _check_results(
    program: Program, graph: Graph, where: str, known: bytearray, report: Report
) -> None:
    """Check outputs and updates against values and regions."""
    regions = program.regions
    count = len(regions)
    for index, output in enumerate(graph.outputs):
        place = f"{where} output {index}"
        report.name(place, output.name)
        _check_copy(program, graph, output.value, output.region, place, known, report)
        if (output.grad is OutputGrad.ABSENT) != (output.grad_region == -1):
            report.add(f"{place}: {output.grad.name} with gradient region {output.grad_region}")
        elif not -1 <= output.grad_region < count:
            report.index(place, "grad_region", output.grad_region, count)
        elif output.grad_region >= 0 and 0 <= output.value < len(graph.values):
            value, home = graph.values[output.value], regions[output.grad_region]
            _check_gradient_home(value, home, _OUTPUT_GRADIENTS, place, report)
    updated: set[int] = set()
    for index, update in enumerate(graph.updates):
        place = f"{where} update {index}"
        _check_copy(program, graph, update.value, update.region, place, known, report)
        if update.region in updated:
            report.add(f"{place}: region {update.region} is updated twice")
        updated.add(update.region)
        if 0 <= update.region < count and regions[update.region].role in _KEPT:
            role = regions[update.region].role
            report.add(f"{place}: region {update.region} is {role.name}, which no update may write")


def _check_copy(
    program: Program,
    graph: Graph,
    index: int,
    region: int,
    place: str,
    known: bytearray,
    report: Report,
) -> None:
    """Check that a value exists and fits the region it is copied to."""
    values, regions = graph.values, program.regions
    if not 0 <= index < len(values):
        report.index(place, "value", index, len(values))
    elif not known[index]:
        report.add(f"{place}: value {index} is never computed")
    if not 0 <= region < len(regions):
        report.index(place, "region", region, len(regions))
    elif 0 <= index < len(values):
        value, home = values[index], regions[region]
        if home.shape != value.shape or home.dtype is not value.dtype:
            report.add(
                f"{place}: value {index} is {value.dtype.name} {value.shape}, "
                f"but its region is {home.dtype.name} {home.shape}"
            )


_LOW, _HIGH = -(2**63), 2**63 - 1
_PLAIN = frozenset({DType, type(None), bool, float, complex})
"""Types of arguments about which there is nothing to check."""
_ARG_TYPES = frozenset({Ref, DType, type(None), bool, int, float, complex, str, tuple})


def check_nodes(graph: Graph | Gradient, where: str, known: bytearray, report: Report) -> None:
    """Check every node, and that each value is made once and before its use.

    Args:
        graph: Whose nodes.
        where: Its place, for messages.
        known: Which values are there before the first node; those that nodes make are added.
        report: Receives the problems.
    """
    values = graph.values
    count = len(values)
    has_producer = bytearray(count)
    for index, node in enumerate(graph.nodes):
        for output in node.outputs:
            if output == -1:
                continue
            if not 0 <= output < count:
                report.index(f"{where} node {index}", "output value", output, count)
            elif has_producer[output] or known[output]:
                report.add(f"{where} node {index}: value {output} has a second producer")
            else:
                has_producer[output] = 1
    for index, value in enumerate(values):
        if value.region >= 0 and not has_producer[index]:
            known[index] = 1
    sized: dict[str, bool] = {}
    for index, node in enumerate(graph.nodes):
        op = node.op
        if op not in sized:
            report.name(f"{where} node {index}", op)
            sized[op] = takes_sizes(op)
        if sized[op]:
            check_sizes(node, f"{where} node {index}", report)
        _check_node(node, index, where, known, report)
        for output in node.outputs:
            if 0 <= output < count:
                known[output] = 1


def _check_node(node: Node, index: int, where: str, known: bytearray, report: Report) -> None:
    """Check a node's texts and arguments."""
    limits = report.limits
    if not (node.module.isascii() and len(node.module) <= limits.name):
        report.text(f"{where} node {index}", node.module, limits.name)
    if not (node.source.isascii() and len(node.source) <= limits.source):
        report.text(f"{where} node {index}", node.source, limits.source)
    args: tuple[Arg, ...] = node.args
    if node.kwargs:
        place = f"{where} node {index}"
        names = [name for name, _ in node.kwargs]
        report.unique(f"{place} keyword", names)
        if names != sorted(names):
            report.add(f"{place}: keyword arguments are not sorted")
        args += tuple([arg for _, arg in node.kwargs])
    count = len(known)
    for arg in args:
        kind = type(arg)
        if isinstance(arg, Ref):
            # What nearly every argument is; everything else is looked at with its place.
            if not (0 <= arg.value < count and known[arg.value]):
                break
        elif isinstance(arg, int) and kind is int:
            if not _LOW <= arg <= _HIGH:
                break
        elif kind not in _PLAIN:
            break
    else:
        return
    _check_args(args, known, f"{where} node {index}", report)


def _check_args(args: tuple[Arg, ...], known: bytearray, place: str, report: Report) -> None:
    """Check a node's arguments level by level; ``depth`` counts the lists around them."""
    limits = report.limits
    depth = 0
    level = args
    while level:
        inner: list[tuple[Arg, ...]] = []
        for arg in level:
            kind = type(arg)
            if isinstance(arg, Ref):
                if not 0 <= arg.value < len(known):
                    report.index(place, "argument value", arg.value, len(known))
                elif not known[arg.value]:
                    report.add(f"{place}: value {arg.value} is used before it is made")
                if depth > limits.ref_depth:
                    report.add(f"{place}: a value inside more than {limits.ref_depth} lists")
            elif isinstance(arg, tuple):
                if arg:
                    inner.append(arg)
            elif isinstance(arg, int) and kind is int:
                if not _LOW <= arg <= _HIGH:
                    report.add(f"{place}: an integer argument beyond 64 bits")
            elif kind is str:
                report.text(place, arg, limits.source)  # pyright: ignore[reportArgumentType]  # kind says str
            elif kind not in _ARG_TYPES:
                report.add(f"{place}: argument of type {kind.__module__}.{kind.__qualname__}")
        depth += 1
        if inner and depth > limits.arg_depth:
            report.add(f"{place}: lists nested more than {limits.arg_depth} deep")
            return
        level = [arg for items in inner for arg in items]


def check_gradients(graph: Graph, where: str, report: Report) -> None:
    """Check the custom gradients of a graph, and the nodes that refer to them.

    Args:
        graph: The graph; its nodes have been checked.
        where: Its place, for messages.
        report: Receives the problems.
    """
    for index, gradient in enumerate(graph.gradients):
        _check_gradient(gradient, f"{where} gradient {index}", report)
    used: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if node.op == CUSTOM_GRADIENT:
            used |= _check_custom_node(graph, node, f"{where} node {index}", report)
    unused = set(range(len(graph.gradients))) - used
    if unused:
        report.add(f"{where}: gradients that no node uses: {sorted(unused)[:8]}")


def _check_gradient(gradient: Gradient, where: str, report: Report) -> None:
    report.name(where, gradient.name)
    report.text(where, gradient.source, report.limits.source)
    report.unique(f"{where} value", [value.name for value in gradient.values])
    for index, value in enumerate(gradient.values):
        problem = report.shape(value.shape, value.dtype.itemsize)
        if problem:
            report.add(f"{where} value {index}: {problem}")
        if value.region != -1 or value.grad_region != -1 or value.needs_grad:
            report.add(f"{where} value {index}: a region or a gradient, which it cannot have")
    known = _check_inputs(gradient, where, report)
    check_nodes(gradient, where, known, report)
    for index, node in enumerate(gradient.nodes):
        if node.op == CUSTOM_GRADIENT:
            report.add(f"{where} node {index}: a custom gradient within a custom gradient")
    for index in gradient.outputs:
        if not 0 <= index < len(known):
            report.index(where, "output value", index, len(known))
        elif not known[index]:
            report.add(f"{where}: output value {index} is never made")


def _check_custom_node(graph: Graph, node: Node, where: str, report: Report) -> set[int]:
    """Check that a node fits its gradient; return the indices of gradients that it uses."""
    if len(node.args) != 4 or node.kwargs:
        report.add(f"{where}: {len(node.args)} arguments, a custom gradient takes 4")
        return set()
    index, results, inputs, reads = node.args
    if type(index) is not int:
        report.add(f"{where}: its gradient is of type {type(index).__name__}, expected an index")
        return set()
    if not 0 <= index < len(graph.gradients):
        report.index(where, "gradient", index, len(graph.gradients))
        return set()
    if not (_are_values(results) and _are_values(inputs) and _are_values(reads)):
        report.add(f"{where}: a custom gradient takes three lists of values")
        return {index}
    if len(node.outputs) != len(results):
        report.add(f"{where}: {len(node.outputs)} outputs of {len(results)} results")
        return {index}
    gradient, count = graph.gradients[index], len(graph.values)
    if any(not 0 <= ref.value < count for ref in (*results, *inputs, *reads)):
        return {index}  # said already
    outer, inner = graph.values, gradient.values
    for result, output in zip(results, node.outputs, strict=True):
        if 0 <= output < count and _form(outer[result.value]) != _form(outer[output]):
            report.add(f"{where}: result {result.value} has another form than output {output}")
    for what, refs, indices in (
        ("results and reads", (*results, *reads), gradient.inputs),
        ("inputs", inputs, gradient.outputs),
    ):
        if len(refs) != len(indices):
            report.add(f"{where}: {len(refs)} {what}, gradient {index} has {len(indices)} of them")
            continue
        for ref, local in zip(refs, indices, strict=True):
            if 0 <= local < len(inner) and _form(outer[ref.value]) != _form(inner[local]):
                report.add(
                    f"{where}: value {ref.value} is {_text(outer[ref.value])}, value {local} of "
                    f"gradient {index} is {_text(inner[local])}"
                )
    for ref in (*results, *inputs):
        if not outer[ref.value].dtype.has_gradient:
            report.add(f"{where}: value {ref.value} cannot carry a gradient")
    return {index}


def _are_values(arg: Arg) -> TypeGuard[tuple[Ref, ...]]:
    return isinstance(arg, tuple) and all(isinstance(item, Ref) for item in arg)


def _form(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype


def _text(value: Value) -> str:
    return f"{value.dtype.name} {value.shape}"
